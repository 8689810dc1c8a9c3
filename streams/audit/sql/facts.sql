-- The temporary database (SQLite). Topics are numbers, jobs are ids in half their length, times are
-- epoch milliseconds, `part` and `at` are partition and offset. Rows come in the order of their keys.

-- name: schema
CREATE TABLE topic (
    n INTEGER PRIMARY KEY, name TEXT, role TEXT, flow TEXT, stage TEXT,
    -- What is older may have been removed by Kafka itself; -1: nothing ever is.
    expired_ms INTEGER
);
CREATE TABLE part (
    topic INTEGER, part INTEGER, low INTEGER, start INTEGER, first_ms INTEGER,
    -- Where the stage's group stands; NULL: nowhere.
    head INTEGER,
    PRIMARY KEY (topic, part)
) WITHOUT ROWID;
-- Finished ranges past the head: from `first` to before `past`.
CREATE TABLE finished (topic INTEGER, part INTEGER, first INTEGER, past INTEGER);
-- Of stage topics and sinks. `seq` is the step that wrote it, `kind` as in wire.Kind.
CREATE TABLE record (
    topic INTEGER, part INTEGER, at INTEGER, job BLOB, seq INTEGER, kind INTEGER, ms INTEGER
);
-- First records of forked children; `seq` of the step that forked is `fork`, `n` the child's number.
CREATE TABLE branch (
    topic INTEGER, part INTEGER, at INTEGER, job BLOB, parent BLOB, n INTEGER, fork INTEGER, ms INTEGER
);
-- Of join topics, beside `record`: what a fork expects, and the ends of children, whose step is `seq`.
CREATE TABLE expected (
    topic INTEGER, part INTEGER, at INTEGER, job BLOB, seq INTEGER, "into" INTEGER, first INTEGER,
    expected INTEGER, rule TEXT, deadline_ms INTEGER, ms INTEGER
);
CREATE TABLE arrival (
    topic INTEGER, part INTEGER, at INTEGER, job BLOB, parent BLOB, n INTEGER, seq INTEGER, status TEXT,
    content BLOB, ms INTEGER
);
CREATE TABLE letter (topic INTEGER, part INTEGER, at INTEGER, job BLOB, seq INTEGER, ms INTEGER);
CREATE TABLE timer (
    topic INTEGER, part INTEGER, at INTEGER, job BLOB, seq INTEGER, due_ms INTEGER, back TEXT,
    -- Of a run's: the command that it ends, of the run which step `seq` began.
    n INTEGER
);
-- Of join topics, beside `record`: what begins a run of the stage `runs`, its timers that fired, and signals.
CREATE TABLE began (
    topic INTEGER, part INTEGER, at INTEGER, job BLOB, seq INTEGER, runs INTEGER, ms INTEGER
);
CREATE TABLE fired (
    topic INTEGER, part INTEGER, at INTEGER, job BLOB, run INTEGER, n INTEGER, ms INTEGER
);
CREATE TABLE sent (
    topic INTEGER, part INTEGER, at INTEGER, job BLOB, id TEXT, name TEXT, ms INTEGER
);
-- Committed steps. `stage` is the number of the stage's topic. `consumed`: topic of the record; 0 is
-- one that is not there any more, NULL none. `late`: only explains other facts. `source` 1: not in
-- the topic (any more), taken from job_history.
CREATE TABLE state (
    topic INTEGER, part INTEGER, at INTEGER, job BLOB, seq INTEGER, stage INTEGER, status TEXT,
    consumed INTEGER, consumed_part INTEGER, consumed_at INTEGER, target INTEGER, content BLOB,
    ms INTEGER, produced_ms INTEGER, parent TEXT, late INTEGER, source INTEGER,
    PRIMARY KEY (topic, part, at)
) WITHOUT ROWID;
-- Of those, the ones that wait for children, and the ends of children.
CREATE TABLE fork (
    topic INTEGER, part INTEGER, at INTEGER, job BLOB, seq INTEGER, stage INTEGER, "into" INTEGER,
    first INTEGER, expected INTEGER, ms INTEGER, late INTEGER
);
CREATE TABLE ended (
    topic INTEGER, part INTEGER, at INTEGER, job BLOB, seq INTEGER, stage INTEGER, status TEXT,
    parent BLOB, n INTEGER, ms INTEGER, late INTEGER
);
-- And the steps of runs, with the children that they called, and what else they asked for: a signal, or
-- with an empty name a sleep; `due` where a timer ends it.
CREATE TABLE run_step (
    topic INTEGER, part INTEGER, at INTEGER, job BLOB, seq INTEGER, stage INTEGER, status TEXT, runs INTEGER,
    first INTEGER, calls INTEGER, ended INTEGER, ms INTEGER, late INTEGER
);
CREATE TABLE awaited (job BLOB, seq INTEGER, name TEXT, due INTEGER);
-- Further targets of steps that have several.
CREATE TABLE also (job BLOB, seq INTEGER, topic INTEGER);
-- job_history, as Postgres has it; a negative `topic` is a job-state that is not there any more.
CREATE TABLE history (
    topic INTEGER, part INTEGER, at INTEGER, job BLOB, seq INTEGER, stage INTEGER, status TEXT,
    consumed INTEGER, consumed_part INTEGER, consumed_at INTEGER, target INTEGER, content BLOB,
    ms INTEGER, produced_ms INTEGER,
    PRIMARY KEY (topic, part, at)
) WITHOUT ROWID;
-- The projection: `jobs`, and the next offset that it applies.
CREATE TABLE row (
    job BLOB PRIMARY KEY, seq INTEGER, stage INTEGER, status TEXT, content BLOB, parent TEXT
) WITHOUT ROWID;
CREATE TABLE projected (part INTEGER PRIMARY KEY, next INTEGER);
CREATE TABLE reject (part INTEGER, at INTEGER, PRIMARY KEY (part, at)) WITHOUT ROWID;
-- The sets that joins are decided by: `joins` and `join_arrivals`.
CREATE TABLE kept_join (
    job BLOB, seq INTEGER, "into" INTEGER, first INTEGER, expected INTEGER, status TEXT, done INTEGER,
    failed INTEGER, ms INTEGER, PRIMARY KEY (job, seq)
) WITHOUT ROWID;
CREATE TABLE kept_arrival (
    parent BLOB, n INTEGER, seq INTEGER, status TEXT, content BLOB, PRIMARY KEY (parent, n)
) WITHOUT ROWID;
-- The journals of runs: `runs` and `run_events`. `topic` etc. is the record that an event came by.
CREATE TABLE kept_run (job BLOB, seq INTEGER, status TEXT, ms INTEGER, PRIMARY KEY (job, seq)) WITHOUT ROWID;
CREATE TABLE kept_event (
    job BLOB, run INTEGER, kind TEXT, ref TEXT, detail TEXT, content BLOB, topic INTEGER, part INTEGER, at INTEGER,
    step INTEGER, ms INTEGER, PRIMARY KEY (job, kind, ref, run)
) WITHOUT ROWID;
CREATE TABLE effect (
    key TEXT PRIMARY KEY, job BLOB, stage INTEGER, name TEXT, status TEXT, idempotent INTEGER,
    calls INTEGER, unknown INTEGER, over INTEGER, twice INTEGER
) WITHOUT ROWID;
-- What a target says that it did.
CREATE TABLE target (key TEXT, name TEXT);
CREATE TABLE finding (
    rule TEXT, job BLOB, seq INTEGER, topic INTEGER, part INTEGER, at INTEGER, detail TEXT
);
-- Findings that want a second look in Postgres; `stage` is a topic's number.
CREATE TABLE suspect (
    rule TEXT, job BLOB, seq INTEGER, topic INTEGER, part INTEGER, at INTEGER, detail TEXT,
    stage INTEGER, key TEXT
);
CREATE TABLE horizon (what TEXT PRIMARY KEY, count INTEGER) WITHOUT ROWID;

-- name: insert_topic
INSERT INTO topic VALUES (?, ?, ?, ?, ?, ?);
-- name: insert_part
INSERT INTO part VALUES (?, ?, ?, ?, ?, ?);
-- name: insert_finished
INSERT INTO finished VALUES (?, ?, ?, ?);
-- name: insert_record
INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?);
-- name: insert_branch
INSERT INTO branch VALUES (?, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_expected
INSERT INTO expected VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_arrival
INSERT INTO arrival VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_fork
INSERT INTO fork VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_ended
INSERT INTO ended VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_kept_join
INSERT INTO kept_join VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_kept_arrival
INSERT INTO kept_arrival VALUES (?, ?, ?, ?, ?);
-- name: insert_letter
INSERT INTO letter VALUES (?, ?, ?, ?, ?, ?);
-- name: insert_timer
INSERT INTO timer VALUES (?, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_began
INSERT INTO began VALUES (?, ?, ?, ?, ?, ?, ?);
-- name: insert_fired
INSERT INTO fired VALUES (?, ?, ?, ?, ?, ?, ?);
-- name: insert_sent
INSERT INTO sent VALUES (?, ?, ?, ?, ?, ?, ?);
-- name: insert_run_step
INSERT INTO run_step VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_awaited
INSERT INTO awaited VALUES (?, ?, ?, ?);
-- name: insert_kept_run
INSERT INTO kept_run VALUES (?, ?, ?, ?);
-- name: insert_kept_event
INSERT INTO kept_event VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_state
INSERT OR IGNORE INTO state VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_also
INSERT INTO also VALUES (?, ?, ?);
-- name: insert_history
INSERT OR IGNORE INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_row
INSERT INTO row VALUES (?, ?, ?, ?, ?, ?);
-- name: insert_projected
INSERT INTO projected VALUES (?, ?);
-- name: insert_reject
INSERT OR IGNORE INTO reject VALUES (?, ?);
-- name: insert_effect
INSERT INTO effect VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: insert_target
INSERT INTO target VALUES (?, ?);
-- name: insert_finding
INSERT INTO finding VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: index_records
-- All that the rules ask of a record is in it, so they walk two indexes side by side.
CREATE INDEX record_by_step ON record (job, seq, topic, part, at, kind, ms);
-- name: index_branches
CREATE INDEX branch_by_number ON branch (parent, n, fork);
-- name: index_expected
CREATE INDEX expected_by_step ON expected (job, seq);
-- name: index_arrivals
CREATE INDEX arrival_by_number ON arrival (parent, n, topic, part, at, seq, status);
-- name: index_arrived_steps
CREATE INDEX arrival_by_step ON arrival (job, seq, status);
-- name: index_arrival_places
CREATE INDEX arrival_by_place ON arrival (topic, part, at, parent);
-- name: index_forks
CREATE INDEX fork_by_step ON fork (job, seq, first, expected);
-- name: index_run_steps
CREATE INDEX run_step_by_step ON run_step (job, seq);
-- name: index_began
CREATE INDEX began_by_step ON began (job, seq);
-- name: index_fired
CREATE INDEX fired_by_command ON fired (job, run, n);
-- name: index_sent
CREATE INDEX sent_by_job ON sent (job, id);
-- name: index_awaited
CREATE INDEX awaited_by_step ON awaited (job, seq);
-- name: index_letters
CREATE INDEX letter_by_step ON letter (job, seq, topic);
-- name: index_timers
CREATE INDEX timer_by_step ON timer (job, seq, n);
-- name: index_states
CREATE INDEX state_by_step ON state (
    job, seq, stage, target, status, consumed, consumed_part, consumed_at, ms, late
);
-- name: index_also
CREATE INDEX also_by_step ON also (job, seq);
-- name: index_targets
CREATE INDEX target_by_key ON target (key);
-- name: index_effects
CREATE INDEX effect_by_job ON effect (job);
