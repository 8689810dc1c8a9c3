"""Goal: a redriven record is the original under the job's id, claims its step, and never grows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import headers as h
from streams.deadletter.letters import Header, Letter, read_letter
from streams.deadletter.plan import Redriven, Refused, plan_redrive
from streams.names import Names
from tests.unit.deadletter.fakes import JOB, NAMES, TOPIC_ID, FakeRecord, letter, told

HAND_OFF: list[Header] = [
    (h.SEQ, b"1"),
    (h.FLOW, b"mail"),
    (h.BORN, b"1760000000000001"),
    (h.TRACEPARENT, f"00-{JOB}-4bf92f3577b30002-01".encode()),
    (h.CE_ID, b"x:1"),
    ("tenant", b"acme"),
    ("x-null", None),
    ("tenant", b"again"),
]
#: Of the record that redrives the letter's step, 2.
TRACED: Header = (h.TRACEPARENT, f"00-{JOB}-4bf92f3577b30003-01".encode())


def planned(found: Letter, value: bytes | None = None, names: Names = NAMES) -> Redriven:
    plan = plan_redrive(found, names, value)
    assert isinstance(plan, Redriven), plan
    return plan


def test_a_redriven_record_is_the_original_under_the_jobs_id() -> None:
    plan = planned(letter(HAND_OFF))
    assert (plan.topic, plan.key, plan.value) == ("mail.act", JOB.encode(), b'{"n": 1}')
    assert plan.headers == [
        (h.REDRIVE, b"mail.act.dlq/1/17"),
        (h.SEQ, b"2"),
        (h.FLOW, b"mail"),
        (h.BORN, b"1760000000000001"),
        *HAND_OFF[4:],
        TRACED,
    ]


def test_a_short_hand_off_gives_its_birth_and_loses_its_own_step() -> None:
    plan = planned(letter([(h.HOP, b"1;1760000000000001;mail"), ("tenant", b"acme")]))
    assert plan.headers[1:] == [
        (h.SEQ, b"2"),
        (h.FLOW, b"mail"),
        (h.BORN, b"1760000000000001"),
        ("tenant", b"acme"),
        TRACED,
    ]


def test_a_raw_key_that_is_not_the_jobs_id_survives_every_round() -> None:
    headers: list[Header] = [(h.RAW_KEY, b"forged"), ("tenant", b"acme")]
    first = planned(letter(headers, key=b"order-17"))
    assert first.key == JOB.encode()
    assert first.headers[4:] == [(h.RAW_KEY, b"order-17"), ("tenant", b"acme"), TRACED]
    record = FakeRecord([*first.headers, *told(seq="3")], key=first.key)
    again = planned(read_letter(record, TOPIC_ID, NAMES))
    assert again.headers[4:-1] == first.headers[4:-1]
    keyless = planned(letter([("tenant", b"acme")], key=None))
    assert keyless.headers[4:] == [("tenant", b"acme"), TRACED]


def test_the_original_of_a_rerun_and_whose_keys_it_uses_survive_every_round() -> None:
    told_of = [(h.RERUN, b"a" * 32), (h.KEYS_OF, b"b" * 32)]
    first = planned(letter([*told_of, *HAND_OFF]))
    again = planned(read_letter(FakeRecord([*first.headers, *told(seq="3")]), TOPIC_ID, NAMES))
    for plan in (first, again):
        assert [x for x in plan.headers if x[0] in (h.RERUN, h.KEYS_OF)] == told_of


def test_an_edited_payload_takes_the_place_of_the_original() -> None:
    assert planned(letter(HAND_OFF), b"{}").value == b"{}"


@pytest.mark.parametrize("born", [None, b"", b"noon", b"9" * 30])
def test_a_job_without_a_usable_birth_was_born_when_its_record_came(born: bytes | None) -> None:
    plan = planned(letter([(h.BORN, born), (h.LINK, b"00-a-b-01")]))
    assert dict(plan.headers)[h.BORN] == b"1760000000123000"
    assert plan.headers[-2] == (h.LINK, b"00-a-b-01")
    assert dict(planned(letter(timestamp="never")).headers)[h.BORN] == b"1760000100000000"


def test_what_speaks_of_an_earlier_delivery_is_left_behind() -> None:
    stale: list[Header] = [
        (h.REDRIVE, b"x/0/1"),
        ("handoff_timer", b"1"),
        ("handoff_attempt", b"4"),
        (h.DLQ_JOB, b"forged"),
    ]
    names = [name for name, _ in planned(letter([*stale, *HAND_OFF])).headers]
    assert names == [h.REDRIVE, h.SEQ, h.FLOW, h.BORN, *(n for n, _ in HAND_OFF[4:]), h.TRACEPARENT]


HEADERS = st.lists(
    st.tuples(
        st.sampled_from([h.SEQ, h.FLOW, h.BORN, h.REDRIVE, h.LINK, "x", "__dlq.errors.group"]),
        st.none() | st.binary(max_size=20),
    ),
    max_size=8,
)


@given(HEADERS)
def test_a_record_does_not_grow_from_round_to_round(headers: list[Header]) -> None:
    first = planned(letter(headers))
    record = FakeRecord([*first.headers, *told(seq="3")], value=first.value)
    second = planned(read_letter(record, TOPIC_ID, NAMES))
    assert [n for n, _ in second.headers] == [n for n, _ in first.headers]
    assert second.headers[2:-1] == first.headers[2:-1]
    assert second.headers[1] == (h.SEQ, b"3")


def test_the_prefix_of_the_installation_is_kept() -> None:
    names = Names("t1-")
    found = letter(names=names, **{"topic": "t1-mail.act.dlq"})
    assert isinstance(plan_redrive(found, names), Refused)
    ours = read_letter(FakeRecord(_from("t1-mail.act"), topic="t1-mail.act.dlq"), TOPIC_ID, names)
    assert planned(ours, names=names).topic == "t1-mail.act"


def _from(topic: str) -> list[Header]:
    return [(n, topic.encode() if n == h.DLQ_TOPIC else v) for n, v in told()]


REFUSALS = {
    "unknown": (read_letter(FakeRecord(None), TOPIC_ID, NAMES), "by nobody known"),
    "foreign": (
        read_letter(FakeRecord([("__connect.errors.topic", b"mail.act")]), TOPIC_ID, NAMES),
        "by kafka-connect, not by a stage",
    ),
    "no topic of ours": (letter(topic="elsewhere"), "no dead-letter topic of this installation"),
    "copied": (
        read_letter(FakeRecord(_from("old-mail.act")), TOPIC_ID, NAMES),
        "came from old-mail.act, not from mail.act",
    ),
    "no step": (letter(seq="x"), "names no step"),
    "no payload": (letter(value=None), "tombstone"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_letter_that_cannot_be_redriven_is_refused_with_the_reason(case: str) -> None:
    found, says = REFUSALS[case]
    plan = plan_redrive(found, NAMES)
    assert isinstance(plan, Refused)
    assert says in plan.reason
    assert plan.place == found.place


def of_the_join(key: bytes) -> Letter:
    brought: list[Header] = [(h.ARRIVAL, b"3;failed;2"), (h.FLOW, b"mail"), (h.CE_ID, b"x/3:2")]
    facts = told(topic="mail.join", stage="join", error="branches_missing")
    record = FakeRecord([*brought, *facts], topic="mail.join.dlq", key=key)
    return read_letter(record, TOPIC_ID, NAMES)


def test_the_join_agents_letter_brings_back_its_parent_as_it_is_or_not_at_all() -> None:
    failed = of_the_join(JOB.encode())
    plan = planned(failed)
    assert (plan.topic, plan.key) == ("mail.join", JOB.encode())
    # What the branch brought that was missed last is no arrival any more.
    assert [name for name, _ in plan.headers[:4]] == [h.REDRIVE, h.SEQ, h.FLOW, h.BORN]
    assert h.ARRIVAL not in dict(plan.headers)
    edited = plan_redrive(failed, NAMES, b"{}")
    assert isinstance(edited, Refused)
    assert "Edit the dead letters of the branches" in edited.reason
    unread = plan_redrive(of_the_join(b"no job"), NAMES)
    assert isinstance(unread, Refused)
    assert "could not read" in unread.reason


def test_a_childs_first_record_comes_back_as_a_later_step_of_the_same_child() -> None:
    child = f"{JOB}/7"
    first: list[Header] = [
        (h.KEYS_OF, f"{'b' * 32}/7".encode()),
        (h.FORK, b"1"),
        (h.HOP, b"0;1760000000000001;mail"),
    ]
    record = FakeRecord([*first, *told(job=child, seq="1")], key=child.encode())
    plan = planned(read_letter(record, TOPIC_ID, NAMES))
    assert plan.key == child.encode()
    found = dict(plan.headers)
    assert (found[h.SEQ], found[h.BORN]) == (b"1", b"1760000000000001")
    assert found[h.KEYS_OF] == f"{'b' * 32}/7".encode()
    assert h.FORK not in found
