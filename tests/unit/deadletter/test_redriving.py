"""Goal: a redrive keeps its rate, records what Kafka has confirmed, and reads a canary right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError

from schemas.state import JobError, Status
from streams.config import Settings
from streams.deadletter import redriving as module
from streams.deadletter.actions import Action, Deed, NextStep, Sent
from streams.deadletter.find import Head, head_of
from streams.deadletter.letters import Letter, Place
from streams.deadletter.plan import Redriven, plan_redrive
from streams.deadletter.redriving import Canary, Redrive, went_well
from streams.deadletter.sender import Outcome, settle
from streams.errors import BadSetup, BadWorld
from tests.unit.deadletter.fakes import JOB, NAMES, letter


def letters(count: int) -> list[Letter]:
    return [letter(offset=n, job=f"{n + 1:032x}") for n in range(count)]


class World:
    """Kafka and Postgres as a redrive sees them, and a clock that only sleeping moves."""

    def __init__(self, held: Sequence[Letter], monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = {x.place: x for x in held}
        self.recorded: list[Sent] = []
        self.fate: dict[str, NextStep] = {}
        #: The number of letters that Kafka confirms before it goes away.
        self.lives_for: int | None = None
        self.sent: list[float] = []
        self.now = 0.0
        self.told: list[int] = []
        for name in ("Reader", "Sender"):
            monkeypatch.setattr(module, name, lambda _: self)
        monkeypatch.setattr(module, "record_sent", lambda _, __, sent: self.recorded.extend(sent))
        monkeypatch.setattr(module, "next_steps", self.next_steps)

    def at(self, places: Iterable[Place]) -> Iterator[Letter]:
        return (self.held[p] for p in places if p in self.held)

    def send(self, planned: Sequence[tuple[Letter, Redriven]]) -> Outcome:
        outcome = Outcome()
        for each, record in planned:
            if self.lives_for is not None and len(self.sent) >= self.lives_for:
                outcome.fault = BadWorld("Kafka is away.")
                break
            self.sent.append(self.now)
            outcome.sent.append(Sent(each, record.value, Place(record.topic, 0, 0)))
        return outcome

    def next_steps(self, _: Any, steps: Sequence[tuple[str, int]]) -> dict[int, NextStep]:
        return {n: self.fate[job] for n, (job, _) in enumerate(steps) if job in self.fate}

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def call(self, rate_per_s: float | None = None) -> Redrive:
        return Redrive(
            Settings(),
            None,  # type: ignore[arg-type]
            Deed(Action.REDRIVE, "anna", "", uuid4()),
            rate_per_s=rate_per_s,
            progress=self.told.append,
            clock=lambda: self.now,
            sleep=self.sleep,
        )


def heads(world: World) -> list[Head]:
    return [head_of(x) for x in world.held.values()]


def test_all_are_sent_and_recorded_and_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(letters(250), monkeypatch)
    report = world.call().run(heads(world))
    assert (report.redriven, report.left, report.refused) == (250, 0, [])
    assert len(world.recorded) == 250
    assert world.told == [100, 200, 250]


@pytest.mark.parametrize("rate", [0.5, 3.0, 40.0, 1_000.0])
def test_no_second_has_more_than_the_rate_allows(
    monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    world = World(letters(120), monkeypatch)
    world.call(rate).run(heads(world))
    burst = max(1, int(rate))
    for n, at in enumerate(world.sent):
        before = sum(1 for t in world.sent[:n] if t > at - 1)
        assert before < burst + max(1, rate)
    assert world.now >= (120 - 100) / rate - 1


def test_what_kafka_confirmed_before_it_went_away_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(letters(300), monkeypatch)
    world.lives_for = 130
    call = world.call()
    with pytest.raises(BadWorld):
        call.run(heads(world))
    assert len(world.recorded) == 130
    assert (call.report.redriven, call.report.left) == (130, 170)


def test_letters_that_cannot_be_redriven_or_are_gone_are_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(letters(5), monkeypatch)
    wanted = heads(world)
    del world.held[wanted[1].place]
    world.held[wanted[3].place] = replace(world.held[wanted[3].place], seq=0)
    report = world.call().run(wanted)
    assert report.redriven == 3
    assert {x.place.offset: x.reason for x in report.refused} == {
        1: "It is not there any more.",
        3: "Its header handoff_dlq_seq names no step, so the next one is not known.",
    }
    assert report.left == 0


FAILED = NextStep(Status.FAILED, JobError(kind="rejected", message="no"))


def test_a_canary_that_failed_again_stops_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(letters(10), monkeypatch)
    ids = [x.job for x in heads(world)]
    world.fate = {ids[0]: NextStep(Status.RUNNING, None), ids[1]: FAILED}
    report = world.call().run(heads(world), canary=Canary(2))
    assert (report.redriven, report.left, report.stopped) == (2, 8, True)
    assert [(head.job, step) for head, step in report.failed_again] == [(ids[1], FAILED)]


def test_a_canary_without_an_answer_stops_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(letters(10), monkeypatch)
    report = world.call().run(heads(world), canary=Canary(2, timeout_s=5))
    assert (report.redriven, report.stopped, len(report.silent)) == (2, True, 2)
    assert 5 <= world.now < 6


def test_a_canary_that_lives_lets_the_rest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(letters(10), monkeypatch)
    world.fate = {x.job: NextStep(Status.DONE, None) for x in heads(world)[:2]}
    report = world.call().run(heads(world), canary=Canary(2))
    assert (report.redriven, report.left, report.stopped) == (10, 0, False)
    assert world.now == 0, "it waits no longer than for the answers"


@pytest.mark.parametrize(
    ("status", "error", "well"),
    [
        (Status.RUNNING, None, True),
        (Status.DONE, None, True),
        (Status.WAITING, None, True),
        (Status.WAITING, FAILED.error, False),
        (Status.FAILED, FAILED.error, False),
    ],
)
def test_a_step_went_well_unless_it_failed_or_was_parked(
    status: Status, error: JobError | None, well: bool
) -> None:
    assert went_well(NextStep(status, error)) is well


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, None),
        (KafkaError._MSG_TIMED_OUT, BadWorld),
        (KafkaError.NOT_ENOUGH_REPLICAS, BadWorld),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, BadSetup),
    ],
)
def test_what_kafka_refuses_is_the_records_the_worlds_or_our_fault(
    code: int, kind: type[Exception] | None
) -> None:
    found = letter()
    plan = plan_redrive(found, NAMES)
    assert isinstance(plan, Redriven)
    outcome = Outcome()
    settle(
        outcome,
        found,
        plan,
        KafkaError(code, retriable=code == KafkaError.NOT_ENOUGH_REPLICAS),
        None,
    )
    if kind is None:
        assert [x.job for x in outcome.refused] == [JOB]
        assert outcome.fault is None
    else:
        assert isinstance(outcome.fault, kind)
        assert "Run it again" in str(outcome.fault)
    assert outcome.sent == []
