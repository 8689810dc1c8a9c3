-- What the command line reads. Filters that are NULL do not filter. JSON travels as text, so that
-- large numbers keep their digits.

-- name: list_jobs
SELECT
    trace_id, flow, stage, status, seq, attempts, data::text AS data, error, parent, worker,
    usage::text AS usage, handed_to, born_at, updated_at, wakes_at
FROM jobs
WHERE (%(status)s::text IS NULL OR status = %(status)s)
  AND (%(stage)s::text IS NULL OR stage = %(stage)s)
  AND (%(flow)s::text IS NULL OR flow = %(flow)s)
  AND (%(since)s::timestamptz IS NULL OR updated_at >= %(since)s)
  AND (NOT %(roots)s OR parent IS NULL)
  AND (
      %(after_time)s::timestamptz IS NULL
      OR (updated_at, trace_id) < (%(after_time)s, %(after_id)s::text COLLATE "C")
  )
ORDER BY updated_at DESC, trace_id DESC
LIMIT %(limit)s;

-- name: find_jobs
-- '~' sorts behind every character of an id. Children of a job that begins so are left out: a prefix of the
-- job means the job.
SELECT
    trace_id, flow, stage, status, seq, attempts, data::text AS data, error, parent, worker,
    usage::text AS usage, handed_to, born_at, updated_at, wakes_at
FROM jobs
WHERE trace_id >= %(prefix)s AND trace_id < %(prefix)s || '~'
  AND position('/' IN substr(trace_id, length(%(prefix)s) + 1)) = 0
ORDER BY trace_id
LIMIT %(limit)s;

-- name: history
SELECT
    topic_id, "partition", "offset", trace_id, seq, flow, stage, status, attempts, handed_to,
    data::text AS data, error, usage::text AS usage, link, worker,
    consumed_topic, consumed_topic_id, consumed_partition, consumed_offset,
    born_us, produced_us, polled_us, started_us, finished_us, committed_us, updated_at, wakes_at
FROM job_history
WHERE trace_id = %(trace_id)s
ORDER BY seq, topic_id, "partition", "offset";

-- name: counts
SELECT flow, stage, status, count(*) AS jobs
FROM jobs
WHERE (%(flow)s::text IS NULL OR flow = %(flow)s)
  AND (%(since)s::timestamptz IS NULL OR updated_at >= %(since)s)
GROUP BY flow, stage, status
ORDER BY flow, stage, status;

-- name: latencies
-- A job's end is the step that made its present, terminal state.
WITH ended AS (
    SELECT DISTINCT ON (job.trace_id) (step.committed_us - step.born_us) / 1e6 AS seconds
    FROM jobs AS job
    JOIN job_history AS step ON step.trace_id = job.trace_id AND step.seq = job.seq
    WHERE job.status IN ('done', 'failed', 'cancelled')
      AND step.born_us IS NOT NULL
      AND (%(flow)s::text IS NULL OR job.flow = %(flow)s)
      AND (%(since)s::timestamptz IS NULL OR job.updated_at >= %(since)s)
    ORDER BY job.trace_id, step.committed_us
)
SELECT
    count(*) AS jobs,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds)::float8 AS p50_s,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY seconds)::float8 AS p95_s
FROM ended;

-- name: effects_of
-- Of a rerun with the same effects those of its original, too, at the stages that it came through; of a rerun's
-- child those of the original's child of that number.
SELECT
    key, trace_id, flow, stage, name, status, idempotent, calls, result::text AS result, note,
    claimed_at, leased_until, settled_at
FROM effects
WHERE trace_id = %(trace_id)s
   OR (trace_id = (SELECT keys_of || substr(%(trace_id)s, 33) FROM reruns WHERE trace_id = left(%(trace_id)s, 32))
       AND stage IN (SELECT stage FROM job_history WHERE trace_id = %(trace_id)s))
ORDER BY claimed_at, key;
