-- Joins: what a batch of records of `<flow>.join` does to them, and what handlers and people read.

-- name: expect
INSERT INTO joins (
    parent, seq, flow, forked_by, stage, first_branch, expected, rule, deadline_at, born_us, keys_of, step
)
SELECT parent, seq, %(flow)s, forked_by, stage, first_branch, expected, rule,
       to_timestamp(deadline_ms / 1000.0), born_us, keys_of, seq
FROM unnest(
    %(parents)s::text[], %(seqs)s::integer[], %(forked_by)s::text[], %(stages)s::text[], %(firsts)s::integer[],
    %(expected)s::integer[], %(rules)s::text[], %(deadlines_ms)s::bigint[], %(born_us)s::bigint[], %(keys_of)s::text[]
) AS e(parent, seq, forked_by, stage, first_branch, expected, rule, deadline_ms, born_us, keys_of)
ORDER BY parent COLLATE "C", seq
ON CONFLICT DO NOTHING;

-- name: lock
-- In the order of their names, so that a zombie and its successor cannot lock each other out.
SELECT FROM joins WHERE parent = ANY(%(parents)s::text::text[]) ORDER BY parent, seq FOR UPDATE;

-- name: create_staging
CREATE TEMPORARY TABLE IF NOT EXISTS join_staging (
    parent text COLLATE "C", branch integer, status text, seq integer, value bytea
) ON COMMIT DELETE ROWS;

-- name: copy_arrivals
COPY join_staging (parent, branch, status, seq, value) FROM STDIN (FORMAT binary);

-- name: arrive
-- A branch may fail, be redriven and succeed: its later step counts, until the results are handed on.
INSERT INTO join_arrivals AS a (parent, branch, status, seq, value, late)
SELECT s.parent, s.branch, s.status, s.seq, s.value, EXISTS (
    SELECT FROM joins AS j
    WHERE j.parent = s.parent AND j.status = 'joined'
      AND s.branch >= j.first_branch AND s.branch < j.first_branch + j.expected
)
FROM join_staging AS s
ORDER BY s.parent, s.branch
ON CONFLICT (parent, branch) DO UPDATE
SET status = excluded.status, seq = excluded.seq, value = excluded.value, arrived_at = now()
WHERE excluded.seq > a.seq AND NOT excluded.late;

-- name: clear_staging
-- A batch with a deadline in its middle is applied in several parts.
TRUNCATE join_staging;

-- name: close
-- Of the joins that were touched: those that are complete now, closed by the record given for each.
UPDATE joins AS j
SET status = CASE WHEN c.done = j.expected OR (j.rule = 'errors' AND c.done + c.failed = j.expected) THEN 'joined' ELSE 'failed' END,
    done = c.done, failed = c.failed, closed_at = now(),
    closed_topic_id = %(topic_id)s, closed_partition = c."partition", closed_offset = c."offset"
FROM (
    SELECT o.parent, o.seq, t."partition", t."offset",
           count(a.branch) FILTER (WHERE a.status = 'done') AS done,
           count(a.branch) FILTER (WHERE a.status <> 'done') AS failed
    FROM unnest(%(parents)s::text::text[], %(partitions)s::text::integer[], %(offsets)s::text::bigint[])
         AS t(parent, "partition", "offset")
    JOIN joins AS o ON o.parent = t.parent AND o.status = 'open'
    LEFT JOIN join_arrivals AS a
           ON a.parent = o.parent AND a.branch >= o.first_branch AND a.branch < o.first_branch + o.expected
    GROUP BY o.parent, o.seq, t."partition", t."offset"
) AS c
WHERE j.parent = c.parent AND j.seq = c.seq AND j.status = 'open'
  AND (
    c.done = j.expected
    OR (j.rule = 'errors' AND c.done + c.failed = j.expected)
    OR (j.rule = 'fail' AND c.failed > 0)
  );

-- name: time_is_up
UPDATE joins AS j
SET status = CASE WHEN j.rule = 'errors' THEN 'joined' ELSE 'failed' END,
    done = c.done, failed = c.failed, closed_at = now(),
    closed_topic_id = %(topic_id)s, closed_partition = %(partition)s, closed_offset = %(offset)s
FROM (
    SELECT count(a.branch) FILTER (WHERE a.status = 'done') AS done,
           count(a.branch) FILTER (WHERE a.status <> 'done') AS failed
    FROM joins AS o
    LEFT JOIN join_arrivals AS a
           ON a.parent = o.parent AND a.branch >= o.first_branch AND a.branch < o.first_branch + o.expected
    WHERE o.parent = %(parent)s AND o.seq = %(seq)s
) AS c
WHERE j.parent = %(parent)s AND j.seq = %(seq)s AND j.status = 'open' AND j.deadline_at IS NOT NULL;

-- name: reopen
-- The operator has decided to wait for what is missing.
UPDATE joins
SET status = 'open', rule = 'wait', deadline_at = NULL, step = %(seq)s, reason = NULL, done = NULL, failed = NULL,
    closed_topic_id = NULL, closed_partition = NULL, closed_offset = NULL, closed_at = NULL,
    reopened_topic_id = %(topic_id)s, reopened_partition = %(partition)s, reopened_offset = %(offset)s
WHERE parent = %(parent)s AND step + 1 = %(seq)s AND status = 'failed';

-- name: wait_on
-- Reopened, and still not complete: that is a step of the parent.
UPDATE joins
SET step = %(seq)s + 1
WHERE parent = %(parent)s AND step = %(seq)s AND status = 'open'
  AND (reopened_topic_id, reopened_partition, reopened_offset) = (%(topic_id)s, %(partition)s, %(offset)s);

-- name: unexplained
SELECT parent, seq, first_branch, expected, done, failed, (closed_at > deadline_at) IS TRUE AS too_late
FROM joins WHERE parent = ANY(%(parents)s::text::text[]) AND status = 'failed' AND reason IS NULL;

-- name: not_done
-- Some branches of a range that have no result: how they ended, null for those that have not come.
SELECT n AS branch, a.status
FROM generate_series(%(first)s::integer, %(first)s::integer + %(expected)s::integer - 1) AS n
LEFT JOIN join_arrivals AS a ON a.parent = %(parent)s AND a.branch = n
WHERE a.status IS DISTINCT FROM 'done'
ORDER BY n LIMIT %(limit)s;

-- name: explain
UPDATE joins SET reason = %(reason)s WHERE parent = %(parent)s AND seq = %(seq)s;

-- name: turns
-- Joins that a record of this topic has closed or reopened, of the parents given.
SELECT parent, seq, stage, first_branch, expected, born_us, keys_of, step, status, done, failed, reason,
       closed_topic_id = %(topic_id)s AS closed_here, closed_partition, closed_offset,
       reopened_topic_id = %(topic_id)s AS reopened_here, reopened_partition, reopened_offset
FROM joins
WHERE parent = ANY(%(parents)s::text::text[])
  AND (closed_topic_id = %(topic_id)s OR reopened_topic_id = %(topic_id)s);

-- name: results
-- A page of the branches that had come when the join closed.
SELECT branch, status, value
FROM join_arrivals
WHERE parent = %(parent)s AND branch >= %(from)s AND branch < %(end)s AND NOT late
ORDER BY branch LIMIT %(limit)s;
