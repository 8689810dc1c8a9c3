-- What a rerun asks and writes. The steps of the original come from `job_history`.

-- name: rerun_steps
-- All steps of a job, with their output as the text that it was written as.
SELECT trace_id, seq, flow, stage, handed_to, data::text AS data,
       consumed_topic, consumed_topic_id, consumed_partition, consumed_offset
FROM job_history WHERE trace_id = %(job)s
ORDER BY seq, topic_id, "partition", "offset";

-- name: rerun_row
SELECT trace_id, keys_of FROM reruns WHERE trace_id = %(job)s;

-- name: children_before
-- How many children a job had before its step `seq`, over all its forks and runs.
SELECT coalesce(max(past), 0) AS children
FROM (
    SELECT first_branch + expected AS past FROM joins WHERE parent = %(job)s AND seq < %(seq)s
    UNION ALL SELECT first_child + calls FROM runs WHERE parent = %(job)s AND seq < %(seq)s
) AS had;

-- name: parked_reruns
-- Reruns, or their children, that do their effects under the keys of this job, and wait at this stage. A rerun's
-- child of a number has the keys of the original's.
SELECT again.trace_id FROM reruns AS r
JOIN jobs AS again ON again.trace_id = r.trace_id || substr(%(job)s, length(r.keys_of) + 1)
WHERE r.keys_of = ANY(%(lineage)s) AND again.stage = %(stage)s AND again.status = 'waiting'
ORDER BY again.trace_id;

-- name: job_end
SELECT status, updated_at FROM jobs WHERE trace_id = %(job)s;

-- name: oldest_child_end
-- Of the children of a job, all the way down, those that are over: when the first of them was.
SELECT min(updated_at) AS ended FROM jobs
WHERE trace_id > %(job)s || '/' AND trace_id < %(job)s || '0' AND status IN ('done', 'cancelled');

-- name: kept_branches
SELECT count(*) AS branches FROM join_arrivals
WHERE parent = %(parent)s AND branch >= %(from)s AND branch < %(end)s AND NOT late;

-- name: record_rerun
-- The first to ask for an id decides under whose keys it is done.
INSERT INTO reruns (trace_id, rerun_of, stage, label, keys_of, who, why)
VALUES (%(job)s, %(rerun_of)s, %(stage)s, %(label)s, %(keys_of)s, %(who)s, %(why)s)
ON CONFLICT (trace_id) DO NOTHING;
