-- The rules, in the order in which `rules.py` runs them. Parameters: :now, :stuck (age), :overdue (age),
-- :since (0: from the beginning), :compacted (older states may have been compacted away), :state (the
-- number of job-state). What can be explained by the horizon is counted there; `suspect` rows are
-- looked at again in Postgres.

-- name: history_extra
-- Young rows of the history whose record is not in the topic: compaction cannot have taken it.
INSERT INTO finding
SELECT 'history_extra', h.job, h.seq, h.topic, h.part, h.at, 'job_history has a step that job-state does not have'
FROM history AS h JOIN part AS p ON p.topic = h.topic AND p.part = h.part
WHERE h.at >= p.start AND h.ms > :compacted
  AND NOT EXISTS (SELECT 1 FROM state AS s WHERE s.topic = h.topic AND s.part = h.part AND s.at = h.at);

-- name: history_missing
INSERT INTO finding
SELECT 'history_missing', s.job, s.seq, s.topic, s.part, s.at, 'the projection has passed it, and job_history does not have it'
FROM state AS s JOIN projected AS p ON p.part = s.part
WHERE s.at < p.next AND s.ms >= :since
  AND NOT EXISTS (SELECT 1 FROM history AS h WHERE h.topic = s.topic AND h.part = s.part AND h.at = s.at);

-- name: history_differs
INSERT INTO finding
SELECT 'history_differs', s.job, s.seq, s.topic, s.part, s.at,
    'job_history differs in ' || CASE
        WHEN h.job <> s.job OR h.seq <> s.seq THEN 'job or step'
        WHEN h.stage <> s.stage OR h.status <> s.status THEN 'stage or status'
        WHEN h.target IS NOT s.target OR h.consumed IS NOT s.consumed OR h.consumed_part IS NOT s.consumed_part
          OR h.consumed_at IS NOT s.consumed_at THEN 'what it consumed or where it handed to'
        ELSE 'data, error, attempts, worker, usage or times' END
FROM history AS h JOIN state AS s ON s.topic = h.topic AND s.part = h.part AND s.at = h.at
WHERE h.job <> s.job OR h.seq <> s.seq OR h.stage <> s.stage OR h.status <> s.status
   OR h.target IS NOT s.target OR h.consumed IS NOT s.consumed OR h.consumed_part IS NOT s.consumed_part
   OR h.consumed_at IS NOT s.consumed_at OR h.content IS NOT s.content;

-- name: merge_history
-- What the topic has lost is taken from the history, but for what it never had.
INSERT INTO state
SELECT h.topic, h.part, h.at, h.job, h.seq, h.stage, h.status, h.consumed, h.consumed_part, h.consumed_at,
    h.target, h.content, h.ms, h.produced_ms, NULL, 0, 1
FROM history AS h LEFT JOIN part AS p ON p.topic = h.topic AND p.part = h.part
WHERE NOT EXISTS (SELECT 1 FROM state AS s WHERE s.topic = h.topic AND s.part = h.part AND s.at = h.at)
  AND NOT (p.start IS NOT NULL AND h.at >= p.start AND h.ms > :compacted);

-- name: find_last
-- The fold of job-state as far as the projection has read it.
CREATE TABLE last AS
SELECT s.job, max(s.seq) AS seq FROM state AS s INDEXED BY state_by_step
WHERE s.topic <> :state OR s.at < coalesce((SELECT next FROM projected AS p WHERE p.part = s.part), 0)
GROUP BY s.job;

-- name: index_last
CREATE UNIQUE INDEX last_by_job ON last (job, seq);

-- name: projection_missing
INSERT INTO suspect
SELECT 'projection_missing', s.job, s.seq, s.topic, s.part, s.at, 'jobs has no row of it', s.stage, NULL
FROM last AS l JOIN state AS s INDEXED BY state_by_step ON s.job = l.job AND s.seq = l.seq
WHERE NOT EXISTS (SELECT 1 FROM row AS r WHERE r.job = l.job) AND s.ms >= :since
GROUP BY s.job;

-- name: projection_extra
INSERT INTO suspect
SELECT 'projection_extra', r.job, r.seq, NULL, NULL, NULL, 'jobs has a row of it, and no step is known', r.stage, NULL
FROM row AS r WHERE NOT EXISTS (SELECT 1 FROM last AS l WHERE l.job = r.job);

-- name: projection_differs
INSERT INTO finding
SELECT 'projection_differs', s.job, s.seq, s.topic, s.part, s.at,
    'jobs differs in ' || CASE
        WHEN r.seq <> l.seq THEN 'seq: it says ' || r.seq || ', the log says ' || l.seq
        WHEN r.status <> s.status THEN 'status: it says ' || r.status || ', the log says ' || s.status
        WHEN r.stage <> s.stage THEN 'stage'
        WHEN s.source = 0 AND r.parent IS NOT s.parent THEN 'parent'
        ELSE 'data, error, attempts, worker, usage or times' END
FROM last AS l JOIN row AS r ON r.job = l.job
JOIN state AS s INDEXED BY state_by_step ON s.job = l.job AND s.seq = l.seq
WHERE NOT EXISTS (
    SELECT 1 FROM state AS x INDEXED BY state_by_step
    WHERE x.job = l.job AND x.seq = r.seq AND x.seq = l.seq AND x.stage = r.stage AND x.status = r.status
      AND x.content IS r.content AND (x.source = 1 OR x.parent IS r.parent)
)
GROUP BY s.job;

-- name: projection_behind
INSERT INTO finding
SELECT 'projection_behind', NULL, NULL, s.topic, s.part, min(s.at),
    count(*) || ' steps older than --stuck-after are not in the projection'
FROM state AS s LEFT JOIN projected AS p ON p.part = s.part
WHERE s.topic = :state AND s.late = 0 AND s.at >= coalesce(p.next, 0) AND s.ms >= :since AND s.ms < :now - :stuck
GROUP BY s.part;

-- name: find_uncaused
CREATE TABLE uncaused AS
SELECT s.topic, s.part, s.at, s.job, s.seq, s.stage, s.ms, s.consumed, s.consumed_part, s.consumed_at, '' AS verdict
FROM state AS s INDEXED BY state_by_step
WHERE s.late = 0 AND s.ms >= :since AND NOT EXISTS (
    SELECT 1 FROM record AS r INDEXED BY record_by_step
    WHERE r.job = s.job AND r.seq = s.seq - 1 AND r.topic = s.consumed AND r.part = s.consumed_part
      AND r.at = s.consumed_at AND r.kind <> 5 AND s.consumed = s.stage
)
  -- A join goes on by the record that made it complete, whatever that says of its parent.
  AND NOT EXISTS (
    SELECT 1 FROM arrival AS a INDEXED BY arrival_by_place
    WHERE a.topic = s.consumed AND a.part = s.consumed_part AND a.at = s.consumed_at AND a.parent = s.job
      AND s.consumed = s.stage
)
  AND NOT EXISTS (
    SELECT 1 FROM topic AS t JOIN record AS r INDEXED BY record_by_step
    WHERE t.n = s.stage AND t.role = 'join' AND s.consumed = s.stage AND r.job = s.job AND (r.seq > 0 OR r.kind = 8)
      AND r.seq < s.seq AND r.topic = s.consumed AND r.part = s.consumed_part AND r.at = s.consumed_at AND r.kind <> 5
);
-- name: index_uncaused
CREATE INDEX uncaused_by_step ON uncaused (job, seq, verdict);
-- name: judge_uncaused
-- Gone: the record lay before the start, or in a topic that was deleted before it could see this one.
UPDATE uncaused SET verdict = CASE
    WHEN consumed = 0 AND NOT EXISTS (
        SELECT 1 FROM part AS p WHERE p.topic = uncaused.stage AND p.first_ms <= coalesce((
            SELECT s.produced_ms FROM state AS s
            WHERE s.topic = uncaused.topic AND s.part = uncaused.part AND s.at = uncaused.at), uncaused.ms)
    ) THEN 'gone'
    WHEN consumed = stage AND EXISTS (
        SELECT 1 FROM part AS p
        WHERE p.topic = uncaused.consumed AND p.part = uncaused.consumed_part
          AND uncaused.consumed_at >= 0 AND uncaused.consumed_at < p.start
    ) THEN 'gone'
    ELSE 'forged' END;

-- name: state_without_cause
INSERT INTO finding
SELECT 'state_without_cause', u.job, u.seq, u.topic, u.part, u.at, CASE
    WHEN u.consumed IS NULL THEN 'it names no record that it consumed'
    ELSE 'it names ' || coalesce(t.name, 'a topic that is not there') || '[' || u.consumed_part || ']@' || u.consumed_at
        || ', and no record of this job and step lies there' END
FROM uncaused AS u LEFT JOIN topic AS t ON t.n = u.consumed WHERE u.verdict = 'forged';

-- name: causes_gone
INSERT INTO horizon SELECT 'causes_gone', count(*) FROM uncaused WHERE verdict = 'gone';

-- name: topic_truncated
INSERT INTO finding
SELECT 'topic_truncated', NULL, NULL, u.consumed, u.consumed_part, p.low,
    count(*) || ' consumed records before its start are gone, though its retention has not passed'
FROM uncaused AS u
JOIN part AS p ON p.topic = u.consumed AND p.part = u.consumed_part
JOIN topic AS t ON t.n = u.consumed
JOIN state AS s ON s.topic = u.topic AND s.part = u.part AND s.at = u.at
WHERE u.verdict = 'gone' AND u.consumed_at < p.low AND s.produced_ms > t.expired_ms AND s.produced_ms >= :since
GROUP BY u.consumed, u.consumed_part;

-- name: gap
INSERT INTO suspect
SELECT 'gap', u.job, u.seq, u.topic, u.part, u.at, 'there is no step ' || (u.seq - 1), u.stage, NULL
FROM uncaused AS u JOIN state AS s ON s.topic = u.topic AND s.part = u.part AND s.at = u.at
WHERE u.verdict = 'gone' AND u.seq > 1 AND s.produced_ms > :compacted
  AND NOT EXISTS (SELECT 1 FROM state AS x WHERE x.job = u.job AND x.seq = u.seq - 1);

-- name: steps_unknown
INSERT INTO horizon
SELECT 'steps_unknown', count(*)
FROM uncaused AS u JOIN state AS s ON s.topic = u.topic AND s.part = u.part AND s.at = u.at
WHERE u.verdict = 'gone' AND u.seq > 1 AND coalesce(s.produced_ms, 0) <= :compacted
  AND NOT EXISTS (SELECT 1 FROM state AS x WHERE x.job = u.job AND x.seq = u.seq - 1);

-- name: step_doubled
INSERT INTO finding
SELECT CASE WHEN stage NOT IN (SELECT n FROM topic WHERE role = 'join') THEN 'step_doubled'
        WHEN EXISTS (SELECT 1 FROM run_step AS r WHERE r.job = state.job AND r.seq = state.seq) THEN 'run_doubled'
        ELSE 'join_doubled' END,
    job, seq, topic, part, max(at), count(*) || ' records say that they are this step'
FROM state INDEXED BY state_by_step GROUP BY job, seq HAVING count(*) > 1;

-- name: step_after_end
INSERT INTO finding
SELECT 'step_after_end', b.job, b.seq, b.topic, b.part, b.at, 'step ' || a.seq || ' was the last one: ' || a.status
FROM state AS a INDEXED BY state_by_step
JOIN state AS b INDEXED BY state_by_step ON b.job = a.job AND b.seq = a.seq + 1
WHERE a.status IN ('done', 'failed', 'cancelled') AND b.ms >= :since
  AND NOT EXISTS (SELECT 1 FROM uncaused AS u WHERE u.job = b.job AND u.seq = b.seq AND u.verdict = 'forged')
  AND (a.status = 'done' OR EXISTS (
      SELECT 1 FROM record AS r INDEXED BY record_by_step
      WHERE r.job = b.job AND r.seq = a.seq AND r.topic = b.consumed AND r.part = b.consumed_part
        AND r.at = b.consumed_at AND r.kind <> 2)
    OR EXISTS (
      SELECT 1 FROM arrival AS r INDEXED BY arrival_by_place
      WHERE r.topic = b.consumed AND r.part = b.consumed_part AND r.at = b.consumed_at));

-- name: find_unseen
-- Hand-offs that a state tells of and that are not there.
CREATE TABLE unseen AS
SELECT s.job, s.seq, s.topic, s.part, s.at, s.ms, s.target, '' AS verdict
FROM state AS s INDEXED BY state_by_step
WHERE s.target IS NOT NULL AND s.late = 0 AND s.ms >= :since AND NOT EXISTS (
    SELECT 1 FROM record AS r INDEXED BY record_by_step
    WHERE r.job = s.job AND r.seq = s.seq AND r.topic = s.target AND r.kind = 1)
  -- A join that was reopened goes on waiting for what its fork expects.
  AND NOT (s.target = s.stage AND s.status = 'waiting')
UNION ALL
SELECT s.job, s.seq, s.topic, s.part, s.at, s.ms, a.topic, ''
FROM also AS a JOIN state AS s INDEXED BY state_by_step ON s.job = a.job AND s.seq = a.seq
WHERE s.late = 0 AND s.ms >= :since AND NOT EXISTS (
    SELECT 1 FROM record AS r INDEXED BY record_by_step
    WHERE r.job = a.job AND r.seq = a.seq AND r.topic = a.topic AND r.kind = 1);
-- name: judge_unseen
UPDATE unseen SET verdict = CASE
    WHEN EXISTS (SELECT 1 FROM uncaused AS u WHERE u.job = unseen.job AND u.seq = unseen.seq
                 AND u.verdict = 'forged' AND u.topic = unseen.topic AND u.part = unseen.part AND u.at = unseen.at)
    THEN 'forged'
    WHEN EXISTS (SELECT 1 FROM topic AS t WHERE t.n = unseen.target AND t.role = 'gone')
      OR EXISTS (SELECT 1 FROM state AS s WHERE s.job = unseen.job AND s.seq = unseen.seq + 1 AND s.stage = unseen.target)
    THEN 'gone'
    WHEN EXISTS (SELECT 1 FROM topic AS t WHERE t.n = unseen.target AND t.expired_ms >= unseen.ms)
      AND EXISTS (SELECT 1 FROM part AS p WHERE p.topic = unseen.target AND p.start > 0)
    THEN 'gone'
    ELSE 'lost' END;

-- name: hand_off_lost
INSERT INTO finding
SELECT 'hand_off_lost', u.job, u.seq, u.topic, u.part, u.at,
    'it was handed to ' || t.name || ', and no such record is there'
FROM unseen AS u JOIN topic AS t ON t.n = u.target WHERE u.verdict = 'lost';

-- name: hand_offs_gone
INSERT INTO horizon SELECT 'hand_offs_gone', count(*) FROM unseen WHERE verdict = 'gone';

-- name: hand_off_doubled
INSERT INTO finding
SELECT CASE WHEN EXISTS (SELECT 1 FROM turn AS x WHERE x.job = record.job AND x.seq = record.seq)
    THEN 'join_doubled'
    WHEN EXISTS (SELECT 1 FROM run_turn AS x WHERE x.job = record.job AND x.seq = record.seq)
    THEN 'run_doubled' ELSE 'hand_off_doubled' END,
    job, seq, topic, part, max(at), count(*) || ' records say that step ' || seq || ' wrote them'
FROM record INDEXED BY record_by_step WHERE kind = 1 GROUP BY job, seq, topic HAVING count(*) > 1;

-- name: find_unexplained
CREATE TABLE unexplained AS
SELECT r.topic, r.part, r.at, r.job, r.seq, r.kind, r.ms
FROM record AS r INDEXED BY record_by_step
WHERE r.kind IN (1, 2, 3) AND r.ms >= :since AND NOT EXISTS (
    SELECT 1 FROM state AS s INDEXED BY state_by_step
    WHERE s.job = r.job AND s.seq = r.seq AND (
        r.topic = CASE r.kind WHEN 1 THEN s.target ELSE s.stage END
        -- A fork's deadline.
        OR (r.kind = 3 AND r.topic = s.target AND s.status = 'waiting')))
  AND NOT EXISTS (SELECT 1 FROM also AS a WHERE a.job = r.job AND a.seq = r.seq AND a.topic = r.topic);

-- name: hand_off_without_cause
INSERT INTO suspect
SELECT 'hand_off_without_cause', job, seq, topic, part, at,
    'it says that step ' || seq || CASE kind WHEN 1 THEN ' handed it on' ELSE ' left it behind' END || ', and no such step is known',
    topic, CASE WHEN kind = 1 OR (kind = 3 AND topic IN (SELECT n FROM topic WHERE role = 'join')) THEN 'target' ELSE 'stage' END
FROM unexplained WHERE ms > :compacted;

-- name: writers_unknown
INSERT INTO horizon SELECT 'writers_unknown', count(*) FROM unexplained WHERE ms <= :compacted;

-- name: find_unanswered
-- Records of stages whose step is not there, and whether their group calls them consumed.
CREATE TABLE unanswered AS
SELECT r.topic, r.part, r.at, r.job, r.seq, r.kind, r.ms,
    r.at < coalesce((SELECT p.head FROM part AS p WHERE p.topic = r.topic AND p.part = r.part), -1)
    OR EXISTS (SELECT 1 FROM finished AS f
               WHERE f.topic = r.topic AND f.part = r.part AND r.at >= f.first AND r.at < f.past) AS consumed
FROM record AS r INDEXED BY record_by_step
WHERE r.topic IN (SELECT n FROM topic WHERE role = 'stage') AND r.kind <> 5 AND r.ms >= :since
  AND NOT EXISTS (
      SELECT 1 FROM state AS s INDEXED BY state_by_step
      WHERE s.job = r.job AND s.seq = r.seq + 1 AND s.stage = r.topic);

-- name: find_unanswered_joins
-- Of join topics: what a redrive brought back and what is no record of a join have steps of their own;
-- of the others only those count that nobody has read.
INSERT INTO unanswered
SELECT r.topic, r.part, r.at, r.job, CASE WHEN r.kind <> 8 THEN r.seq END, r.kind, r.ms, r.at < coalesce(p.head, -1) OR EXISTS (
    SELECT 1 FROM finished AS f
    WHERE f.topic = r.topic AND f.part = r.part AND r.at >= f.first AND r.at < f.past) AS consumed
FROM topic AS t CROSS JOIN record AS r ON r.topic = t.n JOIN part AS p ON p.topic = r.topic AND p.part = r.part
WHERE t.role = 'join' AND r.kind <> 5 AND r.ms >= :since AND (r.kind IN (2, 4) OR NOT consumed)
  AND NOT EXISTS (
      SELECT 1 FROM state AS s INDEXED BY state_by_step
      WHERE s.job = r.job AND s.seq = r.seq + 1 AND s.stage = r.topic AND r.kind IN (2, 4));
-- name: find_unanswered_arrivals
INSERT INTO unanswered
SELECT a.topic, a.part, a.at, a.parent, NULL, NULL, a.ms, a.at < coalesce(p.head, -1) OR EXISTS (
    SELECT 1 FROM finished AS f
    WHERE f.topic = a.topic AND f.part = a.part AND a.at >= f.first AND a.at < f.past) AS consumed
FROM arrival AS a JOIN part AS p ON p.topic = a.topic AND p.part = a.part
WHERE a.ms >= :since AND NOT consumed;

-- name: record_lost
INSERT INTO suspect
SELECT 'record_lost', u.job, u.seq + 1, u.topic, u.part, u.at,
    'its group has consumed it, and step ' || (u.seq + 1) || ' is not there', u.topic, NULL
FROM unanswered AS u WHERE u.consumed;

-- name: stuck
INSERT INTO finding
SELECT 'stuck', u.job, u.seq + 1, u.topic, u.part, u.at,
    'it waits to be consumed since ' || strftime('%Y-%m-%d %H:%M:%SZ', u.ms / 1000, 'unixepoch')
FROM unanswered AS u WHERE NOT u.consumed AND u.ms < :now - :stuck;

-- name: timer_overdue
INSERT INTO finding
SELECT 'timer_overdue', t.job, t.seq, t.topic, t.part, t.at,
    'it was due at ' || strftime('%Y-%m-%d %H:%M:%SZ', t.due_ms / 1000, 'unixepoch') || ' and did not come back'
FROM timer AS t
WHERE t.due_ms < :now - :overdue AND t.due_ms >= :since
  AND EXISTS (SELECT 1 FROM state AS s WHERE s.job = t.job AND s.seq = t.seq AND s.status = 'waiting')
  AND NOT EXISTS (SELECT 1 FROM state AS s WHERE s.job = t.job AND s.seq > t.seq)
  AND NOT EXISTS (SELECT 1 FROM record AS r WHERE r.job = t.job AND r.seq = t.seq AND r.kind IN (2, 3));

-- name: removed_unread
INSERT INTO finding
SELECT 'removed_unread', NULL, NULL, p.topic, p.part, p.low,
    'its group stands at ' || p.head || ', and the topic begins at ' || p.low || ': what lay between was never consumed'
FROM part AS p JOIN topic AS t ON t.n = p.topic AND t.role IN ('stage', 'join')
WHERE p.low - p.head > 1 + coalesce((
    SELECT sum(min(f.past, p.low) - f.first) FROM finished AS f
    WHERE f.topic = p.topic AND f.part = p.part AND f.first < p.low), 0);

-- name: find_unlettered
-- Ended or parked steps without a letter; those that wait for a timer, or for children, need none.
CREATE TABLE unlettered AS
SELECT s.job, s.seq, s.topic, s.part, s.at, s.status, s.ms, s.stage
FROM state AS s INDEXED BY state_by_step
WHERE s.status IN ('failed', 'waiting') AND s.late = 0 AND s.ms >= :since
  AND NOT EXISTS (SELECT 1 FROM uncaused AS u WHERE u.job = s.job AND u.seq = s.seq AND u.verdict = 'forged')
  AND NOT EXISTS (
      SELECT 1 FROM letter AS l JOIN topic AS t ON t.n = l.topic JOIN topic AS st ON st.n = s.stage
      WHERE l.job = s.job AND l.seq = s.seq AND t.flow = st.flow AND t.stage = st.stage)
  AND NOT (s.status = 'waiting' AND EXISTS (SELECT 1 FROM timer AS t WHERE t.job = s.job AND t.seq = s.seq))
  AND NOT (s.status = 'waiting' AND EXISTS (SELECT 1 FROM topic AS t WHERE t.n = s.target AND t.stage = 'join') AND NOT EXISTS (
      SELECT 1 FROM expected AS e WHERE e.job = s.job AND e.seq = s.seq AND e.deadline_ms IS NOT NULL))
  -- A run that goes on waits for what it asked for; of a step that only the history has, nobody knows.
  AND NOT (s.status = 'waiting' AND s.stage IN (SELECT n FROM topic WHERE role = 'join') AND (s.source = 1 OR EXISTS (
      SELECT 1 FROM run_step AS r
      WHERE r.job = s.job AND r.seq = s.seq AND r.topic = s.topic AND r.part = s.part AND r.at = s.at AND NOT r.ended)));

-- name: letter_missing
INSERT INTO finding
SELECT CASE u.status WHEN 'failed' THEN 'letter_missing' ELSE 'timer_missing' END,
    u.job, u.seq, u.topic, u.part, u.at, CASE u.status
        WHEN 'failed' THEN 'it failed, and no dead letter of it is there'
        ELSE 'it waits, and neither a dead letter nor a timer of it is there' END
FROM unlettered AS u JOIN topic AS st ON st.n = u.stage
WHERE NOT EXISTS (
    SELECT 1 FROM topic AS t JOIN part AS p ON p.topic = t.n
    WHERE p.start > 0 AND t.expired_ms >= u.ms AND (
        (t.role = 'letters' AND t.flow = st.flow AND t.stage = st.stage)
        OR (t.role = 'timers' AND u.status = 'waiting')));

-- name: letters_gone
INSERT INTO horizon
SELECT 'letters_gone', count(*) - (SELECT count(*) FROM finding WHERE rule IN ('letter_missing', 'timer_missing'))
FROM unlettered;

-- name: letter_doubled
INSERT INTO finding
SELECT 'letter_doubled', job, seq, topic, part, max(at), count(*) || ' letters of this step'
FROM letter WHERE job IS NOT NULL GROUP BY job, seq, topic HAVING count(*) > 1;

-- name: letter_without_state
INSERT INTO suspect
SELECT 'letter_without_state', l.job, l.seq, l.topic, l.part, l.at, 'no step ' || l.seq || ' of it has failed or waits',
    l.topic, 'ended'
FROM letter AS l JOIN topic AS t ON t.n = l.topic
WHERE l.job IS NOT NULL AND l.ms >= :since AND l.ms > :compacted AND NOT EXISTS (
    SELECT 1 FROM state AS s JOIN topic AS st ON st.n = s.stage
    WHERE s.job = l.job AND s.seq = l.seq AND s.status IN ('failed', 'waiting')
      AND st.flow = t.flow AND st.stage = t.stage);

-- name: effect_in_doubt
-- A dead attempt at an effect that must not be repeated is in doubt before anybody comes back to it.
INSERT INTO suspect
SELECT 'effect_in_doubt', job, NULL, NULL, NULL, NULL, key || ': nobody knows whether it happened', stage, key
FROM effect WHERE status = 'in_doubt' OR (status = 'claimed' AND NOT idempotent AND over);

-- name: effect_unsettled
INSERT INTO suspect
SELECT 'effect_unsettled', e.job, NULL, NULL, NULL, NULL, e.key || ': its job is over, and its attempt left no answer', e.stage, e.key
FROM effect AS e
WHERE e.status = 'claimed' AND e.idempotent AND e.over
  AND EXISTS (SELECT 1 FROM state AS s WHERE s.job = e.job AND s.status IN ('done', 'cancelled'));

-- name: effect_repeated
INSERT INTO finding
SELECT 'effect_repeated', job, NULL, NULL, NULL, NULL,
    key || ': called ' || calls || ' times, though it is not idempotent and an earlier outcome was not known'
FROM effect WHERE NOT idempotent AND calls > 1 AND unknown AND status <> 'released';

-- name: effect_doubled
INSERT INTO finding
SELECT 'effect_doubled', job, NULL, NULL, NULL, NULL, key || ': two attempts were both done'
FROM effect WHERE twice;

-- name: effect_orphaned
INSERT INTO suspect
SELECT 'effect_orphaned', e.job, NULL, NULL, NULL, NULL, e.key || ': no record and no step of its job is known', e.stage, e.key
FROM effect AS e
WHERE :since = 0
  AND NOT EXISTS (SELECT 1 FROM state AS s WHERE s.job = e.job)
  AND NOT EXISTS (SELECT 1 FROM record AS r INDEXED BY record_by_step WHERE r.job = e.job);

-- name: target_doubled
INSERT INTO finding
SELECT 'target_doubled', e.job, NULL, NULL, NULL, NULL, t.key || ': the target did it ' || count(*) || ' times'
FROM target AS t LEFT JOIN effect AS e ON e.key = t.key GROUP BY t.key HAVING count(*) > 1;

-- name: target_unknown
INSERT INTO suspect
SELECT DISTINCT 'target_unknown', NULL, NULL, NULL, NULL, NULL, t.key || ': the target did it, and the ledger does not know it', NULL, t.key
FROM target AS t WHERE NOT EXISTS (SELECT 1 FROM effect AS e WHERE e.key = t.key);

-- name: target_missing
-- Only effects of names that the target's record has at all: others belong to other targets.
INSERT INTO finding
SELECT 'target_missing', e.job, NULL, NULL, NULL, NULL, e.key || ': the ledger calls it done, and the target did not do it'
FROM effect AS e
WHERE e.status = 'done' AND e.name IN (SELECT DISTINCT name FROM target)
  AND NOT EXISTS (SELECT 1 FROM target AS t WHERE t.key = e.key);
