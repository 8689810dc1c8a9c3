-- The rows that a projector and a ledger would have written for finished jobs of three steps: data as
-- pydantic spells it, without spaces.

INSERT INTO job_history (topic_id, "partition", "offset", trace_id, seq, flow, stage, status, attempts,
    handed_to, data, worker, consumed_topic, consumed_topic_id, consumed_partition, consumed_offset,
    born_us, produced_us, polled_us, started_us, finished_us, committed_us, updated_at)
SELECT %(state)s, n %% %(p)s, 3 * (n / %(p)s) + step - 1, md5(n::text), step, 'run', (%(stages)s::text[])[step],
    CASE step WHEN 3 THEN 'done' ELSE 'running' END, 1, ARRAY[(%(to)s::text[])[step]],
    format('{"n":%%s,"path":[],"text":"%%s"}', n, %(text)s::text)::json, '0.abcdef',
    (%(stages)s::text[])[step], (%(ids)s::uuid[])[step], n %% %(p)s, n / %(p)s,
    %(us)s, %(us)s, %(us)s, %(us)s, %(us)s, %(us)s, %(at)s
FROM generate_series(0, %(jobs)s - 1) AS n, generate_series(1, 3) AS step;
INSERT INTO jobs (trace_id, flow, stage, status, seq, attempts, data, worker, handed_to, born_at, updated_at)
SELECT md5(n::text), 'run', 'finish', 'done', 3, 1,
    format('{"n":%%s,"path":[],"text":"%%s"}', n, %(text)s::text)::json, '0.abcdef', '{done}', %(at)s, %(at)s
FROM generate_series(0, %(jobs)s - 1) AS n;
INSERT INTO effects (key, trace_id, flow, stage, name, fingerprint, status, idempotent, slot, incarnation,
    leased_until, settled_at)
SELECT md5(n::text) || ':work:0:mark', md5(n::text), 'run', 'work', 'mark', 'f', 'done', true, 0, 'x', now(), now()
FROM generate_series(0, %(jobs)s - 1) AS n;
INSERT INTO projection_offsets (topic_id, "partition", next_offset, topic)
SELECT %(state)s, p, 3 * ((%(jobs)s - 1 - p) / %(p)s + 1), 'job-state' FROM generate_series(0, %(p)s - 1) AS p;
