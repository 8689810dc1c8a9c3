-- First schema: projection of job-state, claims of suspects, ledger of effects.
--
-- Ids are compared by bytes (COLLATE "C"), so that a prefix is a range of the index. Payloads are
-- json, not jsonb: jsonb refuses U+0000 and huge numbers, and one such job would stop all others.

-- Fold of job-state by seq: one row per job, rebuilt from the topic at will.
CREATE TABLE jobs (
    trace_id    text        COLLATE "C" PRIMARY KEY,
    flow        text        NOT NULL,
    stage       text        NOT NULL,
    status      text        NOT NULL CHECK (status IN ('running', 'waiting', 'done', 'failed', 'cancelled')),
    seq         integer     NOT NULL CHECK (seq >= 1),
    attempts    integer     NOT NULL CHECK (attempts >= 0),
    data        json,
    error       jsonb,
    parent      text        COLLATE "C",
    worker      text,
    usage       json,
    handed_to   text[]      NOT NULL DEFAULT '{}',
    born_at     timestamptz,
    updated_at  timestamptz NOT NULL
);
-- Both columns run the same way, so that a page starts by one row comparison, read backwards.
CREATE INDEX jobs_by_status ON jobs (status, updated_at, trace_id);
CREATE INDEX jobs_by_time ON jobs (updated_at, trace_id);

-- Every committed step, append-only, keyed by the coordinates of its job-state record. A rebuild of
-- jobs never drops it: compaction takes old records out of the topic.
CREATE TABLE job_history (
    topic_id            uuid        NOT NULL,
    "partition"         integer     NOT NULL,
    "offset"            bigint      NOT NULL,
    trace_id            text        COLLATE "C" NOT NULL,
    seq                 integer     NOT NULL,
    flow                text        NOT NULL,
    stage               text        NOT NULL,
    status              text        NOT NULL,
    attempts            integer     NOT NULL,
    handed_to           text[]      NOT NULL DEFAULT '{}',
    data                json,
    error               jsonb,
    usage               json,
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

-- Records of job-state that are no valid JobState: complete, so that nothing vanishes and a corrected
-- program can read them again.
CREATE TABLE projection_rejects (
    topic_id      uuid        NOT NULL,
    "partition"   integer     NOT NULL,
    "offset"      bigint      NOT NULL,
    topic         text        NOT NULL,
    timestamp_ms  bigint      NOT NULL,
    key           bytea,
    value         bytea,
    reason        text        NOT NULL,
    rejected_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic_id, "partition", "offset")
);

-- Which record owns a step. The same record again is let through, another one is the duplicate.
CREATE TABLE claims (
    trace_id     text    COLLATE "C" NOT NULL,
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
    key          text        COLLATE "C" PRIMARY KEY,
    trace_id     text        COLLATE "C" NOT NULL,
    flow         text        NOT NULL,
    stage        text        NOT NULL,
    name         text        NOT NULL,
    fingerprint  text        NOT NULL,
    -- released: known not to have happened; the next attempt starts afresh.
    status       text        NOT NULL CHECK (status IN ('claimed', 'released', 'done', 'in_doubt')),
    idempotent   boolean     NOT NULL,
    result       json,
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

-- Next offset of each job-state partition that the tracer has yet to export.
CREATE TABLE tracer_offsets (
    topic_id     uuid    NOT NULL,
    "partition"  integer NOT NULL,
    next_offset  bigint  NOT NULL,
    PRIMARY KEY (topic_id, "partition")
);
