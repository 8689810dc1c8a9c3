-- The projector's statements: one transaction per batch.

-- name: create_staging
-- Lives as long as the connection; emptied at each commit.
CREATE TEMP TABLE IF NOT EXISTS staged_steps (LIKE job_history, parent text, shielded text, is_last boolean)
ON COMMIT DELETE ROWS;

-- name: copy_steps
-- The order of the fields of `fold.Step`.
COPY staged_steps (
    topic_id, "partition", "offset", trace_id, seq, flow, stage, status, attempts,
    data, error, usage, link, worker,
    consumed_topic, consumed_topic_id, consumed_partition, consumed_offset,
    born_us, produced_us, polled_us, started_us, finished_us, committed_us,
    wakes_at, parent, shielded, handed_to, updated_at, is_last
) FROM STDIN;

-- name: append_history
INSERT INTO job_history (
    topic_id, "partition", "offset", trace_id, seq, flow, stage, status, attempts, handed_to,
    data, error, usage, link, worker,
    consumed_topic, consumed_topic_id, consumed_partition, consumed_offset,
    born_us, produced_us, polled_us, started_us, finished_us, committed_us, updated_at,
    wakes_at
)
SELECT
    topic_id, "partition", "offset", trace_id, seq, flow, stage, status, attempts, handed_to,
    data, error, usage, link, worker,
    consumed_topic, consumed_topic_id, consumed_partition, consumed_offset,
    born_us, produced_us, polled_us, started_us, finished_us, committed_us, updated_at,
    wakes_at
FROM staged_steps
ON CONFLICT DO NOTHING;

-- name: upsert_jobs
-- Into `jobs`, or a shadow of it. The guard by seq makes late and repeated records harmless.
INSERT INTO {table} AS held (
    trace_id, flow, stage, status, seq, attempts, data, error, parent, worker, usage, handed_to,
    born_at, updated_at, wakes_at, shielded
)
SELECT
    trace_id, flow, stage, status, seq, attempts, data, error, parent, worker, usage, handed_to,
    timestamptz 'epoch' + born_us * interval '1 microsecond', updated_at,
    wakes_at, shielded
FROM staged_steps
WHERE is_last
ORDER BY trace_id
ON CONFLICT (trace_id) DO UPDATE SET
    flow = excluded.flow, stage = excluded.stage, status = excluded.status, seq = excluded.seq,
    attempts = excluded.attempts, data = excluded.data, error = excluded.error,
    parent = excluded.parent, worker = excluded.worker, usage = excluded.usage,
    handed_to = excluded.handed_to, born_at = excluded.born_at, updated_at = excluded.updated_at,
    wakes_at = excluded.wakes_at, shielded = excluded.shielded
WHERE excluded.seq > held.seq;

-- name: keep_reject
INSERT INTO projection_rejects (
    topic_id, "partition", "offset", topic, timestamp_ms, key, value, reason
)
VALUES (
    %(topic_id)s, %(partition)s, %(offset)s, %(topic)s, %(timestamp_ms)s, %(key)s, %(value)s,
    %(reason)s
)
ON CONFLICT DO NOTHING;
