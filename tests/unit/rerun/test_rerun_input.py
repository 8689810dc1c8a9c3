"""Goal: the id of a rerun, whose keys its effects have, and when the step before will do."""

from __future__ import annotations

from uuid import UUID

import pytest

from schemas.ids import id_of_rerun, is_job_id
from streams.context import Context
from streams.replay.facts import Spot
from streams.replay.lookup import Consumed
from streams.rerun.input import Input, Taken, step_before
from streams.testing import RecordedEffects

JOB = "4bf92f3577b34da6a3ce929d0e0e4736"
ORIGINAL = "000000000000000000000000000000aa"


def test_the_id_is_made_from_job_stage_and_label_and_nothing_else() -> None:
    new = id_of_rerun(JOB, "act", "1")
    assert is_job_id(new)
    assert new == id_of_rerun(JOB, "act", "1") != JOB
    others = [(ORIGINAL, "act", "1"), (JOB, "enrich", "1"), (JOB, "act", "2"), (JOB, "ac", "t1")]
    assert len({new, *(id_of_rerun(*x) for x in others)}) == 5


def test_the_key_of_an_effect_is_the_originals_where_the_rerun_says_so() -> None:
    effects = RecordedEffects()
    own = Context(JOB, "mail", "act", 1, 1, effects)
    lent = Context(JOB, "mail", "act", 1, 1, effects, ORIGINAL)
    assert own.effect_key("reply") == f"{JOB}:act:0:reply"
    assert lent.effect_key("reply") == f"{ORIGINAL}:act:0:reply"
    assert (lent.trace_id, lent.keys_of, own.keys_of) == (JOB, ORIGINAL, JOB)


def taken(seq: int, stage: str, to: tuple[str, ...], data: str | None = "{}") -> Taken:
    spot = Spot(UUID(int=7), 0, seq)
    return Taken(Consumed(JOB, seq, "mail", stage, f"mail.{stage}", spot), to, data)


def test_the_step_that_handed_over_has_the_input_as_it_was_written() -> None:
    steps = [taken(1, "classify", ("act",), '{"n":1e3}'), taken(2, "act", ())]
    found = step_before(steps, steps[-1].consumed)
    assert found == Input(b'{"n":1e3}', "step 1 in job_history", 2)


@pytest.mark.parametrize(
    "before",
    [
        [],
        # A letter of this step may have been edited, a timer's record is its own.
        [taken(1, "classify", ("act",)), taken(2, "act", ())],
        [taken(2, "classify", ("enrich",))],
        [taken(2, "classify", ("act",), None)],
    ],
)
def test_a_step_that_did_not_hand_over_what_was_taken_is_no_input(before: list[Taken]) -> None:
    last = taken(3, "act", ())
    assert step_before([*before, last], last.consumed) is None
