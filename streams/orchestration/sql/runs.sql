-- Runs: what a batch of records of `<flow>.join` does to them.

-- name: begin
INSERT INTO runs (parent, seq, flow, stage, input, signal, timeout_ms, first_child, born_us, keys_of, shielded, step)
SELECT parent, seq, %(flow)s, stage, input, signal, timeout_ms, first_child, born_us, keys_of, shielded, seq
FROM unnest(
    %(parent)s::text::text[], %(seq)s::text::integer[], %(stage)s::text::text[], %(input)s::text::bytea[],
    %(signal)s::text::text[], %(timeout_ms)s::text::bigint[], %(first_child)s::text::integer[],
    %(born_us)s::text::bigint[], %(keys_of)s::text::text[], %(shielded)s::text::text[]
) AS b(parent, seq, stage, input, signal, timeout_ms, first_child, born_us, keys_of, shielded)
ORDER BY parent COLLATE "C", seq
ON CONFLICT DO NOTHING;

-- name: lock
-- All runs of some jobs, in the order of their names, so that a zombie and its successor cannot lock
-- each other out.
SELECT r.parent, seq, stage, input, signal, timeout_ms, first_child, born_us, keys_of, shielded, step, commands, calls, seen, status
FROM unnest(%(parents)s::text::text[]) AS t(parent)
JOIN runs AS r ON r.parent = t.parent
ORDER BY r.parent, r.seq
FOR UPDATE OF r;

-- name: happen
-- In the order of the records. What is there already stays as it is, also if it belongs to another
-- run of its job: see the table's indexes.
INSERT INTO run_events (parent, run, kind, ref, detail, value, at_us, topic_id, partition, "offset")
SELECT parent, run, kind, ref, detail, value, at_us, %(topic_id)s, partition, "offset"
FROM unnest(
    %(parent)s::text::text[], %(run)s::text::integer[], %(kind)s::text::text[], %(ref)s::text::text[],
    %(detail)s::text::text[], %(value)s::text::bytea[], %(at_us)s::text::bigint[], %(partition)s::text::integer[],
    %(offset)s::text::bigint[]
) WITH ORDINALITY AS x(parent, run, kind, ref, detail, value, at_us, partition, "offset", place)
ORDER BY place
ON CONFLICT DO NOTHING;

-- name: adopt
-- What came for a job before its run began belongs to it.
UPDATE run_events AS e SET run = r.seq
FROM unnest(%(parents)s::text::text[], %(seqs)s::text::integer[]) AS b(parent, seq)
JOIN runs AS r ON r.parent = b.parent AND r.seq = b.seq AND r.seen = 0
WHERE e.parent = r.parent AND e.run = 0
  AND NOT EXISTS (SELECT 1 FROM run_events AS o
                  WHERE o.parent = e.parent AND o.run = r.seq AND o.kind = e.kind AND o.ref = e.ref);

-- name: release
-- What a run that is over has not taken is for the next run of its job.
UPDATE run_events AS e SET run = 0
FROM unnest(%(parent)s::text::text[], %(run)s::text::integer[], %(kind)s::text::text[], %(ref)s::text::text[])
    AS x(parent, run, kind, ref)
WHERE e.parent = x.parent AND e.run = x.run AND e.kind = x.kind AND e.ref = x.ref
  AND NOT EXISTS (SELECT 1 FROM run_events AS o
                  WHERE o.parent = e.parent AND o.run = 0 AND o.kind = e.kind AND o.ref = e.ref);

-- name: events
SELECT e.parent, e.run, e.position, e.kind, e.ref, e.detail, e.value, e.at_us, e.topic_id, e.partition, e."offset",
       e.step, e.end_status, e.end_to, e.end_type, e.end_value
FROM unnest(%(parents)s::text::text[], %(seqs)s::text::integer[]) AS r(parent, seq)
JOIN run_events AS e ON e.parent = r.parent AND e.run = r.seq
ORDER BY e.parent, e.run, e.position;

-- name: commands
SELECT c.parent, c.run, c.n, c.kind, c.name, c.child, c.ce_type, c.value, c.shielded, c.due_us, c.position
FROM unnest(%(parents)s::text::text[], %(seqs)s::text::integer[]) AS r(parent, seq)
JOIN run_commands AS c ON c.parent = r.parent AND c.run = r.seq
ORDER BY c.parent, c.run, c.n;

-- name: ask
INSERT INTO run_commands (parent, run, n, kind, name, child, ce_type, value, shielded, due_us, position)
SELECT *
FROM unnest(
    %(parent)s::text::text[], %(run)s::text::integer[], %(n)s::text::integer[], %(kind)s::text::text[],
    %(name)s::text::text[], %(child)s::text::integer[], %(ce_type)s::text::text[], %(value)s::text::bytea[],
    %(shielded)s::text::boolean[], %(due_us)s::text::bigint[], %(position)s::text::bigint[]
);

-- name: follow
UPDATE run_events AS e
SET step = x.step, end_status = x.end_status, end_to = x.end_to, end_type = x.end_type, end_value = x.end_value
FROM unnest(
    %(parent)s::text::text[], %(run)s::text::integer[], %(kind)s::text::text[], %(ref)s::text::text[],
    %(step)s::text::integer[], %(end_status)s::text::text[], %(end_to)s::text::text[], %(end_type)s::text::text[],
    %(end_value)s::text::bytea[]
) AS x(parent, run, kind, ref, step, end_status, end_to, end_type, end_value)
WHERE e.parent = x.parent AND e.run = x.run AND e.kind = x.kind AND e.ref = x.ref;

-- name: move
UPDATE runs AS r
SET step = x.step, commands = x.commands, calls = x.calls, seen = x.seen, status = x.status, waits = x.waits::text[],
    ended_at = CASE WHEN x.status = 'ended' THEN coalesce(r.ended_at, now()) END
FROM unnest(
    %(parent)s::text::text[], %(seq)s::text::integer[], %(step)s::text::integer[], %(commands)s::text::integer[],
    %(calls)s::text::integer[], %(seen)s::text::bigint[], %(status)s::text::text[], %(waits)s::text::text[]
) AS x(parent, seq, step, commands, calls, seen, status, waits)
WHERE r.parent = x.parent AND r.seq = x.seq;
