-- What people see of the ledger, and what they decide about effects in doubt.

-- name: list_effects
-- In doubt are also the claims of dead attempts that nobody has come back to yet, unless repeatable.
SELECT key, trace_id, flow, stage, name, status, idempotent, result, slot, incarnation, fence, calls,
       leased_until, claimed_at, settled_at, note
FROM effects
WHERE NOT %(in_doubt)s OR status = 'in_doubt'
   OR (status = 'claimed' AND NOT idempotent AND leased_until <= now())
ORDER BY claimed_at DESC, key
LIMIT %(limit)s;

-- name: hold_effect
-- By person: the result that stands is what a person said, and no attempt has confirmed it.
SELECT key, trace_id, flow, stage, name, status, idempotent, slot, fence, note,
       leased_until <= now() AS expired,
       settled_fence IS NULL AND EXISTS (
           SELECT FROM effect_actions AS a WHERE a.key = e.key AND a.action = 'happened'
       ) AS by_person
FROM effects AS e
WHERE key = %(key)s
FOR UPDATE;

-- name: resolve_effect
-- The fence rises, so that the attempt in doubt can no longer release, doubt or renew; that it is done
-- is heard all the same. `was` is the row as hold_effect locked it: a sub-select sees it before the update.
WITH resolved AS (
    UPDATE effects AS e
    SET status = %(status)s, result = %(result)s::json, note = %(note)s, fence = e.fence + 1,
        settled_at = CASE WHEN %(status)s = 'done' THEN now() END, settled_fence = NULL,
        past_unknown = false, leased_until = least(e.leased_until, now())
    WHERE key = %(key)s
)
INSERT INTO effect_actions (key, action, actor, reason, was, was_note, fence, result)
SELECT key, %(action)s, %(actor)s, %(reason)s, status, note, fence, %(result)s::json
FROM effects WHERE key = %(key)s;

-- name: effect_actions
SELECT key, action, actor, reason, was, was_note, fence, result, at
FROM effect_actions
WHERE %(key)s::text IS NULL OR key = %(key)s
ORDER BY id DESC
LIMIT %(limit)s;

-- name: happened_twice
SELECT count(DISTINCT key) AS effects FROM effect_actions WHERE action = 'happened_twice';
