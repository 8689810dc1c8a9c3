-- Effects in doubt: what people decided about them, what came late, and what may be pruned.

ALTER TABLE effects
    -- An attempt before the present one may have called; false once the target was asked and said no.
    ADD COLUMN past_unknown  boolean NOT NULL DEFAULT false,
    -- The attempt whose own call the result is of; none if a person or the target told of it.
    ADD COLUMN settled_fence bigint;
-- The safe side for attempts that an earlier release has under way.
UPDATE effects SET past_unknown = true WHERE fence > 1 AND idempotent;
UPDATE effects SET settled_fence = fence WHERE status = 'done';

-- Append-only: resolutions by people, and settlements that came after a row was decided. Never pruned.
CREATE TABLE effect_actions (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key      text        COLLATE "C" NOT NULL,
    -- settled_late: confirmed, or turned over, a decision. happened_twice: two attempts were both done.
    action   text        NOT NULL CHECK (action IN ('happened', 'did_not_happen', 'settled_late', 'happened_twice')),
    -- A person, or `slot N (incarnation)`.
    actor    text        NOT NULL,
    reason   text        NOT NULL,
    -- The row before: its status, note, and fence.
    was      text        NOT NULL,
    was_note text,
    fence    bigint      NOT NULL,
    result   json,
    at       timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX effect_actions_by_key ON effect_actions (key, id);

-- For pruning: what is old, without reading what is not.
CREATE INDEX claims_by_time ON claims (claimed_at);
CREATE INDEX effects_ended ON effects (claimed_at) WHERE status IN ('done', 'released');
