-- What `doctor` and `demo` ask beside the queries of the projection and the ledger.

-- name: rejects
-- Records of job-state that the projection could not read.
SELECT count(*) AS records FROM projection_rejects;

-- name: terminal_jobs
SELECT
    count(*) FILTER (WHERE status = 'done') AS done,
    count(*) FILTER (WHERE status = 'failed') AS failed,
    count(*) FILTER (WHERE status NOT IN ('done', 'failed')) AS open
FROM jobs WHERE flow = %(flow)s;

-- name: doubled_steps
-- Steps that were committed more than once: (traceId, seq) is the identity of a step.
SELECT count(*) AS steps FROM (
    SELECT 1 FROM job_history GROUP BY trace_id, seq HAVING count(*) > 1
) AS doubled;

-- name: effects_by_status
SELECT status, count(*) AS effects FROM effects
WHERE flow = %(flow)s GROUP BY status;

-- name: acting_jobs
-- Jobs of the mail flow whose result names what the desk filed for them.
SELECT count(*) AS jobs FROM jobs
WHERE flow = %(flow)s AND status = 'done' AND data ->> 'number' IS NOT NULL;

-- name: span_of_work
-- Seconds from the first birth to the last commit.
SELECT (max(committed_us) - min(born_us)) / 1e6::float8 AS seconds FROM job_history
WHERE flow = %(flow)s;

-- name: longest_story
-- A job to show: one with as many steps and effects as any.
SELECT step.trace_id FROM job_history AS step
LEFT JOIN effects AS effect ON effect.trace_id = step.trace_id
WHERE step.flow = %(flow)s
GROUP BY step.trace_id
ORDER BY count(DISTINCT step.seq) DESC, count(effect.key) DESC, step.trace_id LIMIT 1;
