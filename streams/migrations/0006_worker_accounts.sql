-- What an agent says of itself with each sign of life, for `handoff why`. The projector and the timers
-- have rows in `workers`, too: their group is the name of their agent, with the prefix.

ALTER TABLE workers
    -- Why it starts nothing though there may be work, and since which sign of life; NULL: it is not so.
    ADD COLUMN paused        text,
    ADD COLUMN paused_since  timestamptz,
    -- Of a stage: what is in its hands as of `seen_at`, see `streams.runtime.account`.
    ADD COLUMN account       json;
