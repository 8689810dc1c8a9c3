-- What the audit reads in Postgres. Pages by key, so that no statement takes long. `content` is the
-- beginning of a hash over what both sides can spell; `states.py` makes the same of a state record.
-- Filters that are NULL do not filter.

-- name: begin_snapshot
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL statement_timeout = '60 s';

-- name: end_snapshot
ROLLBACK;

-- name: pg_projected
SELECT "partition", next_offset FROM projection_offsets WHERE topic_id = %(topic_id)s;

-- name: pg_rejects
SELECT "partition", "offset" FROM projection_rejects WHERE topic_id = %(topic_id)s;

-- name: pg_sizes
-- Estimates by the planner's statistics, for progress.
SELECT coalesce(sum(greatest(reltuples, 0)), 0)::bigint AS rows FROM pg_class
WHERE oid IN ('jobs'::regclass, 'job_history'::regclass, 'effects'::regclass);

-- name: pg_history
-- Order by the columns, not by the texts of the same names: the index has the columns.
SELECT
    topic_id::text, "partition", "offset", trace_id, seq, flow, stage, status, consumed_topic_id::text,
    consumed_partition, consumed_offset, handed_to, substr(sha256(convert_to(concat_ws(
        chr(30), attempts::text, coalesce(data::text, ''), coalesce(error ->> 'kind', ''), coalesce(error ->> 'message', ''),
        coalesce(usage::text, ''), coalesce(worker, ''), array_to_string(handed_to, ','), coalesce(born_us::text, ''),
        ((extract(epoch FROM updated_at) * 1000000)::bigint)::text), 'UTF8')), 1, 8),
    committed_us / 1000, produced_us / 1000
FROM job_history AS h
WHERE (h.topic_id, h."partition", h."offset") > (%(after_topic)s::uuid, %(after_part)s, %(after_at)s)
  AND (%(flow)s::text IS NULL OR flow = %(flow)s)
  AND (%(since_us)s::bigint IS NULL OR committed_us >= %(since_us)s)
ORDER BY h.topic_id, h."partition", h."offset"
LIMIT %(limit)s;

-- name: pg_jobs
SELECT
    trace_id, seq, flow, stage, status, substr(sha256(convert_to(concat_ws(
        chr(30), attempts::text, coalesce(data::text, ''), coalesce(error ->> 'kind', ''), coalesce(error ->> 'message', ''),
        coalesce(usage::text, ''), coalesce(worker, ''), array_to_string(handed_to, ','),
        coalesce(((extract(epoch FROM born_at) * 1000000)::bigint)::text, ''),
        ((extract(epoch FROM updated_at) * 1000000)::bigint)::text), 'UTF8')), 1, 8),
    parent
FROM jobs
WHERE trace_id > %(after)s
  AND (%(flow)s::text IS NULL OR flow = %(flow)s)
  AND (%(since)s::timestamptz IS NULL OR updated_at >= %(since)s)
ORDER BY trace_id
LIMIT %(limit)s;

-- name: pg_effects
SELECT
    key, trace_id, flow, stage, name, status, idempotent, calls, past_unknown, leased_until <= now(),
    EXISTS (SELECT FROM effect_actions AS a WHERE a.key = e.key AND a.action = 'happened_twice')
FROM effects AS e
WHERE key > %(after)s
  AND (%(flow)s::text IS NULL OR flow = %(flow)s)
  AND (%(since)s::timestamptz IS NULL OR claimed_at >= %(since)s)
ORDER BY key
LIMIT %(limit)s;

-- name: pg_joins
SELECT parent, seq, flow, stage, first_branch, expected, status, done, failed,
    (extract(epoch FROM forked_at) * 1000)::bigint
FROM joins
WHERE (parent, seq) > (%(after)s, %(after_seq)s)
  AND (%(flow)s::text IS NULL OR flow = %(flow)s)
  AND (%(since)s::timestamptz IS NULL OR forked_at >= %(since)s)
ORDER BY parent, seq
LIMIT %(limit)s;

-- name: pg_join_arrivals
SELECT parent, branch, seq, status, substr(sha256(value), 1, 8)
FROM join_arrivals
WHERE (parent, branch) > (%(after)s, %(after_branch)s)
  AND (%(since)s::timestamptz IS NULL OR arrived_at >= %(since)s)
ORDER BY parent, branch
LIMIT %(limit)s;

-- name: pg_runs
SELECT parent, seq, status, (extract(epoch FROM began_at) * 1000)::bigint
FROM runs
WHERE (parent, seq) > (%(after)s, %(after_seq)s)
  AND (%(flow)s::text IS NULL OR flow = %(flow)s)
  AND (%(since)s::timestamptz IS NULL OR began_at >= %(since)s)
ORDER BY parent, seq
LIMIT %(limit)s;

-- name: pg_run_events
SELECT parent, run, kind, ref, detail, substr(sha256(value), 1, 8), topic_id::text, "partition", "offset", step,
    (extract(epoch FROM happened_at) * 1000)::bigint
FROM run_events
WHERE (parent, run, kind, ref) > (%(after)s, %(after_run)s, %(after_kind)s, %(after_ref)s)
  AND (%(since)s::timestamptz IS NULL OR happened_at >= %(since)s)
ORDER BY parent, run, kind, ref
LIMIT %(limit)s;

-- name: pg_known_runs
-- Positions (from 1) of the runs that are there by now, with a key that are `ended`.
SELECT asked.n FROM unnest(%(ids)s::text[], %(seqs)s::integer[], %(keys)s::text[])
    WITH ORDINALITY AS asked(parent, seq, key, n)
WHERE EXISTS (
    SELECT FROM runs AS r WHERE r.parent = asked.parent AND r.seq = asked.seq AND asked.key IN ('', r.status)
);

-- name: pg_known_events
-- Positions (from 1) of the events that a journal of the job has by now. `key` is `kind/ref`.
SELECT asked.n FROM unnest(%(ids)s::text[], %(keys)s::text[]) WITH ORDINALITY AS asked(parent, key, n)
WHERE EXISTS (SELECT FROM run_events AS e WHERE e.parent = asked.parent AND e.kind || '/' || e.ref = asked.key);

-- name: pg_known_joins
-- Positions (from 1) of the forks whose set is there by now and is as the topic says. `key` is what
-- it must be, `first/expected/status`; no status: any.
SELECT asked.n FROM unnest(%(ids)s::text[], %(seqs)s::integer[], %(stages)s::text[], %(keys)s::text[])
    WITH ORDINALITY AS asked(trace_id, seq, stage, key, n)
WHERE EXISTS (
    SELECT FROM joins AS j WHERE j.parent = asked.trace_id AND j.seq = asked.seq AND j.stage = asked.stage
    AND asked.key IN (format('%%s/%%s/', first_branch, expected), format('%%s/%%s/%%s', first_branch, expected, status))
);

-- name: pg_known_arrivals
-- Positions (from 1) of the branches that have come by now.
SELECT asked.n FROM unnest(%(ids)s::text[], %(branches)s::integer[])
    WITH ORDINALITY AS asked(parent, branch, n)
WHERE EXISTS (SELECT FROM join_arrivals AS a WHERE a.parent = asked.parent AND a.branch = asked.branch);

-- name: pg_known_steps
-- Positions (from 1) of the steps that the history has by now. `role`: what the stage must be to the
-- step, its `target` or itself; `called`: either; `ended`: itself, and the step failed or waits.
SELECT asked.n FROM unnest(%(ids)s::text[], %(seqs)s::integer[], %(stages)s::text[], %(roles)s::text[])
    WITH ORDINALITY AS asked(trace_id, seq, stage, role, n)
WHERE EXISTS (
    SELECT FROM job_history AS h WHERE h.trace_id = asked.trace_id AND h.seq = asked.seq
    AND CASE WHEN asked.stage IS NULL THEN true
             WHEN asked.role = 'target' THEN asked.stage = ANY (h.handed_to)
             WHEN asked.role = 'called' THEN asked.stage = ANY (h.handed_to) OR h.stage = asked.stage
             WHEN asked.role = 'ended' THEN h.stage = asked.stage AND h.status IN ('failed', 'waiting')
             ELSE h.stage = asked.stage END
);

-- name: pg_claimed_by_others
-- Positions (from 1) of the records whose step another record has claimed.
SELECT DISTINCT asked.n
FROM unnest(%(ids)s::text[], %(seqs)s::integer[], %(stages)s::text[], %(topics)s::uuid[], %(parts)s::integer[], %(ats)s::bigint[])
    WITH ORDINALITY AS asked(trace_id, seq, stage, topic_id, part, at, n)
JOIN claims AS c ON c.trace_id = asked.trace_id AND c.seq = asked.seq AND c.stage = asked.stage
WHERE (c.topic_id, c."partition", c."offset") <> (asked.topic_id, asked.part, asked.at);

-- name: pg_known_jobs
SELECT asked.n FROM unnest(%(ids)s::text[]) WITH ORDINALITY AS asked(trace_id, n)
WHERE EXISTS (SELECT FROM jobs AS j WHERE j.trace_id = asked.trace_id);

-- name: pg_owned_effects
-- Positions (from 1) of the effects that are gone by now, or whose job is known, or a rerun's child that does its
-- effects under the keys which such a child of the original would have.
SELECT asked.n FROM unnest(%(keys)s::text[]) WITH ORDINALITY AS asked(key, n)
WHERE NOT EXISTS (
    SELECT FROM effects AS e WHERE e.key = asked.key
    AND NOT EXISTS (SELECT FROM jobs AS j WHERE j.trace_id = e.trace_id)
    AND NOT EXISTS (
        SELECT FROM reruns AS r JOIN jobs AS j ON j.trace_id = r.trace_id || substr(e.trace_id, length(r.keys_of) + 1)
        WHERE r.keys_of = ANY(ARRAY(
            SELECT array_to_string((string_to_array(e.trace_id, '/'))[:depth], '/')
            FROM generate_series(1, array_length(string_to_array(e.trace_id, '/'), 1)) AS depth))
    )
);

-- name: pg_known_effects
-- Positions (from 1) of the keys that the ledger knows.
SELECT asked.n FROM unnest(%(keys)s::text[]) WITH ORDINALITY AS asked(key, n)
WHERE EXISTS (SELECT FROM effects AS e WHERE e.key = asked.key);

-- name: pg_answered_effects
-- Positions (from 1) of the effects that have an answer by now, or a living attempt, or a rerun under way
-- that does its effects under their keys, it or its children, and will come back to what may be repeated.
SELECT asked.n FROM unnest(%(keys)s::text[]) WITH ORDINALITY AS asked(key, n)
WHERE NOT EXISTS (
    SELECT FROM effects AS e WHERE e.key = asked.key
    AND (e.status = 'in_doubt' OR (e.status = 'claimed' AND e.leased_until <= now()
    AND NOT (e.idempotent AND EXISTS (
        SELECT FROM reruns AS r LEFT JOIN jobs AS j ON j.trace_id = r.trace_id
        WHERE r.keys_of = ANY(ARRAY(
            SELECT array_to_string((string_to_array(e.trace_id, '/'))[:depth], '/')
            FROM generate_series(1, array_length(string_to_array(e.trace_id, '/'), 1)) AS depth))
          AND coalesce(j.status, 'running') NOT IN ('done', 'cancelled')
    ))))
);
