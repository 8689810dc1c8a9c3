"""What /livez and /readyz say, judged from facts; the clock is the test's."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from streams.runtime.health import AgentFacts, Health, Vitals

STALL_S = 10.0


@dataclass
class Polls:
    stepped_at: float = 0.0
    assigned: bool = True
    alive: bool = True


@dataclass
class Commits:
    busy_since: float | None = None
    alive: bool = True


class Patient:
    """A worker with one agent, `work`, that is well at time 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self.polls, self.commits, self.paused = Polls(), Commits(), None
        self.vitals = Vitals("0.abcd", {"work": self.facts}, turned_at=0.0)
        self.vitals.started = True
        self.vitals.running.add("work")
        for dependency in self.vitals.dependencies:
            dependency.why = None
            dependency.away_at = -1_000.0
        self.health = Health(self.vitals, STALL_S, lambda: self.now)

    def facts(self) -> AgentFacts:
        return AgentFacts(self.polls, self.commits, self.paused)

    def after(self, seconds: float, *, polls: bool = True, turns: bool = True) -> None:
        self.now += seconds
        if polls:
            self.polls.stepped_at = self.now
        if turns:
            self.vitals.turned_at = self.now

    def live(self) -> str:
        report = self.health.live()
        return " ".join((*report.why, *report.agents["work"]))

    def ready(self) -> str:
        report = self.health.ready()
        return " ".join((*report.why, *report.agents["work"]))


@pytest.fixture
def patient() -> Patient:
    return Patient()


def test_a_worker_that_is_well_is_live_and_ready(patient: Patient) -> None:
    patient.after(1_000)
    assert patient.health.live().ok
    assert patient.health.ready().ok
    assert patient.health.ready().json() == {
        "ok": True,
        "worker": "0.abcd",
        "why": (),
        "agents": {"work": {"ok": True, "why": ()}},
    }


def test_a_blocked_loop_is_told_although_the_polling_thread_steps(patient: Patient) -> None:
    patient.after(STALL_S, turns=False)
    assert patient.health.live().ok
    patient.after(1, turns=False)
    assert "event loop has not turned for 11.0 s" in patient.live()
    assert "event loop" in patient.ready()


def test_a_polling_thread_that_stands_or_has_ended_is_told(patient: Patient) -> None:
    patient.after(STALL_S + 1, polls=False)
    assert "has not polled for 11.0 s" in patient.live()
    patient.after(0)
    assert patient.health.live().ok
    patient.polls.alive = False
    assert "polling thread has ended" in patient.live()


def test_an_agent_that_does_not_run_is_told(patient: Patient) -> None:
    patient.vitals.running.clear()
    assert patient.health.live().json()["agents"] == {
        "work": {"ok": False, "why": ("Its agent does not run.",)}
    }
    assert not patient.health.ready().ok


def test_a_commit_that_stands_is_told_and_an_idle_commit_thread_is_well(patient: Patient) -> None:
    patient.after(1_000)
    assert patient.health.live().ok
    patient.commits.busy_since = patient.now
    patient.after(STALL_S + 1)
    assert "waits for its commit for 11.0 s" in patient.live()
    patient.commits.busy_since = None
    assert patient.health.live().ok
    patient.commits.alive = False
    assert "commit thread has ended" in patient.live()


def test_what_waits_for_a_service_that_is_away_is_live_and_not_ready(patient: Patient) -> None:
    patient.commits.busy_since = patient.now
    for _ in range(20):
        patient.after(5, polls=False)
        patient.vitals.kafka.why = "Kafka at here:1 did not answer."
        patient.vitals.kafka.away_at = patient.now
        assert patient.live() == ""
        assert patient.ready() == "Kafka: Kafka at here:1 did not answer."
    # It is back: what waited gets its time to recover, and no more.
    patient.vitals.kafka.why = None
    patient.after(STALL_S, polls=False)
    assert patient.health.live().ok
    patient.after(1, polls=False)
    assert "has not polled for 11.0 s" in patient.live()
    assert "waits for its commit" in patient.live()


def test_a_loop_that_stands_is_not_excused_by_an_outage(patient: Patient) -> None:
    patient.after(STALL_S + 1, turns=False)
    patient.vitals.postgres.away_at = patient.now
    assert "event loop" in patient.live()


def test_before_the_start_and_while_it_stops_a_worker_is_live_and_not_ready(
    patient: Patient,
) -> None:
    patient.vitals.started = False
    patient.vitals.running.clear()
    assert patient.health.live().ok
    assert "has not started yet" in patient.ready()
    patient.vitals.started = patient.vitals.stopping = True
    assert patient.health.live().ok
    assert "is stopping" in patient.ready()


def test_a_group_that_gave_no_assignment_and_a_paused_stage_are_not_ready(
    patient: Patient,
) -> None:
    patient.polls.assigned = False
    assert patient.health.live().ok
    assert "not given it an assignment" in patient.ready()
    patient.polls.assigned = True
    patient.paused = "the target is down"
    assert patient.live() == ""
    assert patient.ready() == "It is paused: the target is down"
