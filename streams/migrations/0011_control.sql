-- Control (decision 17): a join whose parent is cancelled is closed as such, by the record that said so.

ALTER TABLE joins
    DROP CONSTRAINT joins_status_check,
    ADD CONSTRAINT joins_status_check CHECK (status IN ('open', 'joined', 'failed', 'cancelled')),
    -- The job from which on cancels count, where it is not the root: see schemas.headers.SHIELDED.
    ADD COLUMN shielded text COLLATE "C";

-- Of a child: the same, by its last step.
ALTER TABLE jobs ADD COLUMN shielded text COLLATE "C";
