-- Suspects: which record owns a step, and which steps are finished.

-- name: claim_steps
-- Array literals, made by joining: a psycopg list costs ten times as much in Python. Nothing is
-- returned; a row count below the batch says that some steps were claimed before.
INSERT INTO claims (trace_id, stage, seq, topic_id, "partition", "offset")
SELECT trace_id, %(stage)s, %(seq)s, %(topic_id)s, "partition", "offset"
FROM unnest(%(trace_ids)s::text::text[], %(partitions)s::text::integer[], %(offsets)s::text::bigint[])
     AS suspect(trace_id, "partition", "offset")
-- By id, so that two workers cannot lock each other out; then the lowest offset wins.
ORDER BY trace_id COLLATE "C", "offset", "partition"
ON CONFLICT DO NOTHING;

-- name: lost_claims
-- Positions (from 1) of the suspects whose step belongs to another record; they are counted as well.
-- A statement of its own, after claim_steps: only a new snapshot sees what its conflicts were with.
WITH lost AS (
    SELECT suspect.n
    FROM unnest(%(trace_ids)s::text::text[], %(partitions)s::text::integer[], %(offsets)s::text::bigint[])
         WITH ORDINALITY AS suspect(trace_id, "partition", "offset", n)
    JOIN claims AS c ON c.trace_id = suspect.trace_id AND c.stage = %(stage)s AND c.seq = %(seq)s AND c.generation = 0
    WHERE (c.topic_id, c."partition", c."offset") <> (%(topic_id)s, suspect."partition", suspect."offset")
), counted AS (
    INSERT INTO skips AS s (flow, stage, reason, records)
    SELECT %(flow)s, %(stage)s, 'duplicate', count(*) FROM lost HAVING count(*) > 0
    ON CONFLICT (flow, stage, reason) DO UPDATE SET records = s.records + excluded.records, last_at = now()
)
SELECT n FROM lost;

-- name: finished_steps
-- Positions (from 1) of the suspects whose step is in the history; they are counted as well.
WITH finished AS (
    SELECT suspect.n
    FROM unnest(%(trace_ids)s::text::text[], %(seqs)s::text::integer[]) WITH ORDINALITY AS suspect(trace_id, seq, n)
    WHERE EXISTS (
        SELECT FROM job_history AS h
        WHERE h.trace_id = suspect.trace_id AND h.seq = suspect.seq AND h.stage = %(stage)s
    )
), counted AS (
    INSERT INTO skips AS s (flow, stage, reason, records)
    SELECT %(flow)s, %(stage)s, 'finished', count(*) FROM finished HAVING count(*) > 0
    ON CONFLICT (flow, stage, reason) DO UPDATE SET records = s.records + excluded.records, last_at = now()
)
SELECT n FROM finished;

-- name: consumed_horizon
SELECT max(consumed_offset) AS horizon
FROM job_history
WHERE consumed_topic_id = %(topic_id)s AND consumed_partition = %(partition)s;

-- name: projected_offsets
SELECT "partition", next_offset FROM projection_offsets WHERE topic_id = %(topic_id)s;

-- name: skip_counts
SELECT flow, stage, reason, records, last_at FROM skips ORDER BY flow, stage, reason;
