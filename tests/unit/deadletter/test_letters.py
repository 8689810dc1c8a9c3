"""Goal: whatever system wrote a dead letter, it is read; what nobody knows is still a letter.

Golden files hold the headers as each system writes them: they are added to, never changed.
"""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import headers as h
from schemas.ids import is_job_id
from streams.deadletter.letters import (
    Header,
    Letter,
    Origin,
    Place,
    System,
    number,
    parse_place,
    read_letter,
)
from streams.names import Names
from tests.unit.deadletter.fakes import JOB, NAMES, TOPIC_ID, FakeRecord, letter, told

GOLDEN = Path(__file__).parents[2] / "golden" / "dead_letters"
ORIGINAL: tuple[Header, ...] = (("tenant", b"acme"), ("x-null", None), ("tenant", b"again"))


def golden(name: str, topic: str = "orders.dead") -> Letter:
    held = json.loads((GOLDEN / f"{name}.v1.json").read_text())
    headers: list[Header] = [
        (x["name"], None if x["base64"] is None else b64decode(x["base64"]))
        for x in held["headers"]
    ]
    record = FakeRecord(
        headers, topic=topic, key=held["key"].encode(), value=held["value"].encode()
    )
    return read_letter(record, TOPIC_ID, NAMES)


def test_a_letter_of_a_stage() -> None:
    found = golden("handoff", "mail.act.dlq")
    assert (found.system, found.flow, found.stage) == (System.HANDOFF, "mail", "act")
    assert (found.job, found.seq, found.kind) == (JOB, 2, "handler_failed")
    assert found.message == "Stage act failed 5 times: TimeoutError: no result after 300.0 s"
    assert found.origin == Origin("mail.act", 2, 41, 1_760_000_000_123, "mail.act", 5)
    assert found.headers[-3:] == ORIGINAL
    assert [name for name, _ in found.headers[:3]] == [h.SEQ, h.FLOW, h.BORN]
    assert (found.key, found.value) == (JOB.encode(), b'{"n": 1}')
    assert found.where == "mail.act"


def test_a_letter_of_a_share_group() -> None:
    found = golden("share_group")
    assert (found.system, found.job, found.kind) == (System.SHARE_GROUP, "", "")
    assert found.origin == Origin("orders", 3, 7001, None, "billing", 5)
    assert found.message == "Offset delivery count exceeded the threshold."
    assert found.headers == ()
    assert found.where == "orders"


def test_a_letter_of_kafka_streams() -> None:
    found = golden("kafka_streams")
    assert (found.system, found.job) == (System.STREAMS, "")
    assert found.origin == Origin("orders", 0, 12)
    assert found.kind == "org.apache.kafka.common.errors.SerializationException"
    assert found.message.startswith("Size of data received")
    assert found.headers == ORIGINAL


def test_a_letter_of_kafka_connect() -> None:
    found = golden("kafka_connect")
    assert (found.system, found.job) == (System.CONNECT, "")
    assert found.origin == Origin("orders", 1, 99, None, "jdbc-sink")
    assert found.kind == "org.apache.kafka.connect.errors.DataException"
    assert found.message.startswith("Converting byte[]")
    assert found.headers == ORIGINAL


def test_a_letter_of_spring_whose_numbers_are_binary() -> None:
    found = golden("spring_kafka")
    assert (found.system, found.job) == (System.SPRING, "")
    assert found.origin == Origin("orders", 5, 2**33 + 9, 1_760_000_000_456, "shipping")
    assert found.kind == "java.lang.IllegalStateException"
    assert found.message == "Listener failed; no stock for order 17"
    assert found.headers == ORIGINAL


def test_a_letter_of_nobody_known_is_a_letter() -> None:
    found = golden("unknown")
    assert (found.system, found.job, found.kind, found.message) == (System.UNKNOWN, "", "", "")
    assert (found.headers, found.told) == (ORIGINAL, ())
    assert found.where == "orders.dead"
    assert str(found.place) == "orders.dead/1/17"


def test_a_record_without_any_headers_is_a_letter() -> None:
    assert read_letter(FakeRecord(None), TOPIC_ID, NAMES).system is System.UNKNOWN


def test_the_system_that_wrote_last_is_believed() -> None:
    connect: list[Header] = [("__connect.errors.topic", b"mail.act.dlq")]
    inside = read_letter(FakeRecord([*told(), *connect]), TOPIC_ID, NAMES)
    assert (inside.system, inside.job) == (System.CONNECT, "")
    assert inside.headers == tuple(told())
    outside = read_letter(FakeRecord([*connect, *told()]), TOPIC_ID, NAMES)
    assert (outside.system, outside.headers) == (System.HANDOFF, tuple(connect))


def test_dead_letter_headers_that_the_original_bore_are_not_believed() -> None:
    forged = told(job="0" * 31 + "f", seq="9", error="forged")
    found = letter(forged)
    assert (found.job, found.seq, found.kind) == (JOB, 2, "handler_failed")
    assert found.headers == tuple(forged)


@pytest.mark.parametrize("seq", ["", "two", "0", "-1", "2147483647", "9" * 30])
def test_a_step_that_is_none_is_none(seq: str) -> None:
    assert letter(seq=seq).seq == 0


def test_flow_and_stage_are_those_of_the_topic_with_this_prefix() -> None:
    here = letter(topic="t1-mail.act.dlq", names=Names("t1-"))
    assert (here.flow, here.stage) == ("mail", "act")
    for topic in ("t1-mail.act.dlq", "mail.act", "mail.dlq", "a.b.c.dlq", "Mail.Act.dlq"):
        assert letter(topic=topic).flow == "", topic


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (None, None),
        (b"", None),
        (b"41", 41),
        (b"-1", -1),
        (b"1234", 1234),
        (b"\0\0\0\x05", 5),
        (b"\xff\xff\xff\xff", -1),
        ((2**40).to_bytes(8, "big"), 2**40),
        (b"five", 0x66697665),
        (b"seven", None),
    ],
)
def test_numbers_are_digits_or_javas(raw: bytes | None, value: int | None) -> None:
    assert number(raw) == value


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("mail.act.dlq/0/12", Place("mail.act.dlq", 0, 12)),
        ("mail.act.dlq[3]@12", Place("mail.act.dlq", 3, 12)),
        (JOB, None),
        (f"{JOB}/2/0", None),
        ("mail.act.dlq", None),
        ("mail.act.dlq/x/1", None),
        ("", None),
    ],
)
def test_a_place_is_told_from_a_job(text: str, place: Place | None) -> None:
    assert parse_place(text) == place
    if place is not None:
        assert parse_place(str(place)) == place


NAMES_OF_HEADERS = [
    *(name for name, _ in told()),
    "__streams.errors.topic",
    "__connect.errors.topic",
    "kafka_dlt-original-topic",
    "x",
]


@given(
    st.none()
    | st.lists(
        st.tuples(st.sampled_from(NAMES_OF_HEADERS), st.none() | st.binary(max_size=40)),
        max_size=14,
    ),
    st.none() | st.binary(max_size=40),
)
def test_any_record_is_a_letter_and_no_header_is_lost(
    headers: list[Header] | None, key: bytes | None
) -> None:
    found = read_letter(FakeRecord(headers, key=key), TOPIC_ID, NAMES)
    assert sorted(map(repr, (*found.headers, *found.told))) == sorted(map(repr, headers or []))
    assert found.job == "" or is_job_id(found.job)
    assert found.key == key
