"""Gathers the facts of one job, each from its authority.

Kafka and Postgres are not read at one instant: a job that moves meanwhile may be seen twice or not
at all. What cannot be explained is looked at again; what then remains is told as it is.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from schemas.state import JOIN, Status
from streams.config import Settings
from streams.control import look as look_at_control
from streams.deadletter.actions import actions_on
from streams.deadletter.reader import Span
from streams.kafka import TopicFacts, partition_of
from streams.postgres import SyncConn
from streams.state.forks import Join, branches_of, joins_of, obstacles, waits_for_branches
from streams.state.queries import NoSuchJob, effects_of, find_job
from streams.state.runs import Run, calls_under_way, runs_of, waits_in_run
from streams.why import postgres_facts as rows
from streams.why.branch_wording import NAMED
from streams.why.facts import (
    Facts,
    ForkFacts,
    LetterFacts,
    Looked,
    Queued,
    RunFacts,
    State,
    TimerFacts,
)
from streams.why.topic_facts import Hit, Part, Topics, Wanted, owner_slot

_LOOKS: Final = 3
_BETWEEN_LOOKS_S: Final = 0.4
#: Digits of a whole id.
_ID_CHARS: Final = 32


def gather(
    conn: SyncConn, settings: Settings, id_prefix: str, topics: Topics | None = None
) -> Facts:
    """What there is to know of the job whose id begins so.

    Raises `NoSuchJob` for what is no id and where several begin so, `BadWorld` when Kafka or
    Postgres does not answer, `BadSetup` when there are no topics.
    """
    look = _Look(conn, settings, topics or Topics(settings))
    facts = look.at(id_prefix)
    for _ in range(_LOOKS - 1):
        if _is_explained(facts):
            break
        time.sleep(_BETWEEN_LOOKS_S)
        facts = look.at(id_prefix)
    return _with_orders(settings, facts)


def _with_orders(settings: Settings, facts: Facts) -> Facts:
    """With what people have ordered about it."""
    if facts.state is not None and facts.state.status.terminal:
        return facts
    orders, queued = look_at_control(settings, needed=False), facts.queued
    pause = None if queued is None else orders.pauses(facts.flow, queued.stage)
    return replace(facts, cancel=orders.cancels(facts.job), pause=pause)


def _is_explained(facts: Facts) -> bool:
    """False if the job seems to be nowhere, as it does while it moves."""
    state, queued = facts.state, facts.queued
    if state is None:
        # Who has forked has a state; it was written after it was looked for.
        return queued is None or queued.stage != JOIN
    return queued is not None or _rests(facts, state)


def _rests(facts: Facts, state: State) -> bool:
    """Whether a job without a record in a topic is where its state says."""
    if state.status is Status.RUNNING:
        return False
    if facts.run is not None and facts.letter is None:
        return facts.run.run.status == "open"
    if facts.fork is not None:
        # One that is closed is about to be handed on.
        return facts.fork.join is not None and facts.fork.join.status == "open"
    letter = facts.letter
    if letter is not None and any(a.sent_topic is not None for a in letter.actions):
        return False
    if facts.timer is None:
        return True
    return facts.timer.due_at is not None or facts.timer.unread > 0


class _Look:
    """One look at a job and what concerns it."""

    def __init__(self, conn: SyncConn, settings: Settings, topics: Topics) -> None:
        self._conn, self._settings, self._topics = conn, settings, topics
        self._names = settings.names

    def at(self, id_prefix: str) -> Facts:
        known = self._projected(id_prefix)
        prefix = id_prefix.strip().lower() if known is None else known.job
        exact = known is not None or len(prefix) >= _ID_CHARS
        facts = Facts(prefix, rows.now(self._conn), self._settings.worker_lost_s, known)
        facts = self._with_newer_states(facts, Wanted(prefix, exact))
        if facts.state is None:
            return self._of_submission(facts, Wanted(prefix, exact))
        return self._of_job(facts, facts.state)

    def _projected(self, id_prefix: str) -> State | None:
        """The job as Postgres knows it. Raises `NoSuchJob` unless it is just not there."""
        try:
            return rows.state_of(find_job(self._conn, id_prefix))
        except NoSuchJob as e:
            if "prefix" not in e.fields or "several" in e.fields:
                raise
            return None

    # -- job-state, past the projection --------------------------------------------------------

    def _with_newer_states(self, facts: Facts, wanted: Wanted) -> Facts:
        spans = self._unprojected(wanted)
        behind = sum(s.end - s.start for s in spans)
        states, whole = self._topics.states(spans, wanted)
        _only_one(wanted, {s.job for s in states})
        latest = max(states, key=lambda s: s.seq, default=None)
        state = facts.state
        if latest is not None and (state is None or latest.seq > state.seq):
            state = latest
        return replace(
            facts,
            job=state.job if state is not None else facts.job,
            state=state,
            behind=behind,
            behind_read=whole,
            projectors=rows.workers(self._conn, self._names.projector_group) if behind else (),
        )

    def _unprojected(self, wanted: Wanted) -> list[Span]:
        spans = self._topics.job_state()
        if wanted.exact:
            at = partition_of(wanted.job.encode(), len(spans))
            spans = [s for s in spans if s.partition == at]
        return [replace(s, start=min(s.end, max(s.low, self._projected_to(s)))) for s in spans]

    def _projected_to(self, span: Span) -> int:
        topic_id = span.topic.topic_id
        return rows.position(self._conn, "projection_offsets", topic_id, span.partition)

    # -- a job that has no state ---------------------------------------------------------------

    def _of_submission(self, facts: Facts, wanted: Wanted) -> Facts:
        """It may lie in a stage's topic. First where its id, as a key, would put it."""
        stages = self._topics.stages()
        looked: list[Looked] = []
        for by_key in (True, False) if wanted.exact else (False,):
            looked = []
            hits: list[Hit] = []
            for flow, stage in stages:
                search = self._topics.search(flow, stage, wanted, by_key=by_key)
                hits += search.hits
                looked.append(search.looked)
            _only_one(wanted, {h.job for h in hits})
            if hits:
                hit = hits[0]
                queued = self._queued(hit.stage, hit.part, hit.ahead, hit, hit.step)
                return replace(facts, job=hit.job, flow=hit.flow, queued=queued)
        return replace(facts, looked=tuple(looked))

    # -- a job that has one --------------------------------------------------------------------

    def _of_job(self, facts: Facts, state: State) -> Facts:
        facts = replace(facts, flow=state.flow, effects=tuple(effects_of(self._conn, state.job)))
        if state.status in (Status.DONE, Status.CANCELLED):
            return facts
        if state.status is Status.RUNNING:
            return self._live(facts, state, state.to)
        return self._of_waiting(facts, state)

    def _of_waiting(self, facts: Facts, state: State) -> Facts:
        """It waits, or has failed."""
        run = self._run_of(state)
        if run is not None and run.status in ("open", "ended"):
            return self._of_run(facts, state, run)
        if waits_for_branches(state.status, state.to):
            return self._of_fork(facts, state)
        if state.wakes_at is not None:
            facts = replace(facts, timer=self._timer(state))
            if facts.timer is not None and facts.timer.due_at is not None:
                return facts
            return self._live(facts, state, (state.stage,))
        # It ended, or waits for a person: unless somebody has brought it back.
        facts = self._live(facts, state, (state.stage,))
        its = None if run is None else RunFacts(run)
        return replace(facts, letter=self._letter(state), run=its)

    def _live(self, facts: Facts, state: State, stages: tuple[str, ...]) -> Facts:
        """With the record that is to do the job's next step, where it is found."""
        wanted = Wanted(state.job, exact=True, step=state.seq + 1)
        declared = set(self._topics.stages())
        for stage in stages:
            if (state.flow, stage) not in declared:
                continue
            search = self._topics.search(state.flow, stage, wanted)
            if search.hits:
                (hit,) = search.hits
                return replace(
                    facts, queued=self._queued(stage, hit.part, hit.ahead, hit, hit.step)
                )
            if search.rest and state.status is Status.RUNNING:
                part, ahead = search.rest[0]
                return replace(facts, queued=self._queued(stage, part, ahead, None, state.seq + 1))
        return facts

    def _of_fork(self, facts: Facts, state: State) -> Facts:
        """With what has come of its branches, and a record of its join that is not finished."""
        fork = ForkFacts(self._join_of(state))
        if (join := fork.join) is not None:
            due = join.deadline_at is not None
            group = self._names.timers_group
            fork = replace(
                fork,
                named=branches_of(self._conn, join, NAMED),
                found=obstacles(self._conn, join),
                timers=rows.workers(self._conn, group) if due else (),
            )
        if (state.flow, JOIN) not in self._topics.stages():
            return replace(facts, fork=fork)
        search = self._topics.search(state.flow, JOIN, Wanted(state.job, exact=True))
        part = self._topics.part(state.flow, JOIN, state.job)
        fork = replace(fork, agent=self._queued(JOIN, part, 0, None, 0))
        if search.hits:
            hit = search.hits[0]
            queued = self._queued(JOIN, hit.part, hit.ahead, hit, hit.step)
            facts = replace(facts, queued=queued)
        return replace(facts, fork=fork)

    def _run_of(self, state: State) -> Run | None:
        """The run that the job waits in now, or failed in, if its agent knows that."""
        begins = waits_for_branches(state.status, state.to)
        if not (begins or state.stage == JOIN):
            return None
        last = next(reversed(runs_of(self._conn, state.job)), None)
        if last is None or not (last.seq == state.seq or (not begins and last.step >= state.seq)):
            return None
        in_run = waits_in_run(state.status, state.stage, state.wakes_at, state.error)
        # What a fork's join wrote after the run is none of it.
        return last if begins or in_run or last.step == state.seq else None

    def _of_run(self, facts: Facts, state: State, run: Run) -> Facts:
        """With what it waits for, and a record of the job that the agent has not finished."""
        timed = any(" until " in each for each in run.waits)
        its = RunFacts(
            run,
            calls=calls_under_way(self._conn, run, NAMED),
            called=sum(each.startswith("call ") for each in run.waits),
            timers=rows.workers(self._conn, self._names.timers_group) if timed else (),
        )
        if (state.flow, JOIN) not in self._topics.stages():
            return replace(facts, run=its)
        search = self._topics.search(state.flow, JOIN, Wanted(state.job, exact=True))
        part = self._topics.part(state.flow, JOIN, state.job)
        its = replace(its, agent=self._queued(JOIN, part, 0, None, 0))
        if search.hits:
            hit = search.hits[0]
            facts = replace(facts, queued=self._queued(JOIN, hit.part, hit.ahead, hit, hit.step))
        return replace(facts, run=its)

    def _join_of(self, state: State) -> Join | None:
        """The join that the job waits for now: that of its last fork, if its agent knows that."""
        joins = joins_of(self._conn, state.job)
        if joins and (state.stage == JOIN or joins[-1].seq == state.seq):
            return joins[-1]
        return None

    def _queued(self, stage: str, part: Part, ahead: int, hit: Hit | None, step: int) -> Queued:
        topic, partition = part.span.topic, part.span.partition
        group = self._topics.group(part)
        owner = owner_slot(group, topic.name, partition)
        return Queued(
            stage=stage,
            topic=topic.name,
            partition=partition,
            offset=hit.offset if hit is not None else None,
            step=step,
            written_at=hit.written_at if hit is not None else None,
            head=part.head,
            end=part.span.end,
            ahead=ahead,
            per_s=self._topics.rate(part) if ahead and owner is not None else None,
            owner=owner,
            partitions=topic.partitions,
            members=len(group.members),
            group_state=group.state,
            workers=rows.workers(self._conn, topic.name),
            started=None
            if hit is None
            else rows.started(self._conn, topic.topic_id, partition, hit.offset),
        )

    def _timer(self, state: State) -> TimerFacts:
        assert state.wakes_at is not None
        due_at, refused = rows.pending_timer(self._conn, state.job, state.wakes_at)
        unread = 0 if due_at is not None else self._topics.unread_timers(state.job, self._stored_to)
        group = self._names.timers_group
        return TimerFacts(due_at, refused, unread, rows.workers(self._conn, group))

    def _stored_to(self, topic: TopicFacts, partition: int) -> int:
        return rows.position(self._conn, "timer_offsets", topic.topic_id, partition)

    def _letter(self, state: State) -> LetterFacts | None:
        letter = self._topics.letter(state)
        if letter is None:
            return None
        return LetterFacts(
            place=letter.place,
            kind=letter.kind,
            message=letter.message,
            at=datetime.fromtimestamp(letter.at_ms / 1000, UTC),
            actions=tuple(actions_on(self._conn, letter)),
        )


def _only_one(wanted: Wanted, jobs: set[str]) -> None:
    if len(jobs) > 1:
        some = ", ".join(sorted(jobs)[:5])
        more = " and more" if len(jobs) > 5 else ""
        raise NoSuchJob(
            f"Several jobs begin with {wanted.job}: {some}{more}. Give more digits.",
            prefix=wanted.job,
            several=True,
        )
