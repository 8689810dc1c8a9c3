-- Joins: what a batch of records of `<flow>.join` does to them, and what handlers and people read.

-- name: expect
-- Returns those that are new.
INSERT INTO joins (
    parent, seq, flow, forked_by, stage, first_branch, expected, rule, deadline_at, born_us, keys_of, shielded, step
)
SELECT parent, seq, %(flow)s, forked_by, stage, first_branch, expected, rule,
       to_timestamp(deadline_ms / 1000.0), born_us, keys_of, shielded, seq
FROM unnest(
    %(parents)s::text[], %(seqs)s::integer[], %(forked_by)s::text[], %(stages)s::text[], %(firsts)s::integer[],
    %(expected)s::integer[], %(rules)s::text[], %(deadlines_ms)s::bigint[], %(born_us)s::bigint[], %(keys_of)s::text[],
    %(shielded)s::text[]
) AS e(parent, seq, forked_by, stage, first_branch, expected, rule, deadline_ms, born_us, keys_of, shielded)
ORDER BY parent COLLATE "C", seq
ON CONFLICT DO NOTHING
RETURNING parent, seq;

-- name: lock
-- All joins of some jobs, in the order of their names, so that a zombie and its successor cannot
-- lock each other out. An array literal in a condition would be read again for every row.
SELECT j.parent, seq, stage, first_branch, expected, rule, deadline_at IS NOT NULL AS has_deadline, born_us, keys_of,
       shielded, step, status, done_set, failed_set, reason,
       closed_topic_id, closed_partition, closed_offset, reopened_topic_id, reopened_partition, reopened_offset
FROM unnest(%(parents)s::text::text[]) AS t(parent)
JOIN joins AS j ON j.parent = t.parent
ORDER BY j.parent, j.seq
FOR UPDATE OF j;

-- name: early
-- Branches that came before it was known what their fork expects.
SELECT a.parent, branch, status
FROM unnest(%(parents)s::text::text[]) AS t(parent)
JOIN join_arrivals AS a ON a.parent = t.parent;

-- name: create_staging
CREATE TEMPORARY TABLE IF NOT EXISTS join_staging (
    parent text COLLATE "C", branch integer, status text, seq integer, value bytea, late boolean
) ON COMMIT DELETE ROWS;

-- name: copy_arrivals
COPY join_staging (parent, branch, status, seq, value, late) FROM STDIN (FORMAT binary);

-- name: arrive
-- A branch may fail, be redriven and succeed: its later step counts, until the results are handed on.
INSERT INTO join_arrivals AS a (parent, branch, status, seq, value, late)
SELECT parent, branch, status, seq, value, late
FROM join_staging
ORDER BY parent, branch
ON CONFLICT (parent, branch) DO UPDATE
SET status = excluded.status, seq = excluded.seq, value = excluded.value, arrived_at = now()
WHERE excluded.seq > a.seq AND NOT excluded.late;

-- name: update
UPDATE joins AS j
SET rule = u.rule, deadline_at = CASE WHEN u.has_deadline THEN j.deadline_at END, step = u.step, status = u.status,
    done_set = decode(u.done_set, 'hex'), failed_set = decode(u.failed_set, 'hex'), reason = nullif(u.reason, ''),
    done = CASE WHEN u.status <> 'open' THEN bit_count(decode(u.done_set, 'hex')) END,
    failed = CASE WHEN u.status <> 'open' THEN bit_count(decode(u.failed_set, 'hex')) END,
    closed_at = CASE WHEN u.status <> 'open' THEN coalesce(j.closed_at, now()) END,
    closed_topic_id = CASE WHEN u.closed_offset IS NOT NULL THEN coalesce(j.closed_topic_id, %(topic_id)s) END,
    closed_partition = u.closed_partition, closed_offset = u.closed_offset,
    reopened_topic_id = CASE WHEN u.reopened_offset IS NOT NULL THEN coalesce(j.reopened_topic_id, %(topic_id)s) END,
    reopened_partition = u.reopened_partition, reopened_offset = u.reopened_offset
FROM unnest(
    %(parents)s::text::text[], %(seqs)s::text::integer[], %(rules)s::text::text[], %(has_deadline)s::text::boolean[],
    %(steps)s::text::integer[], %(statuses)s::text::text[], %(done_sets)s::text::text[], %(failed_sets)s::text::text[],
    %(reasons)s::text[], %(closed_partitions)s::text::integer[], %(closed_offsets)s::text::bigint[],
    %(reopened_partitions)s::text::integer[], %(reopened_offsets)s::text::bigint[]
) AS u(
    parent, seq, rule, has_deadline, step, status, done_set, failed_set, reason, closed_partition, closed_offset,
    reopened_partition, reopened_offset
)
WHERE j.parent = u.parent AND j.seq = u.seq;

-- name: results
-- A page of the branches that had come when the join closed: at least one, then as many as fit into
-- so many bytes.
SELECT branch, status, value
FROM (
    SELECT branch, status, value, sum(octet_length(value)) OVER (ORDER BY branch) - octet_length(value) AS before
    FROM (
        SELECT branch, status, value
        FROM join_arrivals
        WHERE parent = %(parent)s AND branch >= %(from)s AND branch < %(end)s AND NOT late
        ORDER BY branch LIMIT %(limit)s
    ) AS page
) AS sized
WHERE before < %(bytes)s
ORDER BY branch;
