-- Workers and the journal of deliveries (decision 9).

-- name: enter
-- A process begins: its slot's predecessors that left no word are ended, its own rows are written.
WITH died AS (
    UPDATE workers SET ended_at = now(), clean = false
    WHERE stage_group = ANY (%(groups)s::text[]) AND slot = %(slot)s AND ended_at IS NULL
), forgotten AS (
    DELETE FROM workers
    WHERE stage_group = ANY (%(groups)s::text[]) AND slot = %(slot)s AND ended_at < now() - interval '7 days'
)
INSERT INTO workers (stage_group, slot, incarnation, pid, host)
SELECT unnest(%(groups)s::text[]), %(slot)s, %(incarnation)s, %(pid)s, %(host)s;

-- name: beat
-- I live. Other slots that were not seen for long are gone; but not by the word of one who was away
-- itself: after an outage of Postgres everybody looks dead for a moment.
WITH me AS (
    SELECT bool_and(seen_at > now() - make_interval(secs => %(lost_s)s)) AS awake
    FROM workers WHERE stage_group = ANY (%(groups)s::text[]) AND incarnation = %(incarnation)s
), gone AS (
    UPDATE workers SET ended_at = now(), clean = false
    WHERE stage_group = ANY (%(groups)s::text[]) AND incarnation <> %(incarnation)s AND ended_at IS NULL
      AND seen_at < now() - make_interval(secs => %(lost_s)s) AND (SELECT awake FROM me)
)
UPDATE workers AS w
SET seen_at = now(), ended_at = NULL, clean = NULL, paused = told.paused, account = told.account::json,
    paused_since = CASE WHEN told.paused IS NOT NULL THEN coalesce(w.paused_since, now()) END
FROM unnest(%(groups)s::text[], %(paused)s::text[], %(accounts)s::text[]) AS told(stage_group, paused, account)
WHERE w.stage_group = told.stage_group AND w.incarnation = %(incarnation)s;

-- name: is_wanted
-- Whether to journal: somebody of these groups died lately, or left records behind. Agents that run no
-- handlers do not count.
SELECT EXISTS (
    SELECT FROM workers
    WHERE stage_group = ANY (%(journalled)s::text[]) AND clean IS FALSE
      AND ended_at > now() - make_interval(secs => %(journal_s)s)
) OR EXISTS (
    SELECT FROM deliveries AS d
    WHERE d.stage_group = ANY (%(journalled)s::text[]) AND NOT EXISTS (
        SELECT FROM workers AS w
        WHERE w.stage_group = d.stage_group AND w.incarnation = d.incarnation AND w.ended_at IS NULL
    )
) AS wanted;

-- name: leave
-- A clean end: what this process had started and not finished did not kill it.
WITH once AS (
    DELETE FROM deliveries
    WHERE stage_group = ANY (%(groups)s::text[]) AND incarnation = %(incarnation)s AND starts = 1
), again AS (
    UPDATE deliveries SET starts = starts - 1, incarnation = ''
    WHERE stage_group = ANY (%(groups)s::text[]) AND incarnation = %(incarnation)s AND starts > 1
)
UPDATE workers SET ended_at = now(), clean = true
WHERE stage_group = ANY (%(groups)s::text[]) AND incarnation = %(incarnation)s;

-- name: look_or_begin
-- Those of the records that an earlier life has started. Only if there are none are all written down
-- as started: the usual case is one statement.
WITH asked AS (
    SELECT * FROM unnest(%(partitions)s::integer[], %(offsets)s::bigint[], %(jobs)s::text[])
         AS asked("partition", "offset", job_id)
), known AS (
    SELECT d."partition", d."offset", d.starts, d.first_at, d.last_at
    FROM deliveries AS d JOIN asked USING ("partition", "offset")
    -- Rows of our own are of a try whose answer was lost, or of a start that is being taken back.
    WHERE d.topic_id = %(topic_id)s AND d.incarnation <> %(incarnation)s
), begun AS (
    INSERT INTO deliveries (topic_id, "partition", "offset", stage_group, job_id, slot, incarnation)
    SELECT %(topic_id)s, "partition", "offset", %(group)s, job_id, %(slot)s, %(incarnation)s
    FROM asked WHERE NOT EXISTS (SELECT FROM known)
    ON CONFLICT DO NOTHING
)
SELECT * FROM known;

-- name: begin
-- One life counts once, so that the statement may be repeated.
INSERT INTO deliveries AS d (topic_id, "partition", "offset", stage_group, job_id, slot, incarnation)
SELECT %(topic_id)s, "partition", "offset", %(group)s, job_id, %(slot)s, %(incarnation)s
FROM unnest(%(partitions)s::integer[], %(offsets)s::bigint[], %(jobs)s::text[])
     AS asked("partition", "offset", job_id)
ON CONFLICT (topic_id, "partition", "offset") DO UPDATE
SET starts = d.starts + (d.incarnation <> excluded.incarnation)::integer, last_at = now(), slot = excluded.slot, incarnation = excluded.incarnation;

-- name: settle
-- Their records are committed.
DELETE FROM deliveries AS d
USING unnest(%(partitions)s::integer[], %(offsets)s::bigint[]) AS done("partition", "offset")
WHERE d.topic_id = %(topic_id)s AND d."partition" = done."partition" AND d."offset" = done."offset";

-- name: undo
-- Their runs were given up in an orderly way (partition gone, worker stops): that start does not count.
-- The row is then nobody's, so that it is taken back once.
WITH given_up AS (
    SELECT d.topic_id, d."partition", d."offset", d.starts
    FROM deliveries AS d
    JOIN unnest(%(partitions)s::integer[], %(offsets)s::bigint[]) AS gone("partition", "offset")
         USING ("partition", "offset")
    WHERE d.topic_id = %(topic_id)s AND d.incarnation = %(incarnation)s
), once AS (
    DELETE FROM deliveries AS d USING given_up AS g
    WHERE (d.topic_id, d."partition", d."offset") = (g.topic_id, g."partition", g."offset") AND g.starts = 1
)
UPDATE deliveries AS d SET starts = d.starts - 1, incarnation = '' FROM given_up AS g
WHERE (d.topic_id, d."partition", d."offset") = (g.topic_id, g."partition", g."offset") AND g.starts > 1;

-- name: sweep
-- Rows of records that cannot come again: below the committed heads, or of a topic that is no more.
DELETE FROM deliveries AS d
WHERE d.stage_group = %(group)s AND (
    d.topic_id <> %(topic_id)s OR EXISTS (
        SELECT FROM unnest(%(partitions)s::integer[], %(offsets)s::bigint[]) AS head("partition", "offset")
        WHERE d."partition" = head."partition" AND d."offset" < head."offset"
    )
);
