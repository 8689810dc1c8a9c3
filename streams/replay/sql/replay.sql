-- What a replay compares with. Its session is read-only. JSON travels as text, so that it stays as it was.

-- name: read_only
SET default_transaction_read_only = on;

-- name: steps_at
-- The steps that consumed the records at these places, with whether the job has none later at that stage.
SELECT h.consumed_topic_id, h.consumed_partition, h.consumed_offset,
       h.trace_id, h.seq, h.flow, h.stage, h.status, h.handed_to, h.data::text AS data, h.error, h.committed_us,
       NOT EXISTS (
           SELECT FROM job_history AS later
           WHERE later.trace_id = h.trace_id AND later.seq > h.seq AND later.stage = h.stage
       ) AS is_last
FROM json_to_recordset(%(places)s::json) AS place(topic_id uuid, "partition" integer, "offset" bigint)
JOIN job_history AS h
  ON h.consumed_topic_id = place.topic_id AND h.consumed_partition = place."partition"
 AND h.consumed_offset = place."offset"
ORDER BY h.committed_us DESC;

-- name: known_steps
-- Which of these steps are done, whatever record led to them.
SELECT step.trace_id, step.seq
FROM json_to_recordset(%(steps)s::json) AS step(trace_id text, seq integer, stage text)
WHERE EXISTS (
    SELECT FROM job_history AS h
    WHERE h.trace_id = step.trace_id AND h.seq = step.seq AND h.stage = step.stage
);

-- name: effects_of
SELECT key, trace_id, stage, name, status, fingerprint, result::text AS result
FROM effects
WHERE trace_id IN (SELECT json_array_elements_text(%(jobs)s::json))
ORDER BY claimed_at, key;

-- name: consumed_by
-- The records that the steps of these jobs consumed, in the order of the steps.
SELECT trace_id, seq, flow, stage, consumed_topic, consumed_topic_id, consumed_partition, consumed_offset
FROM job_history
WHERE trace_id IN (SELECT json_array_elements_text(%(jobs)s::json))
ORDER BY trace_id, seq, topic_id, "partition", "offset";

-- name: descendants
-- '0' is the character after '/'.
SELECT trace_id FROM jobs
WHERE trace_id > %(job)s || '/' AND trace_id < %(job)s || '0'
ORDER BY trace_id;

-- name: forks_at
-- Of steps that forked, or began a run or a wait: where their states lie, and what the join agent has written down
-- of them.
SELECT step.trace_id, step.seq, h.flow, h.topic_id, h."partition", h."offset",
       j.stage, j.first_branch, j.expected, r.parent IS NOT NULL AS begun, r.signal
FROM json_to_recordset(%(steps)s::json) AS step(trace_id text, seq integer)
JOIN job_history AS h ON h.trace_id = step.trace_id AND h.seq = step.seq
LEFT JOIN joins AS j ON j.parent = step.trace_id AND j.seq = step.seq
LEFT JOIN runs AS r ON r.parent = step.trace_id AND r.seq = step.seq
ORDER BY h.committed_us DESC;

-- name: first_steps
-- The records that these jobs began with.
SELECT trace_id, seq, flow, stage, consumed_topic, consumed_topic_id, consumed_partition, consumed_offset
FROM job_history
WHERE trace_id IN (SELECT json_array_elements_text(%(jobs)s::json)) AND seq = 1
ORDER BY trace_id, topic_id, "partition", "offset";

-- name: branches
-- What a join gave to its stage.
SELECT branch, status, value
FROM join_arrivals
WHERE parent = %(parent)s AND branch >= %(from)s AND branch < %(end)s AND NOT late
ORDER BY branch;
