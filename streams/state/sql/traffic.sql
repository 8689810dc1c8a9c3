-- What went over the edges of a flow in a window of time, [since, until), and in the one before it,
-- [before, since). Times are epoch microseconds of the steps' commits.

-- name: handed_over
-- Steps that ended somewhere, by where to. A wait is no end: its job comes back to the same stage.
SELECT
    stage AS source,
    CASE status WHEN 'failed' THEN '(dead letters)' WHEN 'cancelled' THEN '(cancelled)' ELSE coalesce(target, '(done)') END AS target,
    count(*) FILTER (WHERE committed_us >= %(since_us)s) AS jobs,
    count(*) FILTER (WHERE committed_us < %(since_us)s) AS jobs_before
FROM job_history
LEFT JOIN LATERAL unnest(handed_to) AS target ON true
WHERE flow = %(flow)s AND status <> 'waiting' AND committed_us >= %(before_us)s AND committed_us < %(until_us)s
GROUP BY 1, 2;

-- name: submitted
-- Jobs by the stage of their first step, however that ended.
SELECT
    stage AS target,
    count(*) FILTER (WHERE committed_us >= %(since_us)s) AS jobs,
    count(*) FILTER (WHERE committed_us < %(since_us)s) AS jobs_before
FROM job_history
WHERE flow = %(flow)s AND seq = 1 AND committed_us >= %(before_us)s AND committed_us < %(until_us)s
GROUP BY 1;

-- name: arrived
-- Steps that ended, by where their job had come from: the last stage that handed it on, or nobody. Each
-- step costs a look into the index, so of many jobs one in `sample` is taken.
SELECT
    coalesce(came.stage, '(submit)') AS source,
    step.stage AS target,
    count(*) AS ended,
    count(*) FILTER (WHERE step.status = 'failed') AS failed,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY step.committed_us - step.produced_us) / 1e6 AS p50_s,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY step.committed_us - step.produced_us) / 1e6 AS p95_s
FROM job_history AS step
LEFT JOIN LATERAL (
    SELECT earlier.stage FROM job_history AS earlier
    WHERE earlier.trace_id = step.trace_id AND earlier.seq < step.seq AND earlier.status = 'running'
    ORDER BY earlier.seq DESC LIMIT 1
) AS came ON true
WHERE step.flow = %(flow)s AND step.status <> 'waiting' AND step.committed_us >= %(since_us)s AND step.committed_us < %(until_us)s
  AND (%(sample)s = 1 OR (hashtext(step.trace_id) & 2147483647) %% %(sample)s = 0)
GROUP BY 1, 2;
