-- The timekeeper's statements: one transaction per batch.

-- name: positions
-- Next offset of each partition that was ever applied; a partition without a row stands at 0.
SELECT "partition", next_offset FROM timer_offsets WHERE topic_id = %(topic_id)s;

-- name: seed_positions
-- A row to lock for partitions that have none.
INSERT INTO timer_offsets (topic_id, "partition", next_offset, topic)
SELECT %(topic_id)s, p, 0, %(topic)s FROM unnest(%(partitions)s::int[]) AS p ORDER BY p
ON CONFLICT DO NOTHING;

-- name: lock_positions
-- In one order, so that two timekeepers cannot deadlock; a zombie waits here and then reads the truth.
SELECT "partition", next_offset FROM timer_offsets
WHERE topic_id = %(topic_id)s AND "partition" = ANY (%(partitions)s)
ORDER BY "partition" FOR UPDATE;

-- name: advance_positions
UPDATE timer_offsets AS held
SET next_offset = moved.to_offset, topic = %(topic)s, updated_at = now()
FROM unnest(%(partitions)s::int[], %(to_offsets)s::bigint[]) AS moved ("partition", to_offset)
WHERE held.topic_id = %(topic_id)s AND held."partition" = moved."partition";

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
