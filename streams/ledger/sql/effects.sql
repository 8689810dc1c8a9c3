-- Ledger of effects. Each batch is one JSON parameter: cheap to write, and one plan for any size.
-- Rows are locked in the order of their keys, so that two workers cannot lock each other out.

-- name: insert_claims
-- The usual case: nobody has ever claimed these keys. Returns the keys that are now ours.
INSERT INTO effects (key, trace_id, flow, stage, name, fingerprint, idempotent, status, slot, incarnation, leased_until)
SELECT key, trace_id, flow, stage, name, fingerprint, idempotent, 'claimed', %(slot)s, %(incarnation)s,
       now() + make_interval(secs => %(lease_s)s)
FROM json_to_recordset(%(asks)s::json)
     AS ask(key text, trace_id text, flow text, stage text, name text, fingerprint text, idempotent boolean)
ORDER BY key COLLATE "C"
ON CONFLICT DO NOTHING
RETURNING key;

-- name: read_effects
SELECT key, status, fingerprint, idempotent, slot, incarnation, fence, calls, leased_until <= now() AS expired,
       result::text AS result, note
FROM effects
WHERE key IN (SELECT json_array_elements_text(%(keys)s::json));

-- name: retake_claims
-- Claim rows that are released, or whose attempt is dead, if they still are as they were read.
WITH ask AS (
    SELECT * FROM json_to_recordset(%(asks)s::json) AS ask(key text, fence bigint, status text, fingerprint text, idempotent boolean)
), held AS (
    SELECT key FROM effects WHERE key IN (SELECT key FROM ask) ORDER BY key FOR UPDATE
)
UPDATE effects AS e
SET status = 'claimed', fingerprint = ask.fingerprint, idempotent = ask.idempotent,
    slot = %(slot)s, incarnation = %(incarnation)s,
    fence = e.fence + 1, calls = e.calls + 1, claimed_at = now(),
    leased_until = now() + make_interval(secs => %(lease_s)s), note = NULL
FROM ask JOIN held USING (key)
WHERE e.key = ask.key AND e.fence = ask.fence AND e.status = ask.status
  -- A lease that was renewed since has an owner who lives.
  AND (e.status <> 'claimed' OR e.slot = %(slot)s OR e.leased_until <= now())
RETURNING e.key, e.fence;

-- name: note_effects
-- In doubt: the attempt is dead and cannot be repeated. Other arguments: only the note changes.
WITH told AS (
    SELECT * FROM json_to_recordset(%(told)s::json) AS told(key text, fence bigint, status text, note text)
), held AS (
    SELECT key FROM effects WHERE key IN (SELECT key FROM told) ORDER BY key FOR UPDATE
)
UPDATE effects AS e
SET status = CASE WHEN told.status = 'in_doubt' THEN 'in_doubt' ELSE e.status END, note = told.note
FROM told JOIN held USING (key)
WHERE e.key = told.key AND e.fence = told.fence
  AND (told.status IS DISTINCT FROM 'in_doubt'
       OR (e.status = 'claimed' AND (e.slot = %(slot)s OR e.leased_until <= now())))
RETURNING e.key;

-- name: end_attempts
-- What attempts say about their claims. Done is accepted from any attempt at a row that is not done,
-- also from one that was fenced: it happened. The rest is accepted from the last attempt only, and in
-- doubt only that it certainly did not happen.
WITH told AS (
    SELECT * FROM json_to_recordset(%(told)s::json)
                  AS told(key text, fingerprint text, status text, fence bigint, result text, note text)
), held AS (
    SELECT key FROM effects WHERE key IN (SELECT key FROM told) ORDER BY key FOR UPDATE
)
UPDATE effects AS e
SET status = CASE
        -- The answer to this claim was lost; an attempt before it may have called.
        WHEN told.fence IS NULL AND e.idempotent AND e.fence > 1 THEN 'claimed'
        ELSE told.status END,
    result = told.result::json,
    settled_at = CASE WHEN told.status = 'done' THEN now() END,
    leased_until = CASE WHEN told.status = 'done' THEN e.leased_until ELSE least(e.leased_until, now()) END,
    note = CASE
        WHEN told.status = 'done' AND (e.fence <> told.fence OR e.status <> 'claimed')
        THEN format('settled late, by attempt %%s of %%s', told.fence, e.fence)
        ELSE told.note END
FROM told JOIN held USING (key)
WHERE e.key = told.key AND e.status <> 'done'
  AND CASE WHEN told.status = 'done' THEN e.fingerprint = told.fingerprint
           ELSE (e.status = 'claimed' OR (e.status = 'in_doubt' AND told.status = 'released'))
                AND e.slot = %(slot)s AND e.incarnation = %(incarnation)s
                AND e.fence = coalesce(told.fence, e.fence) END
RETURNING e.key;

-- name: renew_leases
WITH live AS (
    SELECT * FROM json_to_recordset(%(live)s::json) AS live(key text, fence bigint)
), held AS (
    SELECT key FROM effects WHERE key IN (SELECT key FROM live) ORDER BY key FOR UPDATE
)
UPDATE effects AS e
SET leased_until = now() + make_interval(secs => %(lease_s)s)
FROM live JOIN held USING (key)
WHERE e.key = live.key AND e.fence = live.fence AND e.status = 'claimed'
  AND e.slot = %(slot)s AND e.incarnation = %(incarnation)s
RETURNING e.key;

-- name: list_effects
-- In doubt are also the claims of dead attempts that nobody has come back to yet, unless repeatable.
SELECT key, trace_id, flow, stage, name, status, idempotent, result, slot, incarnation, fence, calls,
       leased_until, claimed_at, settled_at, note
FROM effects
WHERE NOT %(in_doubt)s OR status = 'in_doubt'
   OR (status = 'claimed' AND NOT idempotent AND leased_until <= now())
ORDER BY claimed_at DESC, key
LIMIT %(limit)s;
