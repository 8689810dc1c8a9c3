-- Limits (decision 18): what each key of each limit has given out, and who runs under it.
--
-- Every row may be lost: then handlers start at once that should have been spaced from the last one.

CREATE TABLE limit_keys (
    name      text     COLLATE "C" NOT NULL,
    key       text     COLLATE "C" NOT NULL,
    -- Moments at which a handler starts, epoch microseconds: those to come, and the last.
    booked    bigint[] NOT NULL DEFAULT '{}',
    -- When the last of the jobs that were sent away to a timer comes back, epoch microseconds.
    parked_us bigint   NOT NULL DEFAULT 0,
    -- Nothing starts before, since the clock was set back; epoch microseconds.
    closed_until_us bigint NOT NULL DEFAULT 0,
    -- From then on the row says nothing, and goes.
    idle_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name, key)
) WITH (fillfactor = 50);  -- rewritten several times a second

-- How many handlers a stage in a process runs, or is about to, under a limit of concurrency; a
-- process that does not renew it is dead.
CREATE TABLE limit_holds (
    name        text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    holder      text COLLATE "C" NOT NULL,
    held        integer NOT NULL CHECK (held > 0),
    leased_until timestamptz NOT NULL,
    PRIMARY KEY (name, key, holder)
) WITH (fillfactor = 50);
