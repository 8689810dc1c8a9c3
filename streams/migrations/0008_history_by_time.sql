-- A window of time over the history, for `handoff flow`. Steps are appended nearly in the order of their
-- commits, so a summary per block range finds them, and costs the projector next to nothing.
CREATE INDEX job_history_by_time ON job_history USING brin (committed_us) WITH (autosummarize = on);
