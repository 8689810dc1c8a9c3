"""Submitting: an id that was given out is on the broker, once, as the wire says."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from pydantic import BaseModel

from schemas import headers as h
from schemas.ids import id_from_line, is_job_id, span_id
from streams import Context, Done, Flow, stage, topics
from streams.client import Client
from streams.config import Settings
from streams.errors import BadRecord, BadSetup
from streams.kafka import Message, admin_client, describe_topics, end_offsets, reading_consumer
from tests.support.commands import Command

pytestmark = pytest.mark.services

JOB = "4bf92f3577b34da6a3ce929d0e0e4736"

SOURCE = """
from pydantic import BaseModel
from streams import Context, Done, Flow, stage

class Note(BaseModel):
    number: int

@stage("read", emits="keep")
def read(note: Note, job: Context) -> Note:
    return note

@stage("keep")
def keep(note: Note, job: Context) -> Done:
    return Done()

flow = Flow("notes", (read, keep))
"""


class Note(BaseModel):
    number: int
    text: str = ""


@stage("read", emits="keep")
def read(note: Note, job: Context) -> Note:
    return note


@stage("keep")
def keep(note: Note, job: Context) -> Done:
    return Done()


FLOW = Flow("notes", (read, keep))


@pytest.fixture
def handoff(settings: Settings, tmp_path: Path) -> Command:
    return Command(settings, tmp_path)


@pytest.fixture
def world(settings: Settings) -> Settings:
    topics.apply(FLOW, settings)
    return settings


def records(settings: Settings, stage_name: str = "read") -> list[Message]:
    """All records of a stage's topic."""
    name = settings.names.stage_topic("notes", stage_name)
    admin = admin_client(settings)
    topic = describe_topics(settings, admin, [name])[name]
    wanted = sum(end_offsets(settings, admin, topic).values())
    return list(_read(settings, name, topic.partitions, wanted))


def _read(settings: Settings, name: str, partitions: int, wanted: int) -> Iterator[Message]:
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    consumer = reading_consumer(settings, "test-reader")
    consumer.assign([TopicPartition(name, p, OFFSET_BEGINNING) for p in range(partitions)])
    while wanted:
        message = consumer.poll(30)
        assert message is not None, "the records do not come"
        if message.error() is None:
            wanted -= 1
            yield message
    consumer.close()


async def test_a_submitted_job_is_on_the_topic_of_the_first_stage(world: Settings) -> None:
    async with Client(world) as client:
        job_id = await client.submit(FLOW, Note(number=1))
    assert is_job_id(job_id)
    (message,) = records(world)
    headers = dict(message.headers() or [])
    assert (message.key(), message.value()) == (job_id.encode(), b'{"number":1,"text":""}')
    assert headers[h.TRACEPARENT] == f"00-{job_id}-{span_id(job_id, 0)}-01".encode()
    assert headers[h.FLOW] == b"notes"
    assert headers[h.CE_TYPE] == b"notes.note"
    assert int(headers[h.BORN] or b"") // 10**6 == pytest.approx(
        message.timestamp()[1] // 1000, abs=5
    )
    assert h.SEQ not in headers


async def test_a_job_may_start_at_another_stage_under_a_given_id(world: Settings) -> None:
    async with Client(world) as client:
        assert await client.submit(FLOW, Note(number=1), JOB, stage="keep") == JOB
    assert [m.key() for m in records(world, "keep")] == [JOB.encode()]
    assert records(world, "read") == []


async def test_the_span_of_the_caller_becomes_a_link(world: Settings) -> None:
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("request") as span:
        async with Client(world) as client:
            await client.submit(FLOW, Note(number=1))
    headers = dict(records(world)[0].headers() or [])
    trace_id = trace.format_trace_id(span.get_span_context().trace_id)
    assert trace_id.encode() in (headers[h.LINK] or b"")
    assert trace_id.encode() not in (headers[h.TRACEPARENT] or b"")


async def test_jobs_with_one_id_share_a_partition(world: Settings) -> None:
    async with Client(world) as client:
        for n in range(20):
            await client.submit(FLOW, Note(number=n), JOB)
    assert len({m.partition() for m in records(world)}) == 1


async def test_what_does_not_fit_is_refused_before_anything_is_sent(world: Settings) -> None:
    class Other(BaseModel):
        number: int

    async with Client(world) as client:
        with pytest.raises(BadSetup, match="takes Note, not Other"):
            await client.submit(FLOW, Other(number=1))
        with pytest.raises(BadSetup, match="hex digits"):
            await client.submit(FLOW, Note(number=1), "job 1")
        with pytest.raises(BadRecord, match="bytes"):
            await client.submit(FLOW, Note(number=1, text="x" * world.max_payload_bytes))
        with pytest.raises(BadSetup, match="no stage"):
            await client.submit(FLOW, Note(number=1), stage="nothing")
    assert records(world) == []


async def test_a_topic_that_is_missing_is_named(settings: Settings) -> None:
    async with Client(settings) as client:
        with pytest.raises(BadSetup, match=r"notes\.read does not exist.*topics apply"):
            await client.submit(FLOW, Note(number=1))


async def test_many_jobs_are_confirmed_in_order_and_are_all_there(world: Settings) -> None:
    items = [(f"{n + 1:032x}", b'{"number":%d}' % n) for n in range(25_000)]
    async with Client(world) as client:
        confirmed = [ids async for ids in client.submit_many(FLOW, iter(items))]
    assert len(confirmed) > 1
    assert [job_id for ids in confirmed for job_id in ids] == [job_id for job_id, _ in items]
    found = records(world)
    assert len(found) == len(items)
    assert {(m.key() or b"").decode(): m.value() for m in found} == dict(items)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    (tmp_path / "declared_submit.py").write_text(SOURCE)
    file = tmp_path / "notes.jsonl"
    file.write_bytes(b'{"number":1}\n{"number":1}\n{"number":2}\n')
    return file


APP = "declared_submit:flow"


def test_the_command_prints_the_ids_of_the_lines(
    world: Settings, handoff: Command, lines: Path
) -> None:
    done = handoff("submit", str(lines), "--app", APP)
    assert done.returncode == 0, done.stderr
    line = b'{"number":1}'
    expected = [id_from_line("notes", line, n) for n in (0, 1)]
    assert done.stdout.split()[:2] == expected
    assert len(set(done.stdout.split())) == 3
    assert "Submitted 3 jobs" in done.stderr
    assert sorted((m.key() or b"").decode() for m in records(world)) == sorted(done.stdout.split())


def test_the_same_file_gives_the_same_ids_packed_or_from_stdin(
    world: Settings, handoff: Command, lines: Path
) -> None:
    packed = lines.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    first = handoff("submit", str(lines), "--app", APP)
    second = handoff("submit", str(packed), "--app", APP)
    third = handoff("submit", "-", "--app", APP, stdin=lines.read_text())
    assert first.stdout == second.stdout == third.stdout


def test_invalid_lines_are_named_and_the_others_are_sent(
    world: Settings, handoff: Command, lines: Path
) -> None:
    lines.write_text('{"number":1}\n{"number":"many"}\n\n{"number":2}\n')
    done = handoff("submit", str(lines), "--app", APP, "--id-field", "number")
    assert done.returncode == 1
    assert len(done.stdout.split()) == 2
    assert "line 2: no Note: number: " in done.stderr
    assert "1 lines were invalid" in done.stderr
    assert [json.loads(m.value() or b"")["number"] for m in records(world)]


def test_a_missing_file_or_topic_is_wrong_set_up(
    settings: Settings, handoff: Command, lines: Path
) -> None:
    missing_file = handoff("submit", "nowhere.jsonl", "--app", APP)
    missing_topic = handoff("submit", str(lines), "--app", APP)
    assert (missing_file.returncode, missing_topic.returncode) == (2, 2)
    assert "nowhere.jsonl cannot be read" in missing_file.stderr
    assert "does not exist" in missing_topic.stderr
    assert missing_topic.stdout == ""
