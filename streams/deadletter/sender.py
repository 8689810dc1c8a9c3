"""Produces redriven records and waits until Kafka has confirmed each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from streams.config import Settings
from streams.deadletter.actions import Sent
from streams.deadletter.letters import Letter, Place
from streams.deadletter.plan import Redriven, Refused
from streams.errors import BadSetup, BadWorld, HandoffError
from streams.kafka import (
    WORLD,
    KafkaError,
    KafkaException,
    Message,
    admin_client,
    describe_topics,
    idempotent_producer,
    meet,
)

_POLL_S: Final = 0.1
#: Faults of one record; the others go on.
_OF_THE_RECORD: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.RECORD_LIST_TOO_LARGE}
)


@dataclass(slots=True)
class Outcome:
    """`sent` is confirmed and `refused` will never be; with a `fault` the rest is unknown."""

    sent: list[Sent] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    fault: HandoffError | None = None


class Sender:
    """An idempotent producer; belongs to one thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer = idempotent_producer(settings)
        self._known: dict[str, bool] = {}

    def send(self, planned: Sequence[tuple[Letter, Redriven]]) -> Outcome:
        """Produce all of `planned`; returns when each has its answer, within the producer's
        delivery time-out."""
        outcome = Outcome()
        waiting = 0

        def answered(letter: Letter, record: Redriven) -> Callable[..., None]:
            def on_delivery(error: KafkaError | None, message: Message) -> None:
                nonlocal waiting
                waiting -= 1
                settle(outcome, letter, record, error, message)

            return on_delivery

        self._look_up(outcome, {record.topic for _, record in planned})
        for letter, record in planned:
            if outcome.fault is not None:
                break
            if not self._known[record.topic]:
                reason = f"Its topic {record.topic} does not exist: `handoff topics apply` first."
                outcome.refused.append(Refused(letter.place, letter.job, reason))
                continue
            waiting += self._produce(outcome, letter, record, answered(letter, record))
        while waiting:
            self._producer.poll(_POLL_S)
        return outcome

    def _look_up(self, outcome: Outcome, topics: set[str]) -> None:
        unknown = topics - self._known.keys()
        if not unknown:
            return
        try:
            with admin_client(self._settings) as admin:
                facts = describe_topics(self._settings, admin, sorted(unknown))
            self._known |= {name: name in facts for name in unknown}
            if facts:
                meet(self._producer, next(iter(facts)))
        except HandoffError as e:
            outcome.fault = e

    def _produce(
        self, outcome: Outcome, letter: Letter, record: Redriven, on_delivery: Callable[..., None]
    ) -> bool:
        """True when an answer will come."""
        topic, key, value, headers = record
        while True:
            try:
                self._producer.produce(
                    topic, value, key, headers=list(headers), on_delivery=on_delivery
                )
                return True
            except BufferError:
                self._producer.poll(_POLL_S)
            except KafkaException as e:
                settle(outcome, letter, record, e.args[0], None)
                return False


def settle(
    outcome: Outcome,
    letter: Letter,
    record: Redriven,
    error: KafkaError | None,
    message: Message | None,
) -> None:
    """Add Kafka's answer to `outcome`; the first fault that is not of the record alone counts."""
    if error is None and message is not None:
        place = Place(record.topic, message.partition() or 0, message.offset() or 0)
        outcome.sent.append(Sent(letter, record.value, place))
    elif error is not None and error.code() in _OF_THE_RECORD:
        reason = f"Kafka does not take it into {record.topic}: {error.str()}."
        outcome.refused.append(Refused(letter.place, letter.job, reason))
    elif error is not None and outcome.fault is None:
        text = f"Kafka did not confirm the redrive of {letter.place} to {record.topic}"
        mends = error.code() in WORLD or error.retriable() or error.fatal()
        outcome.fault = (BadWorld if mends else BadSetup)(
            f"{text}: {error.str()}. Run it again; if it did arrive, the second is skipped."
        )
