-- What people ask of forks: the joins of a job, its branches, and what keeps them. Branches are looked up by
-- their names, a child's being its parent's and its number, so no index on parents is needed.

-- name: joins_of
-- Until it has joined, a join's counts are those of the set as it is now.
SELECT
    j.parent, j.seq, j.flow, j.forked_by, j.stage, j.first_branch AS first, j.expected, j.rule,
    j.deadline_at, j.status, j.reason, j.closed_at,
    coalesce(timestamptz 'epoch' + fork.committed_us * interval '1 microsecond', j.forked_at) AS forked_at,
    CASE j.status WHEN 'joined' THEN j.done ELSE came.done END AS done,
    CASE j.status WHEN 'joined' THEN j.failed ELSE came.failed END AS failed,
    came.late
FROM joins AS j
LEFT JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE NOT a.late AND a.status = 'done') AS done,
        count(*) FILTER (WHERE NOT a.late AND a.status <> 'done') AS failed,
        count(*) FILTER (WHERE a.late) AS late
    FROM join_arrivals AS a
    WHERE a.parent = j.parent AND a.branch >= j.first_branch AND a.branch < j.first_branch + j.expected
) AS came ON true
LEFT JOIN LATERAL (
    SELECT step.committed_us FROM job_history AS step
    WHERE step.trace_id = j.parent AND step.seq = j.seq LIMIT 1
) AS fork ON true
WHERE j.parent = %(parent)s
ORDER BY j.seq;

-- name: branches
-- Of a range, in order: how each came to the join, if it did, and its job as it stands.
SELECT
    n AS number, a.status AS came, a.late, a.arrived_at,
    job.trace_id IS NOT NULL AS known, job.stage, job.status, job.handed_to, job.error, job.wakes_at,
    job.updated_at
FROM generate_series(%(first)s::integer, %(first)s::integer + %(expected)s::integer - 1) AS n
LEFT JOIN join_arrivals AS a ON a.parent = %(parent)s AND a.branch = n
LEFT JOIN jobs AS job ON job.trace_id = %(parent)s || '/' || n
WHERE %(whole)s OR a.status IS DISTINCT FROM 'done' OR a.late
ORDER BY n
LIMIT %(limit)s;

-- name: obstacles
-- Branches of a range without a result, by what they are at; `number` is the first of each kind.
SELECT
    job.trace_id IS NOT NULL AS known, job.stage, job.status, job.handed_to, job.error ->> 'kind' AS kind,
    job.wakes_at IS NOT NULL AS timed, min(job.wakes_at) AS wakes_at, count(*) AS branches, min(n) AS number
FROM generate_series(%(first)s::integer, %(first)s::integer + %(expected)s::integer - 1) AS n
LEFT JOIN join_arrivals AS a ON a.parent = %(parent)s AND a.branch = n
LEFT JOIN jobs AS job ON job.trace_id = %(parent)s || '/' || n
WHERE a.status IS DISTINCT FROM 'done' OR a.late
GROUP BY 1, 2, 3, 4, 5, 6
ORDER BY branches DESC, number;

-- name: last_branch
-- Which of the branches of a range that are over ended last.
SELECT job.trace_id, job.updated_at
FROM generate_series(%(first)s::integer, %(first)s::integer + %(expected)s::integer - 1) AS n
JOIN jobs AS job ON job.trace_id = %(parent)s || '/' || n
WHERE job.status IN ('done', 'failed', 'cancelled')
ORDER BY job.updated_at DESC
LIMIT 1;
