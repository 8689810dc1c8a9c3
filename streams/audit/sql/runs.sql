-- Runs of orchestrations, and waits: rules as in rules.sql, each led by facts that only a flow with such has.

-- name: find_run_turns
-- Steps of join agents that moved runs on, each with the step that began its run; NULL: nobody knows.
CREATE TABLE run_turn AS
SELECT r.*, s.consumed, s.consumed_part, s.consumed_at, nullif(max(
    coalesce((SELECT max(b.seq) FROM run_step AS b JOIN topic AS o ON o.n = b.stage AND o.role = 'stage'
              WHERE b.job = r.job AND b.seq < r.seq), 0),
    coalesce((SELECT max(b.seq) FROM began AS b WHERE b.job = r.job AND b.seq < r.seq), 0)), 0) AS run
FROM run_step AS r JOIN topic AS t ON t.n = r.stage AND t.role = 'join'
JOIN state AS s ON s.topic = r.topic AND s.part = r.part AND s.at = r.at
WHERE NOT EXISTS (
    SELECT 1 FROM uncaused AS u
    WHERE u.job = r.job AND u.seq = r.seq AND u.verdict = 'forged' AND u.topic = r.topic AND u.part = r.part AND u.at = r.at);
-- name: index_run_turns
CREATE INDEX run_turn_by_run ON run_turn (job, run, seq);
-- name: index_run_seqs
CREATE INDEX run_turn_by_seq ON run_turn (job, seq);
-- name: index_run_causes
CREATE INDEX run_turn_by_cause ON run_turn (job, consumed_at, consumed_part, consumed, seq);

-- name: find_resting
-- Last steps of jobs that wait in a run, and whether all that it has asked for is known.
CREATE TABLE resting AS
SELECT r.*, coalesce(x.run, r.seq) AS run, r.seq - coalesce(x.run, r.seq) = (
    SELECT count(DISTINCT o.seq) FROM run_turn AS o WHERE o.job = r.job AND o.run = x.run) AS whole
FROM run_step AS r LEFT JOIN run_turn AS x ON x.job = r.job AND x.seq = r.seq AND x.topic = r.topic AND x.part = r.part AND x.at = r.at
WHERE r.late = 0 AND r.ms >= :since AND r.status = 'waiting' AND NOT r.ended
  AND NOT EXISTS (SELECT 1 FROM state AS s INDEXED BY state_by_step WHERE s.job = r.job AND s.seq > r.seq)
  AND NOT EXISTS (
    SELECT 1 FROM uncaused AS u
    WHERE u.job = r.job AND u.seq = r.seq AND u.verdict = 'forged' AND u.topic = r.topic AND u.part = r.part AND u.at = r.at);

-- name: find_told
-- What join agents have consumed of runs, as their journals spell it; `run` NULL: whichever was open.
CREATE TABLE told AS
SELECT x.* FROM (
    SELECT topic, part, at, job, seq AS run, 'start' AS kind, '' AS ref, ms FROM began
    UNION ALL SELECT topic, part, at, job, run, 'timer', CAST(n AS TEXT), ms FROM fired
    UNION ALL SELECT topic, part, at, job, NULL, 'signal', id, ms FROM sent
    UNION ALL SELECT a.topic, a.part, a.at, a.parent, x.run, 'call', CAST(a.n AS TEXT), a.ms
    FROM run_turn AS x JOIN arrival AS a ON a.parent = x.job AND a.n >= x.first AND a.n < x.first + x.calls
) AS x JOIN part AS p ON p.topic = x.topic AND p.part = x.part
WHERE x.at < coalesce(p.head, -1) OR EXISTS (
    SELECT 1 FROM finished AS f WHERE f.topic = x.topic AND f.part = x.part AND x.at >= f.first AND x.at < f.past);

-- name: index_told
CREATE INDEX told_by_event ON told (job, run, kind, ref);
-- name: index_told_places
CREATE INDEX told_by_place ON told (topic, part, at);

-- name: run_doubled
INSERT INTO finding
SELECT 'run_doubled', y.job, y.seq, y.topic, y.part, y.at, 'step ' || max(x.seq) || ' had ended the same run'
FROM run_turn AS x JOIN run_turn AS y ON y.job = x.job AND y.run = x.run AND y.seq > x.seq
WHERE x.ended AND y.ended AND x.status NOT IN ('failed', 'waiting') AND y.status NOT IN ('failed', 'waiting') AND y.ms >= :since
GROUP BY y.topic, y.part, y.at;

-- name: run_without_start
-- Before it the same run has begun, or waits, or has failed and was brought back.
INSERT INTO finding
SELECT 'run_without_start', y.job, y.seq, y.topic, y.part, y.at, 'step ' || s.seq || ' of it is none of a run that goes on'
FROM run_turn AS y JOIN state AS s INDEXED BY state_by_step ON s.job = y.job AND s.seq = y.seq - 1
WHERE y.ms >= :since
  AND NOT EXISTS (
    SELECT 1 FROM run_step AS b WHERE b.job = y.job AND b.seq = s.seq AND b.runs = y.runs AND b.status IN ('waiting', 'failed'))
  -- What only the history has does not say whose it is.
  AND NOT EXISTS (
    SELECT 1 FROM state AS o INDEXED BY state_by_step JOIN state AS p ON p.topic = o.topic AND p.part = o.part AND p.at = o.at
    WHERE o.job = y.job AND o.seq = s.seq AND p.source = 1)
  AND NOT EXISTS (SELECT 1 FROM finding AS f WHERE f.rule = 'run_doubled' AND f.job = y.job AND f.seq = y.seq)
GROUP BY y.topic, y.part, y.at;

-- name: run_cause_shared
-- A record leads to one step of a run.
INSERT INTO finding
SELECT 'state_without_cause', y.job, y.seq, y.topic, y.part, y.at, 'it names the record that led to step ' || min(x.seq)
FROM run_turn AS x JOIN run_turn AS y ON y.job = x.job AND y.consumed_at = x.consumed_at
    AND y.consumed_part = x.consumed_part AND y.consumed = x.consumed AND y.seq > x.seq
WHERE y.ms >= :since
GROUP BY y.topic, y.part, y.at;

-- name: run_gap
-- A step that was caused by what its run was told does not show that the one before it was there.
INSERT INTO suspect
SELECT 'gap', x.job, x.seq, x.topic, x.part, x.at, 'there is no step ' || (x.seq - 1), x.stage, NULL
FROM run_turn AS x
WHERE x.seq > 1 AND x.ms >= :since AND x.ms > :compacted AND x.late = 0
  AND NOT EXISTS (SELECT 1 FROM state AS s INDEXED BY state_by_step WHERE s.job = x.job AND s.seq = x.seq - 1);

-- name: run_not_begun
INSERT INTO finding
SELECT 'run_lost', r.job, r.seq, r.topic, r.part, r.at, 'the record that begins its run was consumed, and step ' || (r.seq + 1) || ' is not there'
FROM resting AS r JOIN told AS t ON t.job = r.job AND t.run = r.seq AND t.kind = 'start'
GROUP BY r.job, r.seq;

-- name: run_not_moved
-- All that it has ever asked for was consumed: calls, timers, and as many signals of each name as it may still wait
-- for; those that came before it began are not counted.
INSERT INTO finding
SELECT 'run_lost', r.job, r.seq, r.topic, r.part, r.at, 'all that its run waited for was consumed, and step ' || (r.seq + 1) || ' is not there'
FROM resting AS r
WHERE r.run < r.seq AND r.whole
  AND (SELECT sum(x.calls) FROM run_turn AS x WHERE x.job = r.job AND x.run = r.run)
    <= (SELECT count(DISTINCT t.ref) FROM told AS t WHERE t.job = r.job AND t.run = r.run AND t.kind = 'call')
  AND (SELECT count(*) FROM awaited AS w JOIN run_turn AS x ON x.job = w.job AND x.seq = w.seq
       WHERE x.job = r.job AND x.run = r.run AND w.due)
    <= (SELECT count(DISTINCT t.ref) FROM told AS t WHERE t.job = r.job AND t.run = r.run AND t.kind = 'timer')
  AND NOT EXISTS (
    SELECT 1 FROM awaited AS w JOIN run_turn AS x ON x.job = w.job AND x.seq = w.seq
    WHERE x.job = r.job AND x.run = r.run AND NOT w.due AND (
        SELECT count(*) FROM awaited AS v JOIN run_turn AS y ON y.job = v.job AND y.seq = v.seq
        WHERE y.job = r.job AND y.run = r.run AND v.name = w.name)
      > (SELECT count(DISTINCT g.id) FROM sent AS g JOIN told AS t ON t.topic = g.topic AND t.part = g.part AND t.at = g.at
         JOIN began AS b ON b.job = g.job AND b.seq = r.run AND b.topic = g.topic AND b.part = g.part AND b.at < g.at
         WHERE g.job = r.job AND g.name = w.name));

-- name: run_step_missing
-- The journal has the step that the record led to.
INSERT INTO suspect
SELECT 'run_lost', e.job, e.step, e.topic, e.part, e.at,
    'by its journal this record led to step ' || e.step || '; it was consumed, and the step is not there', e.topic, NULL
FROM kept_event AS e JOIN part AS p ON p.topic = e.topic AND p.part = e.part
WHERE e.step IS NOT NULL AND e.ms >= :since AND e.ms > :compacted
  AND (e.at < coalesce(p.head, -1) OR EXISTS (
    SELECT 1 FROM finished AS f WHERE f.topic = e.topic AND f.part = e.part AND e.at >= f.first AND e.at < f.past))
  -- That a step is missing before others is a gap.
  AND NOT EXISTS (SELECT 1 FROM state AS s INDEXED BY state_by_step WHERE s.job = e.job AND s.seq >= e.step)
  AND NOT EXISTS (SELECT 1 FROM finding AS f WHERE f.rule = 'run_lost' AND f.job = e.job);

-- name: run_timer_missing
INSERT INTO finding
SELECT 'timer_missing', x.job, max(x.seq), x.topic, x.part, max(x.at),
    'its run has asked for ' || count(*) || ' timers, and ' || (
        SELECT count(DISTINCT t.n) FROM timer AS t WHERE t.job = x.job AND t.seq = x.run) || ' are there'
FROM run_turn AS x JOIN awaited AS w ON w.job = x.job AND w.seq = x.seq AND w.due
WHERE x.late = 0 AND x.ms >= :since AND NOT EXISTS (
    SELECT 1 FROM topic AS t JOIN part AS p ON p.topic = t.n WHERE t.role = 'timers' AND p.start > 0 AND t.expired_ms >= x.ms)
GROUP BY x.job, x.run
HAVING count(*) > (SELECT count(DISTINCT t.n) FROM timer AS t WHERE t.job = x.job AND t.seq = x.run);

-- name: run_timer_overdue
INSERT INTO finding
SELECT 'timer_overdue', t.job, r.seq, t.topic, t.part, t.at,
    'it was due at ' || strftime('%Y-%m-%d %H:%M:%SZ', t.due_ms / 1000, 'unixepoch') || ' and did not come back'
FROM resting AS r JOIN timer AS t ON t.job = r.job AND t.seq = r.run
WHERE t.n IS NOT NULL AND t.due_ms < :now - :overdue AND t.due_ms >= :since
  AND NOT EXISTS (SELECT 1 FROM fired AS f WHERE f.job = t.job AND f.run = t.seq AND f.n = t.n);

-- name: run_missing
-- What is older than the topic's retention may have been pruned.
INSERT INTO suspect
SELECT 'run_differs', b.job, b.run, b.topic, b.part, b.at,
    CASE WHEN k.job IS NULL THEN 'Postgres has no journal of its run' ELSE 'its run is over, and Postgres calls it ' || k.status END,
    b.topic, CASE WHEN k.job IS NULL THEN '' ELSE 'ended' END
FROM told AS b JOIN topic AS t ON t.n = b.topic
LEFT JOIN kept_run AS k ON k.job = b.job AND k.seq = b.run
WHERE b.kind = 'start' AND b.ms >= :since AND b.ms > t.expired_ms
  AND NOT EXISTS (SELECT 1 FROM unexplained AS x WHERE x.topic = b.topic AND x.part = b.part AND x.at = b.at)
  AND (k.job IS NULL OR (k.status <> 'ended' AND EXISTS (
      SELECT 1 FROM run_turn AS x
      WHERE x.job = b.job AND x.run = b.run AND x.late = 0 AND x.ended AND x.status NOT IN ('failed', 'waiting'))))
GROUP BY b.job, b.run;

-- name: run_event_missing
INSERT INTO suspect
SELECT 'run_differs', x.job, x.run, x.topic, x.part, x.at, 'its run was told of ' || trim(x.kind || ' ' || x.ref) || ', and its journal does not have it',
    x.topic, x.kind || '/' || x.ref
FROM told AS x JOIN topic AS t ON t.n = x.topic
WHERE x.ms >= :since AND x.ms > t.expired_ms
  AND (x.run IS NULL OR EXISTS (SELECT 1 FROM kept_run AS k WHERE k.job = x.job AND k.seq = x.run))
  AND NOT EXISTS (
    SELECT 1 FROM kept_event AS e WHERE e.job = x.job AND e.kind = x.kind AND e.ref = x.ref AND e.run = coalesce(x.run, e.run))
GROUP BY x.job, x.run, x.kind, x.ref;

-- name: run_event_differs
-- The topic was read after Postgres, so it has all that is there.
INSERT INTO finding
SELECT 'run_differs', e.job, nullif(e.run, 0), e.topic, e.part, e.at,
    'its journal has an event ' || trim(e.kind || ' ' || e.ref) || ' by a record that says otherwise, or is not there'
FROM kept_event AS e JOIN part AS p ON p.topic = e.topic AND p.part = e.part
WHERE e.at >= p.start AND NOT CASE e.kind
    WHEN 'start' THEN EXISTS (
        SELECT 1 FROM began AS b WHERE b.job = e.job AND b.seq = e.run AND b.topic = e.topic AND b.part = e.part AND b.at = e.at)
    WHEN 'timer' THEN EXISTS (
        SELECT 1 FROM fired AS f
        WHERE f.job = e.job AND f.run = e.run AND f.n = CAST(e.ref AS INTEGER) AND f.topic = e.topic AND f.part = e.part AND f.at = e.at)
    WHEN 'signal' THEN EXISTS (
        SELECT 1 FROM sent AS g
        WHERE g.job = e.job AND g.id = e.ref AND g.name = e.detail AND g.topic = e.topic AND g.part = e.part AND g.at = e.at)
    WHEN 'call' THEN EXISTS (
        SELECT 1 FROM arrival AS a
        WHERE a.topic = e.topic AND a.part = e.part AND a.at = e.at AND a.parent = e.job AND a.n = CAST(e.ref AS INTEGER)
          -- Perhaps 'cancelled with its run'.
          AND (a.status = e.detail OR e.detail LIKE a.status || ' %') AND a.content = e.content)
    ELSE EXISTS (
        SELECT 1 FROM record AS r INDEXED BY record_by_step
        WHERE r.job = e.job AND r.topic = e.topic AND r.part = e.part AND r.at = e.at) END;

-- name: run_extra
-- Where the whole topic is still there, and was when the run began.
INSERT INTO finding
SELECT 'run_differs', k.job, k.seq, NULL, NULL, NULL, 'Postgres has a journal of a run that its topic does not have'
FROM kept_run AS k
WHERE NOT EXISTS (SELECT 1 FROM began AS b WHERE b.job = k.job AND b.seq = k.seq)
  AND NOT EXISTS (SELECT 1 FROM part AS p JOIN topic AS t ON t.n = p.topic WHERE t.role = 'join' AND p.start <> 0)
  AND EXISTS (SELECT 1 FROM part AS p JOIN topic AS t ON t.n = p.topic WHERE t.role = 'join' AND p.first_ms <= k.ms);
