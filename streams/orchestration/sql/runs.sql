-- Runs: what a batch of records of `<flow>.join` does to them.

-- name: begin
INSERT INTO runs (parent, seq, flow, stage, input, signal, timeout_ms, first_child, born_us, keys_of, step)
VALUES (%(parent)s, %(seq)s, %(flow)s, %(stage)s, %(input)s, %(signal)s, %(timeout_ms)s, %(first_child)s, %(born_us)s,
        %(keys_of)s, %(seq)s)
ON CONFLICT DO NOTHING;

-- name: lock
-- All runs of some jobs, in the order of their names, so that a zombie and its successor cannot lock
-- each other out.
SELECT r.parent, seq, stage, input, signal, timeout_ms, first_child, born_us, keys_of, step, commands, calls, seen, status
FROM unnest(%(parents)s::text::text[]) AS t(parent)
JOIN runs AS r ON r.parent = t.parent
ORDER BY r.parent, r.seq
FOR UPDATE OF r;

-- name: happen
INSERT INTO run_events (parent, run, kind, ref, detail, value, at_us, topic_id, partition, "offset")
VALUES (%(parent)s, %(run)s, %(kind)s, %(ref)s, %(detail)s, %(value)s, %(at_us)s, %(topic_id)s, %(partition)s, %(offset)s)
ON CONFLICT DO NOTHING;

-- name: adopt
-- What came for a job before its run began belongs to it.
UPDATE run_events AS e SET run = r.seq
FROM unnest(%(parents)s::text::text[], %(seqs)s::text::integer[]) AS r(parent, seq)
WHERE e.parent = r.parent AND e.run = 0
  AND NOT EXISTS (SELECT 1 FROM run_events AS o
                  WHERE o.parent = e.parent AND o.run = r.seq AND o.kind = e.kind AND o.ref = e.ref);

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
VALUES (%(parent)s, %(run)s, %(n)s, %(kind)s, %(name)s, %(child)s, %(ce_type)s, %(value)s, %(shielded)s, %(due_us)s,
        %(position)s);

-- name: follow
UPDATE run_events
SET step = %(step)s, end_status = %(end_status)s, end_to = %(end_to)s, end_type = %(end_type)s, end_value = %(end_value)s
WHERE parent = %(parent)s AND run = %(run)s AND kind = %(kind)s AND ref = %(ref)s;

-- name: move
UPDATE runs
SET step = %(step)s, commands = %(commands)s, calls = %(calls)s, seen = %(seen)s, status = %(status)s, waits = %(waits)s,
    ended_at = CASE WHEN %(status)s = 'ended' THEN coalesce(ended_at, now()) END
WHERE parent = %(parent)s AND seq = %(seq)s;
