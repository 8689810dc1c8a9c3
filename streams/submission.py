"""What a submission looks like on the wire, and the bulk path that sends many of them.

A submission sent twice with the same id is done once: the stage's workers skip the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from pydantic import BaseModel

from schemas.headers import (
    BORN,
    CE_ID,
    CE_SOURCE,
    CE_SPECVERSION,
    CE_TIME,
    CE_TYPE,
    FLOW,
    LINK,
    TRACEPARENT,
)
from schemas.ids import is_job_id, traceparent
from streams.config import Settings
from streams.errors import BadRecord, BadSetup, BadWorld
from streams.kafka import KafkaError, Message, idempotent_producer, meet

#: Bounds of one batch: two of them may be in memory and unconfirmed.
_BATCH_RECORDS = 10_000
_BATCH_BYTES = 16 * 2**20
_BATCHES = 2
_RECORDS_PER_POLL = 500
_POLL_S = 0.1

Item = tuple[str, bytes]


#: As the driver spells them.
WireHeaders = list[tuple[str, str | bytes | None]]


class Heading:
    """The headers of new jobs at one stage. There is no `handoff_seq`: that makes it a new job.

    `link` is the `traceparent` of the span that submits; `more` are headers on top.
    """

    def __init__(
        self, flow: str, model: type[BaseModel], link: str | None, more: WireHeaders | None = None
    ) -> None:
        name = getattr(model, "CE_TYPE", None) or f"{flow}.{model.__name__.lower()}"
        self._fixed: WireHeaders = [
            (CE_SPECVERSION, b"1.0"),
            (CE_TYPE, name.encode()),
            (CE_SOURCE, f"handoff/{flow}/submit".encode()),
            (FLOW, flow.encode()),
            *(more or ()),
        ]
        if link is not None:
            self._fixed.append((LINK, link.encode()))

    def of(self, job_id: str) -> WireHeaders:
        now = datetime.now(UTC)
        parent = traceparent(job_id, 0)
        return [
            *self._fixed,
            (CE_ID, f"{job_id}:0".encode()),
            (CE_TIME, now.isoformat(timespec="milliseconds")[:-6].encode() + b"Z"),
            (TRACEPARENT, parent.encode()),
            (BORN, b"%d" % int(now.timestamp() * 1e6)),
        ]


def check(settings: Settings, job_id: str, value: bytes) -> None:
    """Raises `BadSetup` for an id that is none, `BadRecord` for a payload that is too large."""
    if not is_job_id(job_id):
        raise BadSetup(f"A job's id is 32 lower-case hex digits, not all 0; {job_id!r} is not.")
    limit = settings.max_payload_bytes
    if len(value) > limit:
        raise BadRecord(
            f"Job {job_id} has {len(value):,} bytes; a payload may have {limit:,} "
            "(HANDOFF_MAX_PAYLOAD_BYTES). Store it elsewhere and submit a reference."
        )


def undelivered(job_id: str, topic: str, error: KafkaError) -> BadWorld:
    return BadWorld(
        f"Kafka did not confirm job {job_id} on {topic}: {error.str()}. Submit it again with the "
        "same id; if it did arrive, the second is skipped.",
        trace_id=job_id,
        topic=topic,
    )


def batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """`items` in lists that are bounded in records and bytes."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += len(item[1])
        if len(batch) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class BulkSender:
    """Sends batches and confirms each delivery. Blocking; one thread at a time.

    It has a producer of its own, whose callbacks run in the sending thread: a second thread that
    polls would fight it for the interpreter at every single delivery.
    """

    def __init__(self, settings: Settings, topic: str, heading: Heading) -> None:
        self._settings = settings
        self._topic = topic
        self._heading = heading
        self._producer = idempotent_producer(settings)
        self._met = False
        self._sent: deque[_Batch] = deque()

    def send(self, items: list[Item]) -> list[str]:
        """Send `items`; returns the ids of an earlier call that are certain now, maybe none.

        Raises `BadWorld` for the first delivery that failed; ids returned before stay accepted.
        """
        if not self._met:
            meet(self._producer, self._topic)
            self._met = True
        batch = _Batch([job_id for job_id, _ in items])
        for n, (job_id, value) in enumerate(items, 1):
            check(self._settings, job_id, value)
            headers = self._heading.of(job_id)
            while not self._offer(job_id, value, headers, batch):
                self._producer.poll(_POLL_S)
            if n % _RECORDS_PER_POLL == 0:
                self._producer.poll(0)
        self._sent.append(batch)
        return self._oldest() if len(self._sent) >= _BATCHES else []

    def finish(self) -> Iterator[list[str]]:
        """The ids that `send` has not returned yet. Raises as `send` does."""
        while self._sent:
            yield self._oldest()

    def _oldest(self) -> list[str]:
        batch = self._sent.popleft()
        while batch.unconfirmed and batch.failed is None:
            self._producer.poll(_POLL_S)
        if batch.failed is not None:
            raise undelivered(batch.failed[0], self._topic, batch.failed[1])
        return batch.ids

    def _offer(self, job_id: str, value: bytes, headers: WireHeaders, batch: _Batch) -> bool:
        try:
            self._producer.produce(
                self._topic, value, job_id.encode(), headers=headers, on_delivery=batch.on_delivery
            )
        except BufferError:
            return False
        return True


class _Batch:
    __slots__ = ("failed", "ids", "unconfirmed")

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids
        self.unconfirmed = len(ids)
        self.failed: tuple[str, KafkaError] | None = None

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        self.unconfirmed -= 1
        if error is not None and self.failed is None:
            self.failed = ((message.key() or b"?").decode(), error)
