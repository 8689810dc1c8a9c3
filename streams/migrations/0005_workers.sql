-- Which processes run a stage and how they ended, and the journal of records that may kill them.

-- One row per start of a stage in a process. A row without an end whose process is gone says that it
-- died without a word: its successors then journal.
CREATE TABLE workers (
    -- Consumer group of the stage.
    stage_group  text        NOT NULL,
    slot         integer     NOT NULL,
    incarnation  text        NOT NULL,
    pid          integer     NOT NULL,
    host         text        NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    -- Moved every few seconds by the process itself.
    seen_at      timestamptz NOT NULL DEFAULT now(),
    -- When it stopped, or when somebody noticed that it is gone.
    ended_at     timestamptz,
    clean        boolean,
    PRIMARY KEY (stage_group, slot, incarnation),
    CHECK ((ended_at IS NULL) = (clean IS NULL))
);
-- Workers ask every few seconds; clean ends pile up and are of no interest to them.
CREATE INDEX workers_of_interest ON workers (stage_group, ended_at) WHERE clean IS NOT TRUE;

-- The journal: records whose handlers were started while it was on, and that are not committed yet.
CREATE TABLE deliveries (
    topic_id     uuid        NOT NULL,
    "partition"  integer     NOT NULL,
    "offset"     bigint      NOT NULL,
    stage_group  text        NOT NULL,
    job_id       text        COLLATE "C" NOT NULL,
    -- How often its handler was started by a process that then died, or by the one that runs it now.
    starts       integer     NOT NULL DEFAULT 1 CHECK (starts >= 1),
    -- Who started it last.
    slot         integer     NOT NULL,
    incarnation  text        NOT NULL,
    first_at     timestamptz NOT NULL DEFAULT now(),
    last_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic_id, "partition", "offset")
);
CREATE INDEX deliveries_by_group ON deliveries (stage_group);
