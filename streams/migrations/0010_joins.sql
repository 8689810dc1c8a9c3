-- Joins of forks (decision 15): what each fork expects, and the set of branches that have come.
--
-- Made from the records of `<flow>.join` by its agent, which decides in the transaction that writes
-- here, under row locks; counts are always taken from the sets.

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
    -- Which branches have come, a bit for each: a set, so one that comes twice changes nothing. Its
    -- rows are in join_arrivals, written in the same transaction.
    done_set          bytea   NOT NULL DEFAULT '',
    failed_set        bytea   NOT NULL DEFAULT '',
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
) WITH (fillfactor = 60);  -- sets grow in place
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
-- By block range: rows come in the order of time, and each branch pays for its indexes.
CREATE INDEX join_arrivals_by_time ON join_arrivals USING brin (arrived_at);
