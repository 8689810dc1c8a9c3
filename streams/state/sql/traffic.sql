-- What went over the edges of a flow in a window of time, [since, until), and in the one before it,
-- [before, since). Times are epoch microseconds of the steps' commits.

-- name: handed_over
-- Steps that ended somewhere, by where to. A wait is no end: its job comes back to the same stage; but a fork
-- tells the join agent what to expect. A child that is done comes there, too, besides any sink.
SELECT
    stage AS source,
    CASE status WHEN 'failed' THEN '(dead letters)' WHEN 'cancelled' THEN '(cancelled)' ELSE coalesce(target, '(done)') END AS target,
    count(*) FILTER (WHERE committed_us >= %(since_us)s) AS jobs,
    count(*) FILTER (WHERE committed_us < %(since_us)s) AS jobs_before
FROM job_history
LEFT JOIN LATERAL unnest(
    CASE WHEN status = 'done' AND position('/' IN trace_id) > 0 THEN handed_to || 'join'::text ELSE handed_to END
) AS target ON true
WHERE flow = %(flow)s AND (status <> 'waiting' OR (handed_to = '{join}' AND stage <> 'join')) AND committed_us >= %(before_us)s AND committed_us < %(until_us)s
GROUP BY 1, 2;

-- name: submitted
-- Jobs that nobody forked, by the stage of their first step, however that ended.
SELECT
    stage AS target,
    count(*) FILTER (WHERE committed_us >= %(since_us)s) AS jobs,
    count(*) FILTER (WHERE committed_us < %(since_us)s) AS jobs_before
FROM job_history
WHERE flow = %(flow)s AND seq = 1 AND position('/' IN trace_id) = 0
  AND committed_us >= %(before_us)s AND committed_us < %(until_us)s
GROUP BY 1;

-- name: forked
-- Children by the stage that forked them and that of their first step. A job forks anew only after its fork
-- before has joined, so the last fork before a child's first step is the child's.
SELECT
    coalesce(fork.stage, '(submit)') AS source,
    child.stage AS target,
    count(*) FILTER (WHERE child.committed_us >= %(since_us)s) AS jobs,
    count(*) FILTER (WHERE child.committed_us < %(since_us)s) AS jobs_before
FROM job_history AS child
LEFT JOIN LATERAL (
    SELECT step.stage FROM job_history AS step
    WHERE step.trace_id = regexp_replace(child.trace_id, '/[0-9]+$', '')
      AND step.status = 'waiting' AND step.handed_to = '{join}' AND step.stage <> 'join'
      AND step.committed_us <= child.committed_us
    ORDER BY step.seq DESC LIMIT 1
) AS fork ON true
WHERE child.flow = %(flow)s AND child.seq = 1 AND position('/' IN child.trace_id) > 0
  AND child.committed_us >= %(before_us)s AND child.committed_us < %(until_us)s
GROUP BY 1, 2;

-- name: arrived
-- Steps that ended, by where their job had come from: the last stage that handed it on or forked, or the one
-- that forked the job, or nobody. Each step costs a look into the index, so of many jobs one in `sample` is
-- taken.
SELECT
    coalesce(came.stage, fork.stage, '(submit)') AS source,
    step.stage AS target,
    count(*) AS ended,
    count(*) FILTER (WHERE step.status = 'failed') AS failed,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY step.committed_us - step.produced_us) / 1e6 AS p50_s,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY step.committed_us - step.produced_us) / 1e6 AS p95_s
FROM job_history AS step
LEFT JOIN LATERAL (
    SELECT earlier.stage FROM job_history AS earlier
    WHERE earlier.trace_id = step.trace_id AND earlier.seq < step.seq
      AND (earlier.status = 'running' OR (earlier.handed_to = '{join}' AND earlier.stage <> 'join'))
    ORDER BY earlier.seq DESC LIMIT 1
) AS came ON true
LEFT JOIN LATERAL (
    SELECT parent.stage FROM job_history AS parent
    WHERE came.stage IS NULL AND position('/' IN step.trace_id) > 0
      AND parent.trace_id = regexp_replace(step.trace_id, '/[0-9]+$', '')
      AND parent.status = 'waiting' AND parent.handed_to = '{join}' AND parent.stage <> 'join'
      AND parent.committed_us <= step.committed_us
    ORDER BY parent.seq DESC LIMIT 1
) AS fork ON true
WHERE step.flow = %(flow)s AND step.status <> 'waiting' AND step.committed_us >= %(since_us)s AND step.committed_us < %(until_us)s
  AND (%(sample)s = 1 OR (hashtext(step.trace_id) & 2147483647) %% %(sample)s = 0)
GROUP BY 1, 2;
