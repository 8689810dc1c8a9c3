-- Jobs that repeat another one from a stage on (`handoff jobs rerun`), written before they are sent.
CREATE TABLE reruns (
    -- The new job, and the job that it repeats.
    trace_id   text        COLLATE "C" PRIMARY KEY,
    rerun_of   text        COLLATE "C" NOT NULL,
    stage      text        NOT NULL,
    label      text        NOT NULL,
    -- The job under whose keys its effects are done: itself, or that of the original.
    keys_of    text        COLLATE "C" NOT NULL,
    who        text        NOT NULL,
    why        text        NOT NULL DEFAULT '',
    asked_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX reruns_by_keys ON reruns (keys_of);
CREATE INDEX reruns_by_original ON reruns (rerun_of);
