"""Goal: key and headers alone tell which job and step a record is, whatever they hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import headers as h
from schemas.ids import id_from_coordinates, is_job_id
from streams.runtime.suspects import SuspectGate
from tests.unit.runtime.fakes import TOPIC_ID, FakeMessage, delivery, make_tracker

JOB = "4bf92f3577b34da6a3ce929d0e0e4736"
HOP = [(h.HOP, b"4;1700000000000001;mail")]
SPELLED_OUT = [(h.FLOW, b"mail"), (h.SEQ, b"4"), (h.BORN, b"1700000000000001")]


def identified(message: FakeMessage):
    d = delivery(make_tracker(), message)
    d.identify(b"mail")
    return d


@pytest.mark.parametrize("headers", [HOP, SPELLED_OUT, [("x", b""), *HOP]])
def test_a_hand_off_is_the_next_step_of_its_job(headers: list[tuple[str, bytes]]) -> None:
    d = identified(FakeMessage(b"{}", JOB.encode(), headers))
    assert (d.job_id, d.seq, d.born_us) == (JOB, 5, 1_700_000_000_000_001)
    assert (d.is_new_job, d.claimable, d.fault) == (False, False, None)


REDRIVEN = [(h.REDRIVE, b"mail.act.dlq/0/7"), (h.SEQ, b"4"), (h.FLOW, b"mail"), (h.BORN, b"17")]


def test_a_redrive_is_the_next_step_of_its_job_and_claims_it() -> None:
    d = identified(FakeMessage(b"{}", JOB.encode(), REDRIVEN))
    assert (d.job_id, d.seq, d.born_us, d.attempt) == (JOB, 5, 17, 0)
    assert (d.is_new_job, d.claimable, d.fault) == (False, True, None)
    # Wherever the header stands: what may be a copy is a suspect.
    assert identified(FakeMessage(b"{}", JOB.encode(), [*SPELLED_OUT, REDRIVEN[0]])).claimable


def test_a_redrive_that_is_faulty_or_a_tombstone_claims_nothing() -> None:
    faulty = identified(FakeMessage(b"{}", b"me", REDRIVEN))
    assert (faulty.claimable, faulty.seq, faulty.fault is None) == (False, 1, False)
    assert not identified(FakeMessage(None, JOB.encode(), REDRIVEN)).claimable


def test_a_plain_hand_off_claims_nothing() -> None:
    assert not identified(FakeMessage(b"{}", JOB.encode(), SPELLED_OUT)).claimable
    assert not identified(FakeMessage(b"{}", JOB.encode(), HOP)).claimable


def test_a_record_without_our_headers_is_a_new_job_with_its_key_as_id() -> None:
    d = identified(FakeMessage(b"{}", JOB.encode()))
    assert (d.job_id, d.seq, d.claimable) == (JOB, 1, True)
    assert d.born_us == 1_700_000_000_000_000


@pytest.mark.parametrize(
    "key",
    [None, b"", b"customer-7", b"\xff\xfe", JOB.upper().encode(), b"0" * 32, f"{JOB}/1".encode()],
)
def test_a_new_job_whose_key_is_no_id_is_named_by_its_place(key: bytes | None) -> None:
    d = identified(FakeMessage(b"{}", key, offset=42))
    assert d.job_id == id_from_coordinates(TOPIC_ID, 0, 42)
    assert d.key == d.job_id.encode()
    assert not d.claimable
    assert d.fault is None


@pytest.mark.parametrize(
    ("headers", "key", "says"),
    [
        ([(h.HOP, b"four;1700000000000001;mail")], JOB.encode(), "is no number"),
        ([(h.HOP, None)], JOB.encode(), "another flow"),
        ([(h.HOP, b"")], JOB.encode(), "another flow"),
        ([(h.HOP, b"4")], JOB.encode(), "another flow"),
        ([(h.HOP, b"0;1700000000000001;mail")], JOB.encode(), "out of range"),
        ([(h.HOP, b"9999999999;1700000000000001;mail")], JOB.encode(), "out of range"),
        ([(h.HOP, b"4;1700000000000001;other")], JOB.encode(), "another flow"),
        ([(h.HOP, b"4;1700000000000001;mail")], b"me", "no job id"),
        ([(h.FLOW, b"mail"), (h.SEQ, b"four")], JOB.encode(), "is no number"),
        ([(h.FLOW, b"mail"), (h.SEQ, b"-1")], JOB.encode(), "out of range"),
        ([(h.FLOW, b"mail"), (h.SEQ, b"99999999999")], JOB.encode(), "out of range"),
        ([(h.FLOW, b"other"), (h.SEQ, b"4")], JOB.encode(), "another flow"),
        ([(h.SEQ, b"4")], JOB.encode(), "another flow"),
        ([(h.FLOW, b"mail"), (h.SEQ, b"4")], b"me", "no job id"),
    ],
)
def test_a_hand_off_that_cannot_be_ours_has_a_fault_that_says_why(
    headers: list[tuple[str, bytes]], key: bytes, says: str
) -> None:
    d = identified(FakeMessage(b"{}", key, headers))
    assert d.fault is not None
    assert says in d.fault
    assert is_job_id(d.job_id)


RETURNED = [(h.TIMER, b"retry"), (h.SEQ, b"4"), (h.FLOW, b"mail"), (h.BORN, b"7")]


def test_what_a_timer_brought_back_is_the_next_step_and_must_claim_it() -> None:
    d = identified(FakeMessage(b"{}", JOB.encode(), [*RETURNED, (h.ATTEMPT, b"3"), ("x", b"")]))
    assert (d.job_id, d.seq, d.born_us) == (JOB, 5, 7)
    assert (d.attempt, d.attempts_told) == (3, 3)
    assert (d.is_new_job, d.claimable, d.fault) == (False, True, None)
    assert SuspectGate.is_suspect(d)
    plain = identified(FakeMessage(b"{}", JOB.encode(), HOP))
    assert not SuspectGate.is_suspect(plain)


@pytest.mark.parametrize("spent", [[], [(h.ATTEMPT, b"many")], [(h.ATTEMPT, b"9" * 30)]])
def test_a_returned_record_whose_attempts_are_unknown_is_not_run(
    spent: list[tuple[str, bytes]],
) -> None:
    d = identified(FakeMessage(b"{}", JOB.encode(), [*RETURNED, *spent]))
    assert d.fault == "its header handoff_attempt is no number"
    assert not d.claimable


def test_a_foreign_traceparent_becomes_a_link_and_our_own_does_not() -> None:
    foreign = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    d = identified(FakeMessage(b"{}", JOB.encode(), [(h.TRACEPARENT, foreign)]))
    assert d.link == foreign.decode()
    ours = f"00-{JOB}-b7ad6b7169203331-01".encode()
    assert identified(FakeMessage(b"{}", JOB.encode(), [(h.TRACEPARENT, ours)])).link is None


@given(
    st.none() | st.binary(max_size=80),
    st.none()
    | st.lists(
        st.tuples(
            st.sampled_from([h.HOP, h.SEQ, h.FLOW, h.BORN, h.TIMER, h.ATTEMPT, h.TRACEPARENT, "x"]),
            st.binary(max_size=60),
        ),
        max_size=8,
    ),
)
def test_any_key_and_headers_give_a_usable_id_and_never_raise(
    key: bytes | None, headers: list[tuple[str, bytes]] | None
) -> None:
    d = identified(FakeMessage(b"{}", key, headers))
    assert is_job_id(d.job_id)
    assert d.key == d.job_id.encode()
    assert d.seq >= 1


ORIGINAL = "000000000000000000000000000000aa"


def test_a_record_says_under_whose_keys_its_effects_are_done() -> None:
    keys = (h.KEYS_OF, ORIGINAL.encode())
    assert identified(FakeMessage(b"{}", JOB.encode(), [keys])).keys_of == ORIGINAL
    d = identified(FakeMessage(b"{}", JOB.encode(), [keys, *HOP]))
    assert (d.keys_of, d.seq, d.claimable, d.fault) == (ORIGINAL, 5, False, None)
    assert identified(FakeMessage(b"{}", JOB.encode(), HOP)).keys_of is None


@pytest.mark.parametrize("name", [b"", b"order", b"\xff", JOB.upper().encode()])
@pytest.mark.parametrize("hop", [[], HOP])
def test_a_rerun_whose_original_has_no_name_is_not_run_under_keys_of_its_own(
    name: bytes, hop: list[tuple[str, bytes]]
) -> None:
    d = identified(FakeMessage(b"{}", JOB.encode(), [(h.KEYS_OF, name), *hop]))
    assert d.fault == "its header handoff_keys_of is no job id"
