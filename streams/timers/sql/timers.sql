-- The timekeeper's statements: one transaction per batch.

-- name: create_staging
-- Lives as long as the connection; emptied at each commit.
CREATE TEMP TABLE IF NOT EXISTS staged_timers (LIKE timers INCLUDING DEFAULTS) ON COMMIT DELETE ROWS;

-- name: copy_timers
COPY staged_timers (topic_id, "partition", "offset", due_at, trace_id, return_topic, value, headers)
FROM STDIN;

-- name: store_timers
-- A row that is there already came from the same record: positions that were dropped read it again.
INSERT INTO timers (topic_id, "partition", "offset", due_at, trace_id, return_topic, value, headers)
SELECT topic_id, "partition", "offset", due_at, trace_id, return_topic, value, headers
FROM staged_timers
ON CONFLICT DO NOTHING;

-- name: keep_reject
INSERT INTO timer_rejects (
    topic_id, "partition", "offset", topic, timestamp_ms, key, value, headers, reason
)
VALUES (
    %(topic_id)s, %(partition)s, %(offset)s, %(topic)s, %(timestamp_ms)s, %(key)s, %(value)s,
    %(headers)s, %(reason)s
)
ON CONFLICT DO NOTHING;
