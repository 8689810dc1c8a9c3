"""Submitting jobs from code: `await client.submit(flow, model)` returns once Kafka has it."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import Any, Self

from opentelemetry import trace
from pydantic import BaseModel

from schemas.state import JOIN
from streams.config import Settings, load_settings
from streams.errors import BadSetup
from streams.flow import Flow, Stage
from streams.kafka import (
    KafkaError,
    Message,
    admin_client,
    describe_topics,
    idempotent_producer,
    meet,
)
from streams.orchestration.wire import signal_headers
from streams.signals import Signal
from streams.submission import BulkSender, Heading, Item, batches, check, undelivered

_POLL_S = 0.1


class Client:
    """Submits jobs; an async context manager, for any number of tasks of one event loop.

    An id that a method has given out is on disk with `acks=all`. After `BadWorld` a job may or may
    not have been accepted: submit it again with the same id.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or load_settings()
        self._producer = idempotent_producer(self._settings)
        self._stop = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="handoff-client", daemon=True)
        self._known: set[str] = set()
        self._asking = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._poller.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stop.set()
        await asyncio.to_thread(self._poller.join)

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._producer.poll(_POLL_S)

    async def submit(
        self, flow: Flow, model: BaseModel, job_id: str | None = None, stage: str | None = None
    ) -> str:
        """Start a job at `stage` (the first one if not given); returns its id, the trace id.

        Raises `BadSetup` for a model or id that does not fit, `BadRecord` for one that is too
        large, `BadWorld` when Kafka did not confirm.
        """
        target = entry_stage(flow, stage)
        if not isinstance(model, target.input):
            raise BadSetup(
                f"Stage {target.name} of flow {flow.name} takes {target.input.__name__}, not "
                f"{type(model).__name__}."
            )
        value = model.model_dump_json(by_alias=True).encode()
        job_id = secrets.token_hex(16) if job_id is None else job_id
        check(self._settings, job_id, value)
        topic = await self._topic(flow.name, target.name)
        headers = Heading(flow.name, target.input, current_span()).of(job_id)
        await self._write(topic, job_id, value, headers)
        return job_id

    async def signal(
        self,
        flow: str,
        job_id: str,
        name: str,
        value: Any = None,
        *,
        by: str,
        id: str | None = None,
    ) -> str:
        """Send a job of flow `flow` the signal `name` with a JSON `value`; returns the signal's id.

        It counts once however often it is written with the same `id`; one that the job does not
        wait for yet is kept for it. Raises `BadSetup` for a flow in which nothing waits, and for
        what is no job's id or no JSON; `BadWorld` when Kafka did not confirm.
        """
        topic = await self._topic(flow, JOIN)
        sent = Signal(name, value, by, datetime.now(UTC))
        try:
            data = sent.to_json()
        except TypeError as e:
            raise BadSetup(f"The value of signal {name} is no JSON: {e}.") from None
        check(self._settings, job_id, data)
        id = id or secrets.token_hex(16)
        await self._write(
            topic, job_id, data, signal_headers(flow, job_id, id, sent.at.isoformat())
        )
        return id

    async def _write(self, topic: str, job_id: str, value: bytes, headers: Any) -> None:
        loop = asyncio.get_running_loop()
        confirmed: asyncio.Future[None] = loop.create_future()

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            fault = None if error is None else undelivered(job_id, topic, error)
            loop.call_soon_threadsafe(_settle, confirmed, fault)

        key = job_id.encode()
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers, on_delivery=on_delivery)
                break
            except BufferError:
                await asyncio.sleep(_POLL_S)
        await confirmed

    async def submit_many(
        self, flow: Flow, items: Iterable[Item], stage: str | None = None
    ) -> AsyncIterator[list[str]]:
        """Submit (job id, JSON) pairs that are valid already; yields ids in order, once confirmed.

        Memory is bounded whatever the length of `items`. Raises as `submit` does; what was yielded
        before stays accepted.
        """
        target = entry_stage(flow, stage)
        topic = await self._topic(flow.name, target.name)
        sender = BulkSender(self._settings, topic, Heading(flow.name, target.input, current_span()))
        for batch in batches(items):
            if ids := await asyncio.to_thread(sender.send, batch):
                yield ids
        rest = sender.finish()
        while ids := await asyncio.to_thread(next, rest, []):
            yield ids

    async def _topic(self, flow: str, stage: str) -> str:
        topic = self._settings.names.stage_topic(flow, stage)
        if topic not in self._known:
            # Many may begin at once: one asks for all.
            async with self._asking:
                if topic not in self._known:
                    await asyncio.to_thread(self._must_exist, topic)
                    self._known.add(topic)
        return topic

    def _must_exist(self, topic: str) -> None:
        if not describe_topics(self._settings, admin_client(self._settings), [topic]):
            raise BadSetup(f"Topic {topic} does not exist. Run `handoff topics apply` first.")
        meet(self._producer, topic)


def entry_stage(flow: Flow, stage: str | None) -> Stage[Any, Any]:
    """The stage that a submission goes to: the flow's first unless named."""
    return flow.stages[0] if stage is None else flow.stage(stage)


def current_span() -> str | None:
    """`traceparent` of the caller's active span: another trace than the job's, so a link."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _settle(confirmed: asyncio.Future[None], fault: Exception | None) -> None:
    if confirmed.done():
        # Its task was cancelled.
        return
    if fault is None:
        confirmed.set_result(None)
    else:
        confirmed.set_exception(fault)
