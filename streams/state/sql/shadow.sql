-- A second `jobs`, filled from the topic and compared with the first.

-- name: create_temporary_shadow
CREATE TEMP TABLE {table} (LIKE jobs INCLUDING ALL);

-- name: create_key_tables
-- Keys whose tombstones or unreadable records lie in the topic; jobs whose state the topic lacks.
CREATE TEMP TABLE stateless_keys (trace_id text COLLATE "C" PRIMARY KEY);
CREATE TEMP TABLE unseen_jobs (
    trace_id text COLLATE "C" PRIMARY KEY,
    excused boolean NOT NULL DEFAULT false
);

-- name: keep_keys
INSERT INTO stateless_keys SELECT DISTINCT unnest(%(keys)s::text[]) ON CONFLICT DO NOTHING;

-- name: unwritten_history
-- Steps of the topic that the history lacks.
SELECT trace_id, seq, "partition", "offset" FROM staged_steps AS step
WHERE NOT EXISTS (
    SELECT FROM job_history AS held
    WHERE held.topic_id = step.topic_id AND held."partition" = step."partition"
      AND held."offset" = step."offset"
)
ORDER BY "partition", "offset";

-- name: empty_staging
-- Several batches may be staged in one transaction.
TRUNCATE staged_steps;

-- name: begin_snapshot
-- The lock comes before the snapshot, so that no swap can come between the two: the rows of a table
-- that takes the place of `jobs` later would not be in it.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
SET LOCAL idle_in_transaction_session_timeout = 0;
LOCK TABLE jobs IN ACCESS SHARE MODE;

-- name: find_unseen
INSERT INTO unseen_jobs (trace_id)
SELECT held.trace_id FROM jobs AS held LEFT JOIN {table} AS log USING (trace_id)
WHERE log.seq IS NULL OR log.seq < held.seq;

-- name: excuse_stateless
-- The history knows the step as `jobs` has it, and a tombstone or an unreadable record of its key
-- lets compaction take the state away.
UPDATE unseen_jobs AS unseen SET excused = true
FROM stateless_keys AS key, jobs AS held, job_history AS step
WHERE key.trace_id = unseen.trace_id AND held.trace_id = unseen.trace_id
  AND step.trace_id = held.trace_id AND step.seq = held.seq AND step.topic_id = %(topic_id)s
  AND (step.stage, step.status, step.data::text)
      IS NOT DISTINCT FROM (held.stage, held.status, held.data::text);

-- name: excuse_superseded
-- The same for keys with a record that is yet to be applied.
UPDATE unseen_jobs AS unseen SET excused = true
FROM jobs AS held, job_history AS step
WHERE unseen.trace_id = ANY (%(keys)s) AND held.trace_id = unseen.trace_id
  AND step.trace_id = held.trace_id AND step.seq = held.seq AND step.topic_id = %(topic_id)s
  AND (step.stage, step.status, step.data::text)
      IS NOT DISTINCT FROM (held.stage, held.status, held.data::text);

-- name: count_unseen
SELECT count(*) FILTER (WHERE excused) AS excused, count(*) FILTER (WHERE NOT excused) AS others
FROM unseen_jobs;

-- name: differing_ids
-- JSON that is spelled differently may still be equal: that is for the reader to see.
SELECT trace_id FROM {table} AS log FULL JOIN jobs AS held USING (trace_id)
WHERE (
    log.seq IS NULL OR held.seq IS NULL
    OR (
        log.flow, log.stage, log.status, log.seq, log.attempts, log.data::text, log.error,
        log.parent, log.worker, log.usage::text, log.handed_to, log.born_at, log.updated_at,
        log.wakes_at, log.shielded
    ) IS DISTINCT FROM (
        held.flow, held.stage, held.status, held.seq, held.attempts, held.data::text, held.error,
        held.parent, held.worker, held.usage::text, held.handed_to, held.born_at, held.updated_at,
        held.wakes_at, held.shielded
    )
) AND NOT EXISTS (
    SELECT FROM unseen_jobs AS unseen WHERE unseen.excused AND unseen.trace_id = held.trace_id
)
ORDER BY trace_id;

-- name: jobs_of
SELECT
    trace_id, flow, stage, status, seq, attempts, data::text AS data, error, parent, worker,
    usage::text AS usage, handed_to, born_at, updated_at, wakes_at
FROM {table} WHERE trace_id = ANY (%(ids)s);

-- name: analyze
ANALYZE {table};

-- name: count_jobs
SELECT count(*) AS jobs FROM {table};
