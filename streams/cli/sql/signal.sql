-- What `handoff signal` asks beside the queries of the projection.

-- name: waiting_run
-- The run, or wait, of a job that is not over: a job has one at a time.
SELECT stage, status, waits FROM runs
WHERE parent = %(job)s AND status <> 'ended' ORDER BY seq DESC LIMIT 1;

-- name: ever_waited
SELECT EXISTS (SELECT FROM runs WHERE flow = %(flow)s) AS so;
