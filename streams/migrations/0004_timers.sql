-- Timers: records that come back to their topic at a time, and when a waiting job wakes.

ALTER TABLE jobs ADD COLUMN wakes_at timestamptz;
ALTER TABLE job_history ADD COLUMN wakes_at timestamptz;

-- One row per pending timer, keyed by the coordinates of its record on the timers topic: read twice,
-- it is one row. Returned ones are deleted, so the table holds what is pending and no more.
CREATE TABLE timers (
    topic_id      uuid        NOT NULL,
    "partition"   integer     NOT NULL,
    "offset"      bigint      NOT NULL,
    due_at        timestamptz NOT NULL,
    -- The job's id, which is the key of the returned record.
    trace_id      text        COLLATE "C" NOT NULL,
    return_topic  text        NOT NULL,
    value         bytea,
    headers       bytea       NOT NULL,
    -- Kafka refused the returned record for good: how often it was tried, and the last reason.
    refusals      integer     NOT NULL DEFAULT 0,
    refused       text,
    PRIMARY KEY (topic_id, "partition", "offset")
) WITH (
    -- Rows come and go like a queue's: dead ones must not pile up at the front of the index.
    autovacuum_vacuum_scale_factor = 0.05
);
-- What is due is the front of it, whatever else is pending.
CREATE INDEX timers_by_due ON timers (due_at);

-- Next offset to read of each partition of the timers topic, advanced in the transaction that stores.
CREATE TABLE timer_offsets (
    topic_id     uuid    NOT NULL,
    "partition"  integer NOT NULL,
    next_offset  bigint  NOT NULL,
    topic        text    NOT NULL,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic_id, "partition")
);

-- Records of the timers topic that are no timers: complete, so that nothing vanishes.
CREATE TABLE timer_rejects (
    topic_id      uuid        NOT NULL,
    "partition"   integer     NOT NULL,
    "offset"      bigint      NOT NULL,
    topic         text        NOT NULL,
    timestamp_ms  bigint      NOT NULL,
    key           bytea,
    value         bytea,
    headers       bytea,
    reason        text        NOT NULL,
    rejected_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic_id, "partition", "offset")
);
