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
-- Claim rows that are released, or whose attempt is dead, if they still are as they were read. Asking:
-- the claim is not for a call but for a question to the target, so the last call stays described.
WITH ask AS (
    SELECT * FROM json_to_recordset(%(asks)s::json)
                  AS ask(key text, fence bigint, status text, fingerprint text, idempotent boolean,
                         asking boolean, past_unknown boolean, note text)
), held AS (
    SELECT key FROM effects WHERE key IN (SELECT key FROM ask) ORDER BY key FOR UPDATE
)
UPDATE effects AS e
SET status = 'claimed', fingerprint = ask.fingerprint, past_unknown = ask.past_unknown,
    -- What an earlier release called without a key does not become repeatable by a later word.
    idempotent = ask.idempotent AND (e.idempotent OR NOT ask.past_unknown),
    slot = %(slot)s, incarnation = %(incarnation)s, fence = e.fence + 1,
    calls = e.calls + CASE WHEN ask.asking THEN 0 ELSE 1 END,
    claimed_at = CASE WHEN ask.asking THEN e.claimed_at ELSE now() END,
    leased_until = now() + make_interval(secs => %(lease_s)s), note = ask.note
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
-- doubt only that it certainly did not happen. A call that was done after its row was decided, by a
-- person or by another attempt, changes no result, but is recorded.
WITH told AS (
    SELECT * FROM json_to_recordset(%(told)s::json)
                  AS told(key text, fingerprint text, status text, fence bigint, result text, note text, called boolean)
), held AS (
    SELECT key, status, note, fingerprint, fence, settled_fence, idempotent
    FROM effects WHERE key IN (SELECT key FROM told) ORDER BY key FOR UPDATE
), late AS (
    SELECT told.key, told.fence, told.result, held.status AS was, held.note AS was_note,
           held.status = 'done' AND held.settled_fence IS NOT NULL AS twice,
           told.fingerprint <> held.fingerprint AS otherwise
    FROM told JOIN held USING (key)
    -- Where the key is honoured, two calls are one effect. The same word again is no news.
    WHERE told.status = 'done' AND told.called AND NOT held.idempotent
      AND CASE WHEN held.status = 'done' THEN held.settled_fence IS DISTINCT FROM told.fence
               ELSE told.fence <> held.fence END
), recorded AS (
    INSERT INTO effect_actions (key, action, actor, reason, was, was_note, fence, result)
    SELECT key, CASE WHEN twice THEN 'happened_twice' ELSE 'settled_late' END,
           format('slot %%s (%%s)', %(slot)s::integer, %(incarnation)s::text),
           format('attempt %%s was done after the effect was decided%%s', fence,
                  CASE WHEN otherwise THEN ', with other arguments' ELSE '' END),
           was, was_note, fence, result::json
    FROM late
), noted AS (
    UPDATE effects AS e
    SET settled_fence = coalesce(e.settled_fence, late.fence),
        note = CASE WHEN late.twice
                    THEN format('happened twice: by attempts %%s and %%s', e.settled_fence, late.fence)
                    ELSE concat_ws('; ', e.note, format('confirmed late, by attempt %%s', late.fence)) END
    FROM late WHERE e.key = late.key AND late.was = 'done'
)
UPDATE effects AS e
SET status = CASE
        -- The answer to this claim was lost; an attempt before it may have called.
        WHEN told.fence IS NULL AND e.past_unknown THEN 'claimed'
        ELSE told.status END,
    result = told.result::json,
    settled_at = CASE WHEN told.status = 'done' THEN now() END,
    settled_fence = CASE WHEN told.status = 'done' AND told.called THEN told.fence END,
    leased_until = CASE WHEN told.status = 'done' THEN e.leased_until ELSE least(e.leased_until, now()) END,
    note = CASE
        WHEN told.status = 'done' AND (e.fence <> told.fence OR e.status <> 'claimed')
        THEN concat_ws('; before that: ', format('settled late, by attempt %%s of %%s', told.fence, e.fence),
                       CASE WHEN e.status = 'released' THEN e.note END)
        ELSE told.note END
FROM told JOIN held USING (key)
WHERE e.key = told.key AND e.status <> 'done'
  AND CASE WHEN told.status = 'done' THEN e.fingerprint = told.fingerprint
           ELSE (e.status = 'claimed' OR (e.status = 'in_doubt' AND told.status = 'released'))
                AND e.slot = %(slot)s AND e.incarnation = %(incarnation)s
                AND e.fence = coalesce(told.fence, e.fence) END
RETURNING e.key;

-- name: renew_leases
-- Returns the keys that are still ours. Recalled: the target said that no call before has happened, and
-- the function is called again under this claim.
WITH live AS (
    SELECT * FROM json_to_recordset(%(live)s::json) AS live(key text, fence bigint, recalled boolean)
), held AS (
    SELECT key FROM effects WHERE key IN (SELECT key FROM live) ORDER BY key FOR UPDATE
)
UPDATE effects AS e
SET leased_until = now() + make_interval(secs => %(lease_s)s),
    calls = e.calls + CASE WHEN live.recalled THEN 1 ELSE 0 END,
    claimed_at = CASE WHEN live.recalled THEN now() ELSE e.claimed_at END,
    past_unknown = e.past_unknown AND NOT live.recalled,
    note = CASE WHEN live.recalled THEN NULL ELSE e.note END
FROM live JOIN held USING (key)
WHERE e.key = live.key AND e.fence = live.fence AND e.status = 'claimed'
  AND e.slot = %(slot)s AND e.incarnation = %(incarnation)s
RETURNING e.key;
