"""A rerun: planned from what the projection and the topics hold, recorded, then sent.

1. The input of the stage is found, and today's model takes it.
2. A row in `reruns` says under whose keys the effects are done; the first one that is written
   decides. From then on the ledger keeps the original's effects until the rerun is over.
3. The record is sent into the stage's topic as a new job. A crash before this leaves a row and no
   job: the same command sends it. Sent twice, the second is skipped, since new jobs are claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from pydantic import ValidationError

from schemas import headers as h
from schemas.ids import id_of_rerun, lineage, trace_id_of, traceparent
from schemas.state import JOIN, Status
from streams.config import Settings
from streams.crashpoints import reach
from streams.errors import BadSetup, BadWorld
from streams.flow import Flow, Stage
from streams.joins import JoinRef
from streams.kafka import admin_client, describe_topics
from streams.ledger.prune import horizon
from streams.postgres import SyncConn, load_queries
from streams.rerun.input import Input, Refused, find_input
from streams.state.queries import find_job
from streams.state.runs import waits_in_run
from streams.state.views import Job
from streams.submission import BulkSender, Heading, WireHeaders, check

_SQL: Final = load_queries("streams.rerun")

#: The ledger is not pruned of what is younger than the horizon and this: time for a rerun that was
#: just judged to be recorded, and for clocks that differ.
_PRUNE_MARGIN: Final = timedelta(hours=1)


class Keys(StrEnum):
    """`--effects`: under whose keys the rerun does its effects."""

    #: The original's: what it did is answered from the ledger, what it did not do is done.
    SAME = "same"
    #: Its own: every effect is done again.
    NEW = "new"


class Sent(StrEnum):
    """What became of a plan."""

    SENT = "sent"
    #: It was asked for before, and no step of it is known yet: the second is skipped.
    AGAIN = "sent again"
    #: A step of it is known, so nothing was sent.
    ALREADY = "already there"


@dataclass(frozen=True, slots=True)
class Plan:
    """The job that a rerun will be. `keys_of` is its own id or the original's (or whose keys that
    one used)."""

    job: str
    rerun_of: str
    flow: str
    stage: str
    label: str
    effects: Keys
    keys_of: str
    topic: str
    input: Input


class Rerun:
    """Plans and sends reruns of jobs of one flow. Blocking; belongs to one thread."""

    def __init__(self, settings: Settings, flow: Flow, conn: SyncConn) -> None:
        self._settings, self._flow, self._conn = settings, flow, conn

    def plan(self, job_id: str, stage: str, effects: Keys, label: str = "1") -> Plan:
        """What would be sent; changes nothing. `job_id` may be a prefix that only one job has.

        Raises `NoSuchJob`; `BadSetup` for a stage that the flow does not have, the join agent, or
        another flow's job; `Refused` for one that is not over, was never at the stage, or whose
        input, results of a join or effects are gone or fit the stage no more; `BadWorld`.
        """
        target = self._stage(stage)
        original = find_job(self._conn, job_id)
        if original.flow != self._flow.name:
            raise BadSetup(
                f"Job {original.trace_id} is of flow {original.flow}, not of {self._flow.name}: "
                "name its flow with --app."
            )
        _must_be_over(original)
        found = find_input(self._settings, self._conn, original.trace_id, stage)
        try:
            target.input.model_validate_json(found.value)
        except ValidationError as e:
            raise Refused(
                f"What stage {stage} got in job {original.trace_id} is no {target.input.__name__} "
                f"of today ({e.error_count()} faults; {_first(e)}). Submit a payload that fits "
                f"as a new job: handoff submit FILE --stage {stage}."
            ) from None
        if target.joined is not None:
            self._results_must_be_kept(found)
        new_id = id_of_rerun(original.trace_id, stage, label)
        check(self._settings, new_id, found.value)
        keys_of = self._keys_of(original, target) if effects is Keys.SAME else new_id
        return Plan(
            job=new_id,
            rerun_of=original.trace_id,
            flow=self._flow.name,
            stage=stage,
            label=label,
            effects=effects,
            keys_of=keys_of,
            topic=self._settings.names.stage_topic(self._flow.name, stage),
            input=found,
        )

    def send(self, plan: Plan, *, who: str, why: str = "") -> Sent:
        """Record and send. After a crash, or `BadWorld`, do the same again: it is one job.

        Raises `Refused` when a rerun of this label does its effects under other keys.
        """
        self._must_exist(plan.topic)
        recorded = self._record(plan, who, why)
        if not recorded and self._end_of(plan.job) is not None:
            return Sent.ALREADY
        reach("rerun.recorded")
        sender = BulkSender(self._settings, plan.topic, self._heading(plan))
        try:
            sender.send([(plan.job, plan.input.value)])
            list(sender.finish())
        except BadWorld as e:
            raise BadWorld(
                f"Kafka did not confirm rerun {plan.job} on {plan.topic}. Run the same command "
                f"again; if it did arrive, the second is skipped. ({e.message})"
            ) from e
        return Sent.SENT if recorded else Sent.AGAIN

    def _heading(self, plan: Plan) -> Heading:
        more: WireHeaders = [(h.RERUN, plan.rerun_of.encode())]
        if plan.keys_of != plan.job:
            more.append((h.KEYS_OF, plan.keys_of.encode()))
        if plan.input.children:
            # Its next children then have the numbers, and so the keys, of those of the original.
            more.append((h.CHILDREN, b"%d" % plan.input.children))
        # Another trace than its own, so a link: to the step that is repeated.
        link = traceparent(plan.rerun_of, plan.input.seq)
        return Heading(plan.flow, self._flow.stage(plan.stage).input, link, more)

    def _record(self, plan: Plan, who: str, why: str) -> bool:
        """Whether this call wrote the row; if not, it says the same."""
        values = {
            "job": plan.job,
            "rerun_of": plan.rerun_of,
            "stage": plan.stage,
            "label": plan.label,
            "keys_of": plan.keys_of,
            "who": who,
            "why": why,
        }
        with self._conn.transaction():
            wrote = self._conn.execute(_SQL["record_rerun"], values).rowcount == 1
        row = self._conn.execute(_SQL["rerun_row"], {"job": plan.job}).fetchone()
        if row is not None and row["keys_of"] != plan.keys_of:
            other = Keys.NEW if plan.effects is Keys.SAME else Keys.SAME
            raise Refused(
                f"Rerun {plan.label} of job {plan.rerun_of} from {plan.stage} was asked for before "
                f"with --effects {other}: it is job {plan.job}. For another one give "
                "another --label."
            )
        return wrote

    def _stage(self, name: str) -> Stage[Any, Any]:
        if name == JOIN and self._flow.has_join:
            forking = ", ".join(s.name for s in self._flow.stages if s.joins)
            joining = ", ".join(s.name for s in self._flow.stages if s.joined is not None)
            if not self._flow.forks:
                raise BadSetup(
                    f"{JOIN} is the agent that moves runs on, and runs no handler: rerun from the "
                    "orchestration, whose run then begins anew, or from a stage that it called."
                )
            raise BadSetup(
                f"{JOIN} is the agent that joins forks, and runs no handler: rerun from a stage "
                f"that forks ({forking}), or from the one that was given the results ({joining})."
            )
        return self._flow.stage(name)

    def _results_must_be_kept(self, found: Input) -> None:
        ref = JoinRef.model_validate_json(found.value)
        values = {"parent": ref.parent, "from": ref.first, "end": ref.first + ref.expected}
        row = self._conn.execute(_SQL["kept_branches"], values).fetchone()
        kept, wanted = (0 if row is None else row["branches"]), ref.done + ref.failed
        if kept != wanted:
            raise Refused(
                f"Of join {ref.id}, which had {wanted:,} results and errors, {kept:,} are kept: "
                "they go when hand-offs do (HANDOFF_RETENTION_MS). Rerun from where it forked."
            )

    def _keys_of(self, original: Job, target: Stage[Any, Any]) -> str:
        """The job whose keys the original used; the ledger still has its effects."""
        # A child's keys are those of the child of that number of whose keys its rerun used.
        root = trace_id_of(original.trace_id)
        row = self._conn.execute(_SQL["rerun_row"], {"job": root}).fetchone()
        of_root = root if row is None else str(row["keys_of"])
        keys_of = of_root + original.trace_id.removeprefix(root)
        end = self._end_of(keys_of)
        oldest = horizon(self._settings, datetime.now(UTC)) + _PRUNE_MARGIN
        if end is None:
            # A child that a rerun forked and its original had not: its effects are never pruned.
            ended = keys_of == of_root
        else:
            ended = end[0] in (Status.DONE, Status.CANCELLED) and end[1] < oldest
        if ended or (_forks_from(self._flow, target) and self._child_ended(keys_of, oldest)):
            raise Refused(
                f"Job {keys_of}, or a child of it, ended so long ago that the ledger may have been "
                "pruned of its effects (handoff db prune), so they might be done again under the "
                "same keys. "
                "Rerun it with --effects new if that is meant."
            )
        return keys_of

    def _child_ended(self, job: str, before: datetime) -> bool:
        row = self._conn.execute(_SQL["oldest_child_end"], {"job": job}).fetchone()
        return row is not None and row["ended"] is not None and row["ended"] < before

    def _end_of(self, job: str) -> tuple[Status, datetime] | None:
        row = self._conn.execute(_SQL["job_end"], {"job": job}).fetchone()
        return None if row is None else (Status(row["status"]), row["updated_at"])

    def _must_exist(self, topic: str) -> None:
        with admin_client(self._settings) as admin:
            if not describe_topics(self._settings, admin, [topic]):
                raise BadSetup(f"Topic {topic} does not exist. Run `handoff topics apply` first.")


def parked_reruns(conn: SyncConn, job: str, stage: str) -> list[str]:
    """Jobs that wait at `stage` and do their effects under the keys of `job`, as it did."""
    values = {"job": job, "stage": stage, "lineage": lineage(job)}
    rows = conn.execute(_SQL["parked_reruns"], values)
    return [row["trace_id"] for row in rows]


def _forks_from(flow: Flow, target: Stage[Any, Any]) -> bool:
    """Whether a job that begins at `target` may have children: of forks, or calls of runs."""
    by_name = {stage.name: stage for stage in flow.stages}
    reached, ahead = {target.name}, [target]
    while ahead:
        stage = ahead.pop()
        if stage.joins or stage.calls:
            return True
        new = {to for to in stage.emits if to in by_name} - reached
        reached |= new
        ahead += [by_name[name] for name in new]
    return False


def _must_be_over(job: Job) -> None:
    if job.status.terminal:
        return
    if job.status is Status.WAITING and job.to == (JOIN,):
        then = (
            f"Its children are still at work, or their dead letters wait for you, or its run has "
            f"just begun: handoff why {job.trace_id}."
        )
    elif waits_in_run(job.status, job.stage, job.wakes_at, job.error):
        then = f"Its run still waits for something: handoff why {job.trace_id}."
    elif job.status is Status.WAITING and job.wakes_at is None:
        then = (
            f"It is parked: settle what it waits for (handoff why {job.trace_id}), then bring it "
            f"back with handoff dlq redrive {job.trace_id}."
        )
    else:
        then = f"Wait for its end: handoff trace {job.trace_id} --watch, or handoff why."
    raise Refused(
        f"Job {job.trace_id} is {job.status} at {job.stage}, and only a job that is over can be "
        f"rerun: both would go on at once. {then}"
    )


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]
