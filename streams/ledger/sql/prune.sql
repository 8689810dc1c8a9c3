-- Claims, effects, joins and runs that no record can ask for any more. Each statement looks at one slice of time, from
-- the oldest on, so its cost does not depend on how much is old and must stay.

-- name: clock
SELECT now() AS value;

-- name: claim_slice
-- The end of the slice that begins after `after`: so many rows, and all that share the last one's time.
SELECT coalesce(
    (SELECT claimed_at FROM claims WHERE claimed_at > %(after)s AND claimed_at < %(before)s
     ORDER BY claimed_at OFFSET %(rows)s - 1 LIMIT 1),
    (SELECT max(claimed_at) FROM claims WHERE claimed_at > %(after)s AND claimed_at < %(before)s)
) AS value;

-- name: prune_claims
-- Claims of jobs that are over, except those of steps that a dead letter or a timer can bring back: letters
-- do not expire, and a second redrive is known by the claim of the first.
WITH doomed AS (
    SELECT c.trace_id, c.stage, c.seq, c.generation
    FROM claims AS c JOIN jobs AS j USING (trace_id)
    WHERE c.claimed_at > %(after)s AND c.claimed_at <= %(upto)s
      AND j.status IN ('done', 'cancelled') AND j.updated_at < %(before)s
      AND NOT EXISTS (
          SELECT FROM job_history AS h
          WHERE h.trace_id = c.trace_id AND h.seq = c.seq - 1 AND h.status IN ('failed', 'waiting')
      )
    FOR UPDATE OF c SKIP LOCKED
), pruned AS (
    DELETE FROM claims AS c USING doomed
    WHERE NOT %(dry_run)s AND c.trace_id = doomed.trace_id AND c.stage = doomed.stage
      AND c.seq = doomed.seq AND c.generation = doomed.generation
)
SELECT count(*) AS value FROM doomed;

-- name: effect_slice
SELECT coalesce(
    (SELECT claimed_at FROM effects
     WHERE status IN ('done', 'released') AND claimed_at > %(after)s AND claimed_at < %(before)s
     ORDER BY claimed_at OFFSET %(rows)s - 1 LIMIT 1),
    (SELECT max(claimed_at) FROM effects
     WHERE status IN ('done', 'released') AND claimed_at > %(after)s AND claimed_at < %(before)s)
) AS value;

-- name: prune_effects
-- Effects of jobs that are over. Those of failed and parked jobs stay: a redrive asks for them again; and so
-- do those under whose keys a rerun is not over, or not as long ago as this, and those of their children, all the
-- way down: the rerun's children ask for them.
WITH doomed AS (
    SELECT e.key
    FROM effects AS e JOIN jobs AS j USING (trace_id)
    WHERE e.status IN ('done', 'released') AND e.claimed_at > %(after)s AND e.claimed_at <= %(upto)s
      AND j.status IN ('done', 'cancelled') AND j.updated_at < %(before)s
      AND NOT EXISTS (
          SELECT FROM reruns AS r LEFT JOIN jobs AS again ON again.trace_id = r.trace_id
          WHERE r.keys_of = ANY(ARRAY(
                    SELECT array_to_string((string_to_array(e.trace_id, '/'))[:depth], '/')
                    FROM generate_series(1, array_length(string_to_array(e.trace_id, '/'), 1)) AS depth))
            AND r.trace_id <> r.keys_of AND NOT coalesce(
              again.status IN ('done', 'cancelled') AND again.updated_at < %(before)s, false)
      )
    FOR UPDATE OF e SKIP LOCKED
), pruned AS (
    DELETE FROM effects AS e USING doomed WHERE NOT %(dry_run)s AND e.key = doomed.key
)
SELECT count(*) AS value FROM doomed;

-- name: arrival_slice
SELECT coalesce(
    (SELECT arrived_at FROM join_arrivals WHERE arrived_at > %(after)s AND arrived_at < %(before)s
     ORDER BY arrived_at OFFSET %(rows)s - 1 LIMIT 1),
    (SELECT max(arrived_at) FROM join_arrivals WHERE arrived_at > %(after)s AND arrived_at < %(before)s)
) AS value;

-- name: prune_arrivals
-- Branches of joins that go, and such as no fork ever expected: those go before their joins do. A join whose
-- parent is not over stays whole: it still waits, or a redrive reads its results again.
WITH doomed AS (
    SELECT a.parent, a.branch
    FROM join_arrivals AS a
    WHERE a.arrived_at > %(after)s AND a.arrived_at <= %(upto)s
      AND NOT EXISTS (
          SELECT FROM joins AS j LEFT JOIN jobs AS over ON over.trace_id = j.parent
          WHERE j.parent = a.parent
            AND a.branch >= j.first_branch AND a.branch < j.first_branch + j.expected
            AND NOT coalesce(
                j.status IN ('joined', 'cancelled') AND j.closed_at < %(before)s
                AND over.status IN ('done', 'cancelled') AND over.updated_at < %(before)s, false)
      )
    FOR UPDATE OF a SKIP LOCKED
), pruned AS (
    DELETE FROM join_arrivals AS a USING doomed
    WHERE NOT %(dry_run)s AND a.parent = doomed.parent AND a.branch = doomed.branch
)
SELECT count(*) AS value FROM doomed;

-- name: join_slice
SELECT coalesce(
    (SELECT closed_at FROM joins WHERE closed_at > %(after)s AND closed_at < %(before)s
     ORDER BY closed_at OFFSET %(rows)s - 1 LIMIT 1),
    (SELECT max(closed_at) FROM joins WHERE closed_at > %(after)s AND closed_at < %(before)s)
) AS value;

-- name: prune_joins
WITH doomed AS (
    SELECT j.parent, j.seq
    FROM joins AS j JOIN jobs AS over ON over.trace_id = j.parent
    WHERE j.closed_at > %(after)s AND j.closed_at <= %(upto)s AND j.status IN ('joined', 'cancelled')
      AND over.status IN ('done', 'cancelled') AND over.updated_at < %(before)s
    FOR UPDATE OF j SKIP LOCKED
), pruned AS (
    DELETE FROM joins AS j USING doomed
    WHERE NOT %(dry_run)s AND j.parent = doomed.parent AND j.seq = doomed.seq
)
SELECT count(*) AS value FROM doomed;

-- name: event_slice
SELECT coalesce(
    (SELECT happened_at FROM run_events WHERE happened_at > %(after)s AND happened_at < %(before)s
     ORDER BY happened_at OFFSET %(rows)s - 1 LIMIT 1),
    (SELECT max(happened_at) FROM run_events WHERE happened_at > %(after)s AND happened_at < %(before)s)
) AS value;

-- name: prune_events
-- Events of runs that go, and such as belong to no run: signals that nobody waited for, timers of runs that were
-- pruned. A run that is not over, or whose job is not, keeps its whole journal: it is played from the beginning.
WITH doomed AS (
    SELECT e.parent, e.run, e.kind, e.ref
    FROM run_events AS e
    WHERE e.happened_at > %(after)s AND e.happened_at <= %(upto)s
      AND NOT EXISTS (
          SELECT FROM runs AS r LEFT JOIN jobs AS over ON over.trace_id = r.parent
          WHERE r.parent = e.parent AND r.seq = e.run
            AND NOT coalesce(
                r.status = 'ended' AND r.ended_at < %(before)s
                AND over.status IN ('done', 'cancelled') AND over.updated_at < %(before)s, false)
      )
    FOR UPDATE OF e SKIP LOCKED
), pruned AS (
    DELETE FROM run_events AS e USING doomed
    WHERE NOT %(dry_run)s AND e.parent = doomed.parent AND e.run = doomed.run AND e.kind = doomed.kind AND e.ref = doomed.ref
)
SELECT count(*) AS value FROM doomed;

-- name: run_slice
SELECT coalesce(
    (SELECT ended_at FROM runs WHERE ended_at > %(after)s AND ended_at < %(before)s
     ORDER BY ended_at OFFSET %(rows)s - 1 LIMIT 1),
    (SELECT max(ended_at) FROM runs WHERE ended_at > %(after)s AND ended_at < %(before)s)
) AS value;

-- name: prune_runs
-- With what they asked for.
WITH doomed AS (
    SELECT r.parent, r.seq
    FROM runs AS r JOIN jobs AS over ON over.trace_id = r.parent
    WHERE r.ended_at > %(after)s AND r.ended_at <= %(upto)s AND r.status = 'ended'
      AND over.status IN ('done', 'cancelled') AND over.updated_at < %(before)s
    FOR UPDATE OF r SKIP LOCKED
), asked AS (
    DELETE FROM run_commands AS c USING doomed
    WHERE NOT %(dry_run)s AND c.parent = doomed.parent AND c.run = doomed.seq
), pruned AS (
    DELETE FROM runs AS r USING doomed
    WHERE NOT %(dry_run)s AND r.parent = doomed.parent AND r.seq = doomed.seq
)
SELECT count(*) AS value FROM doomed;
