-- Positions of a topic's partitions, in whichever table keeps them.

-- name: positions
-- Next offset of each partition that was ever applied; a partition without a row stands at 0.
SELECT "partition", next_offset FROM {table} WHERE topic_id = %(topic_id)s;

-- name: seed_positions
-- A row to lock for partitions that have none.
INSERT INTO {table} (topic_id, "partition", next_offset, topic)
SELECT %(topic_id)s, p, 0, %(topic)s FROM unnest(%(partitions)s::int[]) AS p ORDER BY p
ON CONFLICT DO NOTHING;

-- name: lock_positions
-- In one order, so that two agents cannot deadlock; a zombie waits here and then reads the truth.
SELECT "partition", next_offset FROM {table}
WHERE topic_id = %(topic_id)s AND "partition" = ANY (%(partitions)s)
ORDER BY "partition" FOR UPDATE;

-- name: advance_positions
UPDATE {table} AS held
SET next_offset = moved.to_offset, topic = %(topic)s, updated_at = now()
FROM unnest(%(partitions)s::int[], %(to_offsets)s::bigint[]) AS moved ("partition", to_offset)
WHERE held.topic_id = %(topic_id)s AND held."partition" = moved."partition";
