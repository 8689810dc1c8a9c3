-- What people did about dead letters.

-- name: record_actions
INSERT INTO dead_letter_actions (
    topic_id, topic, "partition", "offset", trace_id, seq, action, who, why, batch,
    old_sha256, new_sha256, sent_topic, sent_partition, sent_offset
)
SELECT
    topic_id, topic, "partition", "offset", trace_id, seq, %(action)s, %(who)s, %(why)s, %(batch)s,
    old_sha256, new_sha256, sent_topic, sent_partition, sent_offset
FROM jsonb_to_recordset(%(rows)s::jsonb) AS row (
    topic_id uuid, topic text, "partition" integer, "offset" bigint, trace_id text, seq integer,
    old_sha256 text, new_sha256 text, sent_topic text, sent_partition integer, sent_offset bigint
);

-- name: settled
-- Letters of a topic that somebody has redriven or discarded.
SELECT DISTINCT "partition", "offset" FROM dead_letter_actions WHERE topic_id = %(topic_id)s;

-- name: actions_on
SELECT action, who, why, batch, old_sha256, new_sha256, sent_topic, sent_partition, sent_offset, acted_at
FROM dead_letter_actions
WHERE topic_id = %(topic_id)s AND "partition" = %(partition)s AND "offset" = %(offset)s
ORDER BY id;

-- name: next_steps
-- What became of jobs that were redriven: the step after the one that failed, if it is projected.
SELECT DISTINCT ON (asked.n) asked.n, step.status, step.error
FROM unnest(%(trace_ids)s::text[], %(seqs)s::integer[]) WITH ORDINALITY AS asked(trace_id, seq, n)
JOIN job_history AS step ON step.trace_id = asked.trace_id AND step.seq = asked.seq + 1
ORDER BY asked.n, step.committed_us;
