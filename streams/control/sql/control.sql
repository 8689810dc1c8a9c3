-- What the commands and the keeper of control ask of the projection.

-- name: standings
-- Of each id, in their order: the job as it stands, if the projection knows it.
SELECT asked.id, j.trace_id IS NOT NULL AS known, j.flow, j.stage, j.status, j.updated_at
FROM unnest(%(ids)s::text[]) WITH ORDINALITY AS asked(id, n)
LEFT JOIN jobs AS j ON j.trace_id = asked.id
ORDER BY n;

-- name: waiting
-- Jobs that wait and have no delivery, of the trees under these orders: each with the step that waits, and what
-- it waits for. '0' is the character after '/', so a range holds a job and all below it. A job that is shielded from the order is left alone.
SELECT asked.id AS ordered, j.trace_id, j.flow, j.stage, j.seq, j.handed_to,
       (extract(epoch FROM j.born_at) * 1000000)::bigint AS born_us
FROM unnest(%(ids)s::text[]) AS asked(id)
JOIN jobs AS j ON j.trace_id >= asked.id AND j.trace_id < asked.id || '0'
WHERE j.status = 'waiting'
  AND (j.shielded IS NULL OR length(asked.id) >= length(j.shielded))
ORDER BY j.trace_id;

-- name: unfinished
-- Of these trees those that are not over: of a job that is not known, or with one in it that goes on.
SELECT asked.id
FROM unnest(%(ids)s::text[]) AS asked(id)
WHERE NOT EXISTS (SELECT FROM jobs AS j WHERE j.trace_id = asked.id)
   OR EXISTS (
       SELECT FROM jobs AS j
       WHERE j.trace_id >= asked.id AND j.trace_id < asked.id || '0'
         AND j.status IN ('running', 'waiting')
         AND (j.shielded IS NULL OR length(asked.id) >= length(j.shielded))
   );

-- name: settled
-- Orders that nothing can meet any more: the job and all that it forked are over since `quiet`, and no child of a
-- fork is yet to be heard of. An order for a job that nobody has heard of goes once no record can be left of it.
SELECT asked.id
FROM unnest(%(ids)s::text[], %(ats)s::timestamptz[]) AS asked(id, at)
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs, count(*) FILTER (WHERE j.trace_id = asked.id) AS itself,
           count(*) FILTER (WHERE j.status IN ('running', 'waiting')) AS open, max(j.updated_at) AS last
    FROM jobs AS j
    WHERE j.trace_id >= asked.id AND j.trace_id < asked.id || '0'
) AS tree
CROSS JOIN LATERAL (
    SELECT coalesce(sum(f.expected), 0) AS children
    FROM joins AS f
    WHERE f.parent >= asked.id AND f.parent < asked.id || '0'
) AS forked
WHERE (tree.itself = 1 AND tree.open = 0 AND tree.jobs > forked.children
       AND tree.last < now() - %(quiet)s::interval AND asked.at < now() - %(quiet)s::interval)
   OR (tree.itself = 0 AND asked.at < %(before)s);
