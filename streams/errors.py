"""Errors by blame, with fields.

The record is bad: it goes to the dead-letter topic. The world is bad: the stage waits and tries
again. We are bad: the worker refuses to start or exits. Messages are sentences for people.
"""

from __future__ import annotations


class HandoffError(Exception):
    """Base of all errors that this package raises."""

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class BadRecord(HandoffError):
    """A record cannot be processed, and never will be as it is.

    Operator action: look at the dead letter, correct its producer, edit and redrive.
    """

    kind = "bad_record"


class BadWorld(HandoffError):
    """Kafka, Postgres or a target is unreachable; no attempt is spent, the work is done later.

    Raised by a handler, it pauses the stage. `after_s` is how long the other side asked for
    (`streams.retry_after.seconds`); the pause is then that long.

    Operator action: restore the service named in the message; the worker goes on by itself.
    """

    def __init__(self, message: str, *, after_s: float | None = None, **fields: object) -> None:
        super().__init__(message, **fields)
        self.after_s = after_s


class BadSetup(HandoffError):
    """The flow, the settings or the deployment do not fit together; the process does not start.

    Operator action: correct what the message names, then start again.
    """


class Fenced(HandoffError):
    """Another process holds this worker's slot.

    Operator action: give each process a slot of its own (`--slot`), then start this one again.
    """


class EffectNotDone(HandoffError):
    """Raised by an effect's function to say that the effect certainly did not happen.

    For a refused connection, a 429, a 503 answered before acting: the ledger then lets go of its
    claim, and a later run calls again, also where the target honours no idempotency key. Subclass
    it together with `BadWorld` if the retry should not spend an attempt. A `BadRecord` raised by an
    effect's function says the same: refused, nothing done.

    Operator action: none, unless it repeats; then see to the target.
    """


class EffectParked(HandoffError):
    """An effect may or may not have happened, or its arguments changed: the job waits for a person.

    Operator action: `handoff effects ls --in-doubt`, find out at the target, then resolve.
    """

    def __init__(self, message: str, *, kind: str, key: str, **fields: object) -> None:
        super().__init__(message, key=key, **fields)
        self.kind = kind
        self.key = key
