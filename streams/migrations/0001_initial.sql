-- First schema: projection of job-state, claims of suspects, ledger of effects.

-- Fold of job-state by seq: one row per job, rebuilt from the topic at will.
CREATE TABLE jobs (
    trace_id    text        PRIMARY KEY,
    flow        text        NOT NULL,
    stage       text        NOT NULL,
    status      text        NOT NULL CHECK (status IN ('running', 'waiting', 'done', 'failed', 'cancelled')),
    seq         integer     NOT NULL CHECK (seq >= 1),
    attempts    integer     NOT NULL CHECK (attempts >= 0),
    data        jsonb,
    error       jsonb,
    parent      text,
    worker      text,
    usage       jsonb,
    handed_to   text[]      NOT NULL DEFAULT '{}',
    born_at     timestamptz,
    updated_at  timestamptz NOT NULL
);
CREATE INDEX jobs_by_status ON jobs (status, updated_at DESC, trace_id);
CREATE INDEX jobs_by_time ON jobs (updated_at DESC, trace_id);

-- Every committed step, append-only, keyed by the coordinates of its job-state record. A rebuild of
-- jobs never drops it: compaction takes old records out of the topic.
CREATE TABLE job_history (
    topic_id            uuid        NOT NULL,
    "partition"         integer     NOT NULL,
    "offset"            bigint      NOT NULL,
    trace_id            text        NOT NULL,
    seq                 integer     NOT NULL,
    flow                text        NOT NULL,
    stage               text        NOT NULL,
    status              text        NOT NULL,
    attempts            integer     NOT NULL,
    handed_to           text[]      NOT NULL DEFAULT '{}',
    data                jsonb,
    error               jsonb,
    link                text,
    worker              text,
    consumed_topic      text,
    consumed_topic_id   uuid,
    consumed_partition  integer,
    consumed_offset     bigint,
    born_us             bigint,
    produced_us         bigint,
    polled_us           bigint,
    started_us          bigint,
    finished_us         bigint,
    committed_us        bigint      NOT NULL,
    updated_at          timestamptz NOT NULL,
    PRIMARY KEY (topic_id, "partition", "offset")
);
CREATE INDEX job_history_by_step ON job_history (trace_id, seq);
-- How far a topic is known to be consumed: a group that was reset below it brings suspects.
CREATE INDEX job_history_by_consumed ON job_history (consumed_topic_id, consumed_partition, consumed_offset);

-- Next offset to apply of each job-state partition, advanced in the transaction that applies.
CREATE TABLE projection_offsets (
    topic_id     uuid    NOT NULL,
    "partition"  integer NOT NULL,
    next_offset  bigint  NOT NULL,
    topic        text    NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic_id, "partition")
);

-- Which record owns a step. The same record again is let through, another one is the duplicate.
CREATE TABLE claims (
    trace_id     text    NOT NULL,
    stage        text    NOT NULL,
    seq          integer NOT NULL,
    generation   integer NOT NULL DEFAULT 0,
    topic_id     uuid    NOT NULL,
    "partition"  integer NOT NULL,
    "offset"     bigint  NOT NULL,
    claimed_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (trace_id, stage, seq, generation)
);

-- How many suspects were skipped, by stage and reason; counts deliveries, not jobs.
CREATE TABLE skips (
    flow     text   NOT NULL,
    stage    text   NOT NULL,
    reason   text   NOT NULL CHECK (reason IN ('duplicate', 'finished')),
    records  bigint NOT NULL,
    last_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (flow, stage, reason)
);

-- Ledger of side effects, one row per idempotency key.
CREATE TABLE effects (
    key          text        PRIMARY KEY,
    trace_id     text        NOT NULL,
    flow         text        NOT NULL,
    stage        text        NOT NULL,
    name         text        NOT NULL,
    fingerprint  text        NOT NULL,
    status       text        NOT NULL CHECK (status IN ('claimed', 'done', 'in_doubt')),
    idempotent   boolean     NOT NULL,
    result       jsonb,
    slot         integer     NOT NULL,
    incarnation  text        NOT NULL,
    -- Rises with each claim: a settlement by an older one is recognised.
    fence        bigint      NOT NULL DEFAULT 1,
    calls        integer     NOT NULL DEFAULT 1,
    leased_until timestamptz NOT NULL,
    claimed_at   timestamptz NOT NULL DEFAULT now(),
    settled_at   timestamptz,
    note         text
);
CREATE INDEX effects_open ON effects (status, leased_until) WHERE status <> 'done';
CREATE INDEX effects_by_trace ON effects (trace_id);
