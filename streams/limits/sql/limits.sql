-- Limits (decision 18): moments and places of keys are given out under row locks.

-- name: make
INSERT INTO limit_keys (name, key)
SELECT name, key FROM unnest(%(names)s::text[], %(keys)s::text[]) AS wanted(name, key)
ORDER BY name COLLATE "C", key COLLATE "C"
ON CONFLICT DO NOTHING;

-- name: lock
-- In the order of their names. The clock is looked at when the locks are held: what waited for one
-- must not be given moments that are over.
WITH mine AS MATERIALIZED (
    SELECT k.name, k.key, k.booked, k.parked_us, k.closed_until_us
    FROM unnest(%(names)s::text[], %(keys)s::text[]) AS wanted(name, key)
    JOIN limit_keys AS k ON k.name = wanted.name AND k.key = wanted.key
    ORDER BY k.name, k.key
    FOR UPDATE OF k
)
SELECT name, key, booked, parked_us, closed_until_us,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us
FROM mine;

-- name: others
-- What others run under these keys; the dead do not count.
SELECT h.name, h.key, sum(h.held)::integer AS held
FROM unnest(%(names)s::text[], %(keys)s::text[]) AS wanted(name, key)
JOIN limit_holds AS h ON h.name = wanted.name AND h.key = wanted.key
WHERE h.holder <> %(holder)s AND h.leased_until > clock_timestamp()
GROUP BY h.name, h.key;

-- name: keep
UPDATE limit_keys AS k
SET booked = u.booked::bigint[], parked_us = u.parked_us, closed_until_us = u.closed_until_us,
    idle_at = to_timestamp(u.idle_us / 1000000.0)
FROM unnest(
    %(names)s::text[], %(keys)s::text[], %(booked)s::text[], %(parked_us)s::bigint[], %(closed_until_us)s::bigint[],
    %(idle_us)s::bigint[]
) AS u(name, key, booked, parked_us, closed_until_us, idle_us)
WHERE k.name = u.name AND k.key = u.key;

-- name: hold
-- All that this holder runs: an absolute number, so that the statement may be repeated.
WITH told AS (
    SELECT name, key, held
    FROM unnest(%(names)s::text[], %(keys)s::text[], %(held)s::integer[]) AS told(name, key, held)
), gone AS (
    DELETE FROM limit_holds AS h
    WHERE h.holder = %(holder)s AND NOT EXISTS (
        SELECT FROM told WHERE told.name = h.name AND told.key = h.key AND told.held > 0
    )
)
INSERT INTO limit_holds AS h (name, key, holder, held, leased_until)
SELECT name, key, %(holder)s, held, clock_timestamp() + make_interval(secs => %(lease_s)s)
FROM told WHERE held > 0
ON CONFLICT (name, key, holder) DO UPDATE SET held = excluded.held, leased_until = excluded.leased_until;

-- name: leave
DELETE FROM limit_holds WHERE holder = %(holder)s;

-- name: forget
-- Rows that say nothing any more. A key that is wanted again gets a new one.
WITH dead AS (
    DELETE FROM limit_holds WHERE leased_until < now() - interval '1 day'
), idle AS (
    SELECT name, key FROM limit_keys WHERE idle_at < now() - interval '1 hour'
    ORDER BY idle_at LIMIT 10000 FOR UPDATE SKIP LOCKED
)
DELETE FROM limit_keys AS k USING idle WHERE k.name = idle.name AND k.key = idle.key;
