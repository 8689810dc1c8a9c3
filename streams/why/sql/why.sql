-- What `why` asks beside the queries of the projection, the ledger and the dead letters.

-- name: now
SELECT now() AS now;

-- name: workers
-- The latest life of each slot of a group.
SELECT DISTINCT ON (slot)
    slot, incarnation, pid, host, seen_at, ended_at, clean, paused, paused_since, account
FROM workers
WHERE stage_group = %(group)s
ORDER BY slot, ended_at IS NULL DESC, seen_at DESC;

-- name: started
SELECT starts, slot, incarnation, last_at
FROM deliveries
WHERE topic_id = %(topic_id)s AND "partition" = %(partition)s AND "offset" = %(offset)s;

-- name: timer_at
-- By the index on due_at; what the state tells is rounded.
SELECT due_at, refused FROM timers
WHERE due_at BETWEEN %(due_at)s::timestamptz - interval '1 second' AND %(due_at)s::timestamptz + interval '1 second'
  AND trace_id = %(trace_id)s
LIMIT 1;

-- name: timer
-- One that Kafka refused is due later than its job says.
SELECT due_at, refused FROM timers WHERE trace_id = %(trace_id)s ORDER BY due_at LIMIT 1;
