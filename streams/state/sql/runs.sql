-- What people ask of runs: those of a job, what has happened to them, what they asked for.

-- name: runs_of
SELECT
    parent, seq, flow, stage, signal, status, step, commands, calls, waits, began_at, ended_at
FROM runs
WHERE parent = %(parent)s
ORDER BY seq;

-- name: run_events_of
-- Those of run 0 came before a run that is still to begin.
SELECT run, position, kind, ref, detail, value, at_us, step, end_status, end_to, happened_at
FROM run_events
WHERE parent = %(parent)s
ORDER BY run, position;

-- name: run_commands_of
SELECT run, n, kind, name, child, shielded, due_us, position
FROM run_commands
WHERE parent = %(parent)s
ORDER BY run, n;

-- name: caller_of
SELECT run FROM run_commands WHERE parent = %(parent)s AND child = %(child)s LIMIT 1;

-- name: calls_under_way
-- Calls of a run that have not come, and their jobs as they stand.
SELECT
    c.child AS number, c.name, job.trace_id IS NOT NULL AS known, job.stage, job.status, job.handed_to, job.error,
    job.wakes_at, job.updated_at
FROM run_commands AS c
LEFT JOIN jobs AS job ON job.trace_id = c.parent || '/' || c.child
WHERE c.parent = %(parent)s AND c.run = %(run)s AND c.kind = 'call' AND NOT EXISTS (
    SELECT FROM run_events AS e
    WHERE e.parent = c.parent AND e.run = c.run AND e.kind = 'call' AND e.ref = c.child::text)
ORDER BY c.n
LIMIT %(limit)s;
