-- Forks and their joins: rules as in rules.sql, each led by facts that only a flow that forks has, so
-- that others pay nothing for them.

-- name: find_turns
-- Steps of join agents that are none of runs.
CREATE TABLE turn AS
SELECT s.topic, s.part, s.at, s.job, s.seq, s.stage, s.status, s.consumed, s.consumed_part, s.consumed_at, s.ms, s.late,
    s.source
FROM topic AS t CROSS JOIN state AS s ON s.stage = t.n
WHERE t.role = 'join'
  AND NOT EXISTS (SELECT 1 FROM run_step AS r WHERE r.job = s.job AND r.seq = s.seq AND r.topic = s.topic AND r.part = s.part AND r.at = s.at)
  AND NOT EXISTS (
    SELECT 1 FROM uncaused AS u
    WHERE u.job = s.job AND u.seq = s.seq AND u.verdict = 'forged' AND u.topic = s.topic AND u.part = s.part AND u.at = s.at);
-- name: index_turns
CREATE INDEX turn_by_step ON turn (job, seq, status);

-- name: find_came
-- How each branch ended by the records that the join agent has consumed.
CREATE TABLE came AS
SELECT a.parent, a.n, max(a.seq) AS seq, a.status, a.topic, a.part, a.at, a.job
FROM arrival AS a JOIN part AS p ON p.topic = a.topic AND p.part = a.part
WHERE a.at < coalesce(p.head, -1) OR EXISTS (
    SELECT 1 FROM finished AS f WHERE f.topic = a.topic AND f.part = a.part AND a.at >= f.first AND a.at < f.past)
GROUP BY a.parent, a.n;
-- name: index_came
CREATE UNIQUE INDEX came_by_number ON came (parent, n, status);

-- name: find_broods
-- Children that a step forked, or called.
CREATE TABLE brood AS
SELECT topic, part, at, job, seq, stage, first, expected, ms, late FROM fork
WHERE stage NOT IN (SELECT n FROM topic WHERE role = 'join')
UNION ALL SELECT topic, part, at, job, seq, stage, first, calls, ms, late FROM run_step WHERE calls > 0;
-- name: index_broods
CREATE INDEX brood_by_step ON brood (job, seq, first, expected);

-- name: find_unstarted
-- Children that a step tells of and whose first record is not there, nor a step of theirs. No fork has
-- more than 10,000, whatever a forged state says.
CREATE TABLE unstarted AS
WITH RECURSIVE short AS (
    SELECT f.topic, f.part, f.at, f.job, f.seq, f.stage, f.first, f.first + min(f.expected, 10000) AS past, f.ms
    FROM brood AS f
    WHERE f.late = 0 AND f.ms >= :since
      AND NOT EXISTS (SELECT 1 FROM uncaused AS u WHERE u.job = f.job AND u.seq = f.seq AND u.verdict = 'forged'
                      AND u.topic = f.topic AND u.part = f.part AND u.at = f.at)
      AND f.expected > (SELECT count(DISTINCT b.n) FROM branch AS b
                        WHERE b.parent = f.job AND b.fork = f.seq AND b.n >= f.first AND b.n < f.first + f.expected)
),
child AS (
    SELECT *, first AS n FROM short
    UNION ALL SELECT topic, part, at, job, seq, stage, first, past, ms, n + 1 FROM child WHERE n + 1 < past
)
SELECT c.topic, c.part, c.at, c.seq, CAST(c.job || '/' || c.n AS BLOB) AS job, EXISTS (
    -- Any stage may have been its first.
    SELECT 1 FROM topic AS t JOIN topic AS own ON own.n = c.stage JOIN part AS p ON p.topic = t.n
    WHERE t.flow = own.flow AND t.role = 'stage' AND p.start > 0 AND t.expired_ms >= c.ms) AS gone
FROM child AS c
WHERE NOT EXISTS (SELECT 1 FROM branch AS b WHERE b.parent = c.job AND b.n = c.n AND b.fork = c.seq)
  AND NOT EXISTS (SELECT 1 FROM state AS s WHERE s.job = CAST(c.job || '/' || c.n AS BLOB));

-- name: find_untold
-- Children that are over, whose end is not in the join topic, and whose parent was not joined without.
CREATE TABLE untold AS
SELECT d.topic, d.part, d.at, d.job, d.seq, d.status, NOT EXISTS (
    SELECT 1 FROM topic AS own JOIN topic AS t ON t.flow = own.flow AND t.role = 'join' WHERE own.n = d.stage
) OR EXISTS (
    SELECT 1 FROM topic AS own JOIN topic AS t ON t.flow = own.flow AND t.role = 'join' JOIN part AS p ON p.topic = t.n
    WHERE own.n = d.stage AND p.start > 0 AND t.expired_ms >= d.ms
) OR EXISTS (
    SELECT 1 FROM fork AS f JOIN turn AS x ON x.job = f.job AND x.seq > f.seq AND x.status = 'running'
    WHERE f.job = d.parent AND d.n >= f.first AND d.n < f.first + f.expected
) AS gone
FROM ended AS d
WHERE d.late = 0 AND d.ms >= :since
  AND NOT EXISTS (SELECT 1 FROM arrival AS a WHERE a.job = d.job AND a.seq = d.seq AND a.status = d.status)
  AND NOT EXISTS (SELECT 1 FROM uncaused AS u WHERE u.job = d.job AND u.seq = d.seq AND u.verdict = 'forged'
                  AND u.topic = d.topic AND u.part = d.part AND u.at = d.at);

-- name: branch_lost
INSERT INTO finding
SELECT 'branch_lost', job, NULL, topic, part, at, 'step ' || seq || ' of its parent began it, and its first record is not there'
FROM unstarted WHERE NOT gone
UNION ALL
SELECT 'branch_lost', job, seq, topic, part, at, 'it is ' || status || ', and its parent''s join was not told'
FROM untold WHERE NOT gone;

-- name: branches_gone
INSERT INTO horizon
SELECT 'branches_gone', (SELECT count(*) FROM unstarted WHERE gone) + (SELECT count(*) FROM untold WHERE gone);

-- name: branch_doubled
INSERT INTO finding
SELECT 'branch_doubled', job, 0, topic, part, max(at), count(*) || ' records are the first of it'
FROM branch GROUP BY parent, n, fork HAVING count(*) > 1
UNION ALL
SELECT 'branch_doubled', job, seq, topic, part, max(at), count(*) || ' records tell its join that step ' || seq || ' ended it'
FROM arrival GROUP BY job, seq, status HAVING count(*) > 1;

-- name: find_unforked
-- Children, and ends of children, whose fork or last step is not there. A step that the topic still has
-- tells enough; of others the history tells that they were, and no more.
CREATE TABLE unforked AS
SELECT b.topic, b.part, b.at, b.job, b.fork AS seq, b.ms, 'called' AS role, (
    SELECT t.n FROM topic AS own JOIN topic AS t ON t.flow = own.flow AND t.role = 'join' WHERE own.n = b.topic) AS stage,
    EXISTS (SELECT 1 FROM brood AS f WHERE f.job = b.parent AND f.seq = b.fork) AS known
FROM branch AS b
WHERE b.ms >= :since AND NOT EXISTS (
    SELECT 1 FROM brood AS f
    WHERE f.job = b.parent AND f.seq = b.fork AND b.n >= f.first AND b.n < f.first + f.expected)
  AND NOT EXISTS (
    SELECT 1 FROM state AS s JOIN topic AS t ON t.n IN (s.target, s.stage) AND t.stage = 'join'
    WHERE s.job = b.parent AND s.seq = b.fork AND s.source = 1)
UNION ALL
SELECT a.topic, a.part, a.at, a.job, a.seq, a.ms, '', NULL,
    EXISTS (SELECT 1 FROM state AS s INDEXED BY state_by_step WHERE s.job = a.job AND s.seq = a.seq)
FROM arrival AS a
WHERE a.ms >= :since AND NOT EXISTS (
    SELECT 1 FROM state AS s INDEXED BY state_by_step WHERE s.job = a.job AND s.seq = a.seq AND s.status = a.status);

-- name: branch_orphan
INSERT INTO finding
SELECT 'branch_orphan', job, seq, topic, part, at, CASE role
    WHEN 'called' THEN 'it says that step ' || seq || ' of its parent began it, which began others'
    ELSE 'it says that step ' || seq || ' ended the child, which ended otherwise or not at all' END
FROM unforked WHERE known;

-- name: branch_orphan_unknown
INSERT INTO suspect
SELECT 'branch_orphan', job, seq, topic, part, at, CASE role
    WHEN 'called' THEN 'it says that step ' || seq || ' of its parent began it, and no such step is known'
    ELSE 'its join was told that step ' || seq || ' ended it, and no such step is known' END, stage, role
FROM unforked WHERE NOT known AND ms > :compacted;

-- name: find_joined
-- Joins that were handed on, or failed, with what their fork expects. `again`: an operator had reopened it, so it
-- waits for all.
CREATE TABLE joined AS
SELECT x.topic, x.part, x.at, x.job, x.seq, x.status, x.consumed, x.consumed_part, x.consumed_at,
    e.seq AS fork, e.first, e.expected, e.rule, x.late,
    EXISTS (SELECT 1 FROM turn AS y WHERE y.job = x.job AND y.seq > e.seq AND y.seq < x.seq AND y.status = 'failed') AS again
FROM expected AS e JOIN turn AS x ON x.job = e.job AND x.seq > e.seq AND x.stage = e.topic AND x.status IN ('running', 'failed')
WHERE e.ms >= :since
  AND NOT EXISTS (SELECT 1 FROM expected AS o WHERE o.job = e.job AND o.seq > e.seq AND o.seq < x.seq)
  AND NOT EXISTS (SELECT 1 FROM turn AS y WHERE y.job = x.job AND y.seq > e.seq AND y.seq < x.seq AND y.status = 'running')
GROUP BY x.topic, x.part, x.at;
-- name: count_joined
-- With what had come when they were: a record brings no branch after itself.
CREATE TABLE counted AS
SELECT j.*, count(b.n) FILTER (WHERE b.status = 'done') AS done, count(b.n) FILTER (WHERE b.status <> 'done') AS failed
FROM joined AS j LEFT JOIN (
    SELECT i.topic, i.part, i.at, a.n, max(a.seq), a.status
    FROM joined AS i JOIN arrival AS a ON a.parent = i.job AND a.n >= i.first AND a.n < i.first + i.expected
        AND a.topic = i.consumed AND (a.part <> i.consumed_part OR a.at <= i.consumed_at)
    GROUP BY i.topic, i.part, i.at, a.n
) AS b ON b.topic = j.topic AND b.part = j.part AND b.at = j.at
GROUP BY j.topic, j.part, j.at;

-- name: join_incomplete
INSERT INTO finding
SELECT 'join_incomplete', c.job, c.seq, c.topic, c.part, c.at,
    'of ' || c.expected || ' branches ' || c.done || ' were done and ' || c.failed || ' failed when it '
        || CASE c.status WHEN 'failed' THEN 'failed' ELSE 'was joined' END
FROM counted AS c
WHERE c.late = 0 AND c.done < c.expected AND (c.again OR NOT (
    (c.rule = 'errors' AND c.done + c.failed = c.expected)
    OR (c.rule = 'fail' AND c.failed > 0 AND c.status = 'failed')
    OR ((c.rule = 'errors' OR c.status = 'failed') AND EXISTS (
        SELECT 1 FROM record AS r INDEXED BY record_by_step
        WHERE r.job = c.job AND r.seq = c.fork AND r.topic = c.consumed AND r.part = c.consumed_part AND r.at = c.consumed_at AND r.kind = 3))));

-- name: join_lost
INSERT INTO finding
SELECT 'join_lost', f.job, f.seq, f.topic, f.part, f.at,
    'its join has consumed the ends of ' || count(c.n) || ' of ' || f.expected || ' branches, and step ' || (f.seq + 1) || ' is not there'
FROM fork AS f
JOIN expected AS e ON e.job = f.job AND e.seq <= f.seq AND e.first = f.first
JOIN part AS p ON p.topic = e.topic AND p.part = e.part
LEFT JOIN came AS c ON c.parent = f.job AND c.n >= f.first AND c.n < f.first + f.expected
WHERE f.late = 0 AND f.ms >= :since
  AND NOT EXISTS (SELECT 1 FROM state AS s INDEXED BY state_by_step WHERE s.job = f.job AND s.seq > f.seq)
  AND NOT EXISTS (SELECT 1 FROM uncaused AS u WHERE u.job = f.job AND u.seq = f.seq AND u.verdict = 'forged')
  AND (e.at < coalesce(p.head, -1) OR EXISTS (
      SELECT 1 FROM finished AS d WHERE d.topic = e.topic AND d.part = e.part AND e.at >= d.first AND e.at < d.past))
GROUP BY f.topic, f.part, f.at, e.topic, e.part, e.at
HAVING count(c.n) FILTER (WHERE c.status = 'done') = f.expected
    OR (f.seq = e.seq AND e.rule = 'errors' AND count(c.n) = f.expected)
    OR (f.seq = e.seq AND e.rule = 'fail' AND count(c.n) FILTER (WHERE c.status <> 'done') > 0)
    OR (f.seq = e.seq AND EXISTS (
        SELECT 1 FROM record AS r INDEXED BY record_by_step JOIN part AS q ON q.topic = r.topic AND q.part = r.part
        WHERE r.job = f.job AND r.seq = f.seq AND r.topic = e.topic AND r.kind = 3 AND (r.at < coalesce(q.head, -1) OR EXISTS (
            SELECT 1 FROM finished AS d WHERE d.topic = r.topic AND d.part = r.part AND r.at >= d.first AND r.at < d.past))));

-- name: join_doubled
INSERT INTO finding
SELECT 'join_doubled', y.job, y.seq, y.topic, y.part, y.at, 'step ' || max(x.seq) || ' had joined the same fork'
FROM turn AS x JOIN turn AS y ON y.job = x.job AND y.seq > x.seq AND y.status = 'running'
WHERE x.status = 'running' AND y.ms >= :since AND NOT EXISTS (
    SELECT 1 FROM state AS s INDEXED BY state_by_step
    WHERE s.job = x.job AND s.seq > x.seq AND s.seq < y.seq AND s.target = y.stage AND s.stage <> y.stage)
GROUP BY y.topic, y.part, y.at;

-- name: join_without_fork
INSERT INTO finding
SELECT 'join_without_fork', x.job, x.seq, x.topic, x.part, x.at, 'step ' || s.seq || ' of it waits for no branches'
FROM turn AS x JOIN state AS s INDEXED BY state_by_step ON s.job = x.job AND s.seq = x.seq - 1
WHERE x.ms >= :since AND x.source = 0
  AND NOT (s.target IS x.stage AND s.status = 'waiting') AND NOT (s.stage = x.stage AND s.status = 'failed')
  AND NOT EXISTS (SELECT 1 FROM finding AS f WHERE f.rule = 'join_doubled' AND f.job = x.job AND f.seq = x.seq);

-- name: join_gap
-- A step that was caused by a branch does not show that the one before it was there.
INSERT INTO suspect
SELECT 'gap', x.job, x.seq, x.topic, x.part, x.at, 'there is no step ' || (x.seq - 1), x.stage, NULL
FROM turn AS x
WHERE x.seq > 1 AND x.ms >= :since AND x.ms > :compacted AND x.late = 0
  AND NOT EXISTS (SELECT 1 FROM state AS s WHERE s.job = x.job AND s.seq = x.seq - 1)
  AND NOT EXISTS (SELECT 1 FROM uncaused AS u WHERE u.job = x.job AND u.seq = x.seq);

-- name: join_set_missing
-- Sets that the topic makes by what was consumed, and that Postgres does not have, or has otherwise.
-- What is older than the topic's retention may have been pruned.
INSERT INTO suspect
SELECT 'join_differs', e.job, e.seq, e.topic, e.part, e.at, CASE
    WHEN k.job IS NULL THEN 'Postgres has no set of its branches'
    WHEN k.first <> e.first OR k.expected <> e.expected OR k."into" <> e."into" THEN 'Postgres expects other branches, or joins them elsewhere'
    ELSE 'it was joined, and Postgres calls its set ' || k.status END,
    e."into", e.first || '/' || e.expected || '/' || CASE WHEN j.job IS NULL THEN '' ELSE 'joined' END
FROM expected AS e
JOIN topic AS t ON t.n = e.topic
JOIN part AS p ON p.topic = e.topic AND p.part = e.part
LEFT JOIN kept_join AS k ON k.job = e.job AND k.seq = e.seq
LEFT JOIN joined AS j ON j.job = e.job AND j.fork = e.seq AND j.late = 0 AND j.status = 'running'
WHERE e.ms >= :since AND e.ms > t.expired_ms
  AND (e.at < coalesce(p.head, -1) OR EXISTS (
      SELECT 1 FROM finished AS d WHERE d.topic = e.topic AND d.part = e.part AND e.at >= d.first AND e.at < d.past))
  AND NOT EXISTS (SELECT 1 FROM unexplained AS x WHERE x.topic = e.topic AND x.part = e.part AND x.at = e.at)
  AND NOT EXISTS (SELECT 1 FROM finding AS f WHERE f.rule = 'join_lost' AND f.job = e.job)
  AND (k.job IS NULL OR k.first <> e.first OR k.expected <> e.expected OR k."into" <> e."into" OR (j.job IS NOT NULL AND k.status <> 'joined'))
GROUP BY e.job, e.seq;

-- name: join_branch_missing
-- Of a set that is there.
INSERT INTO suspect
SELECT 'join_differs', c.job, NULL, c.topic, c.part, c.at, 'its join has consumed its end, and Postgres does not have it', NULL, NULL
FROM expected AS e
JOIN topic AS t ON t.n = e.topic
JOIN kept_join AS j ON j.job = e.job AND j.seq = e.seq
JOIN came AS c ON c.parent = e.job AND c.n >= e.first AND c.n < e.first + e.expected
LEFT JOIN kept_arrival AS k ON k.parent = c.parent AND k.n = c.n
WHERE e.ms >= :since AND e.ms > t.expired_ms AND k.parent IS NULL;

-- name: join_branch_differs
-- The topic was read after Postgres, so it has all that is there: from the fork on, as branches come
-- after it.
INSERT INTO finding
SELECT 'join_differs', CAST(k.parent || '/' || k.n AS BLOB), k.seq, e.topic, e.part, e.at,
    'Postgres has an end of it, ' || k.status || ', that its join topic does not have'
FROM expected AS e
JOIN kept_arrival AS k ON k.parent = e.job AND k.n >= e.first AND k.n < e.first + e.expected
WHERE e.ms >= :since AND NOT EXISTS (
    SELECT 1 FROM arrival AS a
    WHERE a.parent = k.parent AND a.n = k.n AND a.seq = k.seq AND a.status = k.status AND a.content = k.content)
GROUP BY k.parent, k.n;

-- name: join_count_differs
INSERT INTO finding
SELECT 'join_differs', c.job, c.seq, c.topic, c.part, c.at,
    'by its topic it was joined with ' || c.done || ' branches done and ' || c.failed || ' failed, by Postgres with '
        || k.done || ' and ' || k.failed
FROM counted AS c JOIN kept_join AS k ON k.job = c.job AND k.seq = c.fork
WHERE c.late = 0 AND c.status = 'running' AND k.status = 'joined' AND (k.done <> c.done OR k.failed <> c.failed)
  AND NOT EXISTS (SELECT 1 FROM finding AS f WHERE f.rule = 'join_incomplete' AND f.job = c.job AND f.seq = c.seq);

-- name: join_extra
-- Where the whole topic is still there, and was when the set was made.
INSERT INTO finding
SELECT 'join_differs', k.job, k.seq, NULL, NULL, NULL, 'Postgres has a set of branches of a fork that its topic does not have'
FROM kept_join AS k JOIN topic AS own ON own.n = k."into" JOIN topic AS t ON t.flow = own.flow AND t.role = 'join'
WHERE NOT EXISTS (SELECT 1 FROM expected AS e WHERE e.job = k.job AND e.seq = k.seq)
  AND NOT EXISTS (SELECT 1 FROM part AS p WHERE p.topic = t.n AND p.start <> 0)
  AND EXISTS (SELECT 1 FROM part AS p WHERE p.topic = t.n AND p.first_ms <= k.ms);
