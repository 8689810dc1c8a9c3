-- Joins of forks (decision 15): what each fork expects, and the set of branches that have come.
--
-- Made from the records of `<flow>.join` by its agent, which decides in the transaction that writes
-- here, under row locks; the count is always taken from the set.

CREATE TABLE joins (
    parent            text    COLLATE "C" NOT NULL,
    -- The parent's step that forked.
    seq               integer NOT NULL,
    flow              text    NOT NULL,
    forked_by         text    NOT NULL,
    -- The stage that gets the results.
    stage             text    NOT NULL,
    first_branch      integer NOT NULL,
    expected          integer NOT NULL CHECK (expected >= 0),
    rule              text    NOT NULL CHECK (rule IN ('wait', 'fail', 'errors')),
    deadline_at       timestamptz,
    born_us           bigint  NOT NULL,
    keys_of           text    COLLATE "C",
    -- The parent's last step: the one that forked, later one that reopened the join.
    step              integer NOT NULL,
    status            text    NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'joined', 'failed')),
    -- Branches when it was closed.
    done              integer,
    failed            integer,
    reason            text,
    -- The record that closed it, and the one that reopened it: each alone writes its step of the
    -- parent, and does so again if it comes again.
    closed_topic_id   uuid,
    closed_partition  integer,
    closed_offset     bigint,
    reopened_topic_id uuid,
    reopened_partition integer,
    reopened_offset   bigint,
    forked_at         timestamptz NOT NULL DEFAULT now(),
    closed_at         timestamptz,
    PRIMARY KEY (parent, seq)
);
CREATE INDEX joins_open ON joins (forked_at) WHERE status <> 'joined';
CREATE INDEX joins_closed ON joins (closed_at) WHERE closed_at IS NOT NULL;

-- A branch comes once, whatever happens: the key sees to that. One that failed may still succeed,
-- until its join is closed; what comes after that is late and changes nothing.
CREATE TABLE join_arrivals (
    parent      text    COLLATE "C" NOT NULL,
    branch      integer NOT NULL,
    status      text    NOT NULL CHECK (status IN ('done', 'failed', 'cancelled')),
    -- The child's last step, and its result or error: JSON.
    seq         integer NOT NULL,
    value       bytea   NOT NULL,
    late        boolean NOT NULL DEFAULT false,
    arrived_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (parent, branch)
);
CREATE INDEX join_arrivals_by_time ON join_arrivals (arrived_at);
