-- Next offset of job-state that the tracer has yet to export.

-- name: tracer_positions
SELECT "partition", next_offset FROM tracer_offsets WHERE topic_id = %(topic_id)s

-- name: tracer_advance
INSERT INTO tracer_offsets (topic_id, "partition", next_offset)
SELECT %(topic_id)s, * FROM unnest(%(partitions)s::integer[], %(to_offsets)s::bigint[])
ON CONFLICT (topic_id, "partition") DO UPDATE
SET next_offset = greatest(tracer_offsets.next_offset, excluded.next_offset)
