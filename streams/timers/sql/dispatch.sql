-- The dispatcher's statements. now() is the start of the transaction and, unlike clock_timestamp(),
-- a value that an index can be asked for.

-- name: next_due
-- Seconds until the first timer is due, negative when it was; no row when none is pending.
SELECT extract(epoch FROM due_at - now())::float8 AS wait_s FROM timers ORDER BY due_at LIMIT 1;

-- name: take_due
-- What is due, the longest overdue first, bounded in rows and in bytes; what another dispatcher holds
-- is passed over. The locks are held until the rows are deleted or the transaction ends, and with
-- them each row's place, so that no further look-up is needed.
WITH due AS MATERIALIZED (
    SELECT ctid::text AS place, due_at, trace_id, return_topic, value, headers
    FROM timers
    WHERE due_at <= now()
    ORDER BY due_at
    LIMIT %(max_rows)s
    FOR UPDATE SKIP LOCKED
), bounded AS (
    SELECT *, sum(coalesce(octet_length(value), 0) + octet_length(headers))
              OVER (ORDER BY due_at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM due
)
SELECT place, trace_id, return_topic, value, headers
FROM bounded
WHERE coalesce(bytes_before, 0) < %(max_bytes)s
ORDER BY due_at;

-- name: delete_returned
DELETE FROM timers WHERE ctid = ANY (%(places)s::text[]::tid[]);

-- name: postpone
-- Refused for good as things stand: one bad timer must not hold up the others, nor be lost.
UPDATE timers
SET refusals = refusals + 1, refused = %(reason)s,
    due_at = now() + %(wait_s)s * interval '1 second'
WHERE ctid = %(place)s::text::tid;
