-- Runs of orchestrations, and waits (decision 16): what has happened to each, in order, and what it
-- has asked for. Made from the records of `<flow>.join` by its agent, under the lock of the run's row.

CREATE TABLE runs (
    parent       text    COLLATE "C" NOT NULL,
    -- The job's step that began it.
    seq          integer NOT NULL,
    flow         text    NOT NULL,
    stage        text    NOT NULL,
    input        bytea   NOT NULL,
    -- Of a wait: the signal; the input is then what the stage was handed.
    signal       text,
    timeout_ms   bigint,
    first_child  integer NOT NULL,
    born_us      bigint  NOT NULL,
    keys_of      text    COLLATE "C",
    -- The job from which on cancels count, of a run that compensates for a cancelled one.
    shielded     text    COLLATE "C",
    -- The job's last step, and how many commands and calls of the run are known.
    step         integer NOT NULL,
    commands     integer NOT NULL DEFAULT 0,
    calls        integer NOT NULL DEFAULT 0,
    -- The last event that the code has seen.
    seen         bigint  NOT NULL DEFAULT 0,
    status       text    NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'parked', 'failed', 'ended')),
    -- What it waits for, in words.
    waits        text[]  NOT NULL DEFAULT '{}',
    began_at     timestamptz NOT NULL DEFAULT now(),
    ended_at     timestamptz,
    PRIMARY KEY (parent, seq)
) WITH (fillfactor = 70);
CREATE INDEX runs_open ON runs (began_at) WHERE status <> 'ended';
CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;

-- An event happens once: the key sees to that. Run 0 is that of a job whose next run is still to come.
CREATE TABLE run_events (
    parent       text    COLLATE "C" NOT NULL,
    run          integer NOT NULL,
    position     bigint  NOT NULL GENERATED ALWAYS AS IDENTITY,
    kind         text    NOT NULL CHECK (kind IN ('start', 'call', 'timer', 'signal', 'cancel', 'redrive')),
    ref          text    NOT NULL,
    detail       text    NOT NULL,
    value        bytea   NOT NULL,
    at_us        bigint  NOT NULL,
    -- The record that told of it: it alone writes the step that follows, again if it comes again.
    topic_id     uuid    NOT NULL,
    partition    integer NOT NULL,
    "offset"     bigint  NOT NULL,
    -- The job's step that followed, if any, and how it ended the run: `status`, and for a hand-off
    -- `to`, with the payload or the error.
    step         integer,
    end_status   text,
    end_to       text,
    end_type     text,
    end_value    bytea,
    happened_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (parent, run, kind, ref)
);
-- A signal, and a record that cancels, are for one run of their job, also if they come again when it
-- has begun another.
CREATE UNIQUE INDEX run_events_signals ON run_events (parent, ref) WHERE kind = 'signal';
CREATE UNIQUE INDEX run_events_cancels ON run_events (parent, topic_id, partition, "offset") WHERE kind = 'cancel';
CREATE INDEX run_events_by_time ON run_events USING brin (happened_at);

CREATE TABLE run_commands (
    parent       text    COLLATE "C" NOT NULL,
    run          integer NOT NULL,
    -- Its place in the code's order.
    n            integer NOT NULL,
    kind         text    NOT NULL CHECK (kind IN ('call', 'sleep', 'signal')),
    -- The stage that is called, or the signal.
    name         text    NOT NULL,
    -- Of a call: the child's number, its payload's type, the payload; and whether a cancelled run made it.
    child        integer,
    ce_type      text    NOT NULL DEFAULT '',
    value        bytea   NOT NULL DEFAULT '',
    shielded     boolean NOT NULL DEFAULT false,
    due_us       bigint,
    -- The event that it followed.
    position     bigint  NOT NULL,
    PRIMARY KEY (parent, run, n)
);
