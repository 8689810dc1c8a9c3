-- What the audit counts and shows.

-- name: jobs_by_status
-- Every job that has a step, by its last one.
SELECT status, count(*) FROM (
    SELECT job, status, max(seq) FROM state INDEXED BY state_by_step GROUP BY job
) GROUP BY status;

-- name: jobs_waiting_for_first_step
SELECT count(DISTINCT u.job) FROM unanswered AS u
WHERE u.seq = 0 AND NOT EXISTS (SELECT 1 FROM state AS s WHERE s.job = u.job)
  AND NOT EXISTS (SELECT 1 FROM finding AS f WHERE f.rule = 'record_lost' AND f.job = u.job);

-- name: jobs_lost_at_once
SELECT count(DISTINCT job) FROM finding AS f
WHERE f.rule = 'record_lost' AND f.seq = 1 AND NOT EXISTS (SELECT 1 FROM state AS s WHERE s.job = f.job);

-- name: records_in_flight
SELECT count(*) FROM unanswered WHERE NOT consumed;

-- name: records_by_topic
SELECT t.name, t.role, sum(r.count) FROM (
    SELECT topic, count(*) AS count FROM record GROUP BY topic
    UNION ALL SELECT topic, count(*) FROM arrival GROUP BY topic
) AS r JOIN topic AS t ON t.n = r.topic GROUP BY r.topic ORDER BY t.name;

-- name: counts
SELECT
    (SELECT count(*) FROM record) AS records,
    (SELECT count(*) FROM state WHERE source = 0) AS steps,
    (SELECT count(*) FROM state WHERE source = 1) AS steps_from_history,
    (SELECT count(*) FROM letter) AS letters,
    (SELECT count(*) FROM letter WHERE job IS NULL) AS foreign_letters,
    (SELECT count(*) FROM timer) AS timers,
    (SELECT count(*) FROM arrival) AS branch_ends,
    (SELECT count(*) FROM row) AS rows,
    (SELECT count(*) FROM effect) AS effects,
    (SELECT count(*) FROM target) AS target_effects;

-- name: effects_by_status
SELECT status, count(*) FROM effect GROUP BY status ORDER BY status;

-- name: effects_not_compared
SELECT name, count(*) FROM effect
WHERE EXISTS (SELECT 1 FROM target) AND name NOT IN (SELECT DISTINCT name FROM target)
GROUP BY name ORDER BY name;

-- name: not_projected
SELECT count(*) FROM state AS s LEFT JOIN projected AS p ON p.part = s.part
WHERE s.topic = :state AND s.late = 0 AND s.at >= coalesce(p.next, 0);

-- name: topics_seen
-- From where each topic can still be seen.
SELECT t.name, p.part, p.low, p.start, p.first_ms FROM part AS p JOIN topic AS t ON t.n = p.topic
ORDER BY t.name, p.part;

-- name: horizon
SELECT what, count FROM horizon WHERE count > 0 ORDER BY what;

-- name: findings_by_rule
SELECT rule, count(*) FROM finding GROUP BY rule;

-- name: findings
SELECT f.rule, f.job, f.seq, t.name, f.part, f.at, f.detail
FROM finding AS f LEFT JOIN topic AS t ON t.n = f.topic
WHERE :rule IS NULL OR f.rule = :rule
ORDER BY f.rule, f.job, f.seq, f.topic, f.part, f.at LIMIT :limit;

-- name: suspects
SELECT rowid, rule, job, seq, stage, key, topic, part, at FROM suspect
WHERE rowid > :after ORDER BY rowid LIMIT :limit;

-- name: acquit
DELETE FROM suspect WHERE rowid = ?;

-- name: convict
INSERT INTO finding SELECT rule, job, seq, topic, part, at, detail FROM suspect;
