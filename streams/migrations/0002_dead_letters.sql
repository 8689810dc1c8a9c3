-- What people did about dead letters. The letters themselves are in their topics only; one without a
-- row here is open.
CREATE TABLE dead_letter_actions (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- Coordinates of the letter; the topic's name is for people.
    topic_id        uuid        NOT NULL,
    "partition"     integer     NOT NULL,
    "offset"        bigint      NOT NULL,
    topic           text        NOT NULL,
    -- The job and the step that failed; NULL for a letter that names none.
    trace_id        text        COLLATE "C",
    seq             integer,
    action          text        NOT NULL CHECK (action IN ('redrive', 'edit', 'discard')),
    who             text        NOT NULL,
    why             text        NOT NULL DEFAULT '' CHECK (action <> 'discard' OR why <> ''),
    -- All letters of one call.
    batch           uuid        NOT NULL,
    -- Of the payload in the letter and of the one that was sent, hex; the new one is NULL if none was.
    old_sha256      text        NOT NULL,
    new_sha256      text,
    -- Where the redriven record lies.
    sent_topic      text,
    sent_partition  integer,
    sent_offset     bigint,
    acted_at        timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX dead_letter_actions_by_letter ON dead_letter_actions (topic_id, "partition", "offset");
CREATE INDEX dead_letter_actions_by_job ON dead_letter_actions (trace_id);
CREATE INDEX dead_letter_actions_by_batch ON dead_letter_actions (batch);
