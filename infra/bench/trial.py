"""What one measurement stands on: services, topics, the running peer, its cost, its verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

from infra.bench import processes
from infra.bench.counter import Ends, count_done, count_steps
from infra.bench.load import Sent
from infra.bench.processes import PeerGroup
from infra.bench.roster import Peer, Place, Run, Workload
from infra.bench.topics import STAGES, Topics
from infra.bench.verdict import STEPS_PER_JOB, Verdict, judge

#: How long `job-state` may lag behind `done` before its missing steps count as missing.
_CATCH_UP_S: Final = 5.0


@dataclass(frozen=True)
class Cost:
    """CPU seconds and MiB; None where a process could not be seen. The peer's include its start
    unless it was warm."""

    cpu_s: float | None = None
    broker_cpu_s: float | None = None
    postgres_cpu_s: float | None = None
    peak_mb: float | None = None


@dataclass(frozen=True)
class Export:
    """What the tracer did after its first request, alone on the machine with its receiver."""

    spans: int
    #: Spans/s.
    rate: float | None
    #: CPU seconds of its process; None where it could not be seen.
    cpu_s: float | None


@dataclass(frozen=True)
class Site:
    """The services, and where peers write their logs."""

    bootstrap: str
    database_url: str
    directory: Path
    #: Of the services that were started here: `kafka`, `postgres`.
    pids: Mapping[str, int] = field(default_factory=dict)

    def services_cpu_s(self) -> tuple[float | None, float | None]:
        """CPU seconds so far of the broker and of Postgres; None for one that runs elsewhere."""
        table = processes.process_table()
        return (
            processes.tree_cpu_s(self.pids.get("kafka"), table),
            processes.tree_cpu_s(self.pids.get("postgres"), table),
        )


@dataclass(frozen=True)
class Measurement:
    """What one run of one peer showed. Rates are jobs/s; None where a figure could not be had."""

    workload: Workload
    peer: str
    round: int
    jobs: int
    #: All jobs arrived within the limit.
    finished: bool
    verdict: Verdict
    seconds: float | None = None
    rate: float | None = None
    cost: Cost = Cost()
    latency_ms: dict[str, float] = field(default_factory=dict)
    #: Share of all steps that was done at each kill.
    killed_at: list[float] = field(default_factory=list)
    #: Of a peer whose spans were exported.
    export: Export | None = None


class Trial:
    """One peer at one place: shared by the workloads."""

    def __init__(self, site: Site, peer: Peer, run: Run, topics: Topics, log: Path) -> None:
        self.site, self.peer, self.topics = site, peer, topics
        self._run, self._log = run, log
        self._before = site.services_cpu_s()
        self._peer_before = 0.0

    @contextmanager
    def running(self, env: Mapping[str, str] | None = None) -> Iterator[PeerGroup]:
        """The peer, started now and killed on the way out; `env` adds to its environment."""
        with self._started(self.peer.name, self._run.command, env or {}) as group:
            yield group

    @property
    def has_tracer(self) -> bool:
        return bool(self._run.tracer)

    @contextmanager
    def tracing(self, env: Mapping[str, str]) -> Iterator[PeerGroup]:
        """The peer's tracer, as `running`; its log goes with the peer's."""
        with self._started(f"{self.peer.name}'s tracer", self._run.tracer, env) as group:
            yield group

    @contextmanager
    def _started(
        self, name: str, command: Sequence[str], env: Mapping[str, str]
    ) -> Iterator[PeerGroup]:
        group = PeerGroup(name, command, {**self._run.env, **env}, self._log)
        try:
            yield group
        finally:
            group.kill()

    def count_cost_from_here(self, group: PeerGroup | None = None) -> None:
        """The services' CPU time is counted from now on, and that of a `group` that has warmed
        up; without one the peer's counts from its start."""
        self._before = self.site.services_cpu_s()
        self._peer_before = processes.group_cpu_s(group.pgid) or 0.0 if group else 0.0

    def cost(self, group: PeerGroup) -> Cost:
        """What `group` and the services have spent; asked while the group lives."""
        spent = processes.group_cpu_s(group.pgid)
        broker, postgres = (
            None if before is None or now is None else now - before
            for before, now in zip(self._before, self.site.services_cpu_s(), strict=True)
        )
        return Cost(
            None if spent is None else spent - self._peer_before,
            broker,
            postgres,
            processes.group_peak_mb(group.pgid),
        )

    def wait_for_states(self, jobs: int, check: Callable[[], None]) -> None:
        """Let `job-state` catch up with `done`, for peers that do not write both at once."""
        deadline = time.monotonic() + _CATCH_UP_S
        with Ends(self.site.bootstrap) as ends:
            while ends.total(self.topics.job_state) < jobs * STEPS_PER_JOB:
                check()
                if time.monotonic() > deadline:
                    return
                time.sleep(0.1)

    def verdict(self, sent: Sent) -> Verdict:
        """Read `done` and `job-state` from end to end, once the peer is gone."""
        return judge(
            sent.keys(),
            count_done(self.site.bootstrap, self.topics.into("done")),
            count_steps(self.site.bootstrap, self.topics.job_state),
        )


@contextmanager
def trial(site: Site, peer: Peer, workload: Workload) -> Iterator[Trial]:
    """Topics (and database) made for `peer`; all of them dropped afterwards."""
    topics = Topics(site.bootstrap, f"bench-{uuid4().hex[:8]}-")
    place = Place(topics, site.database_url, site.directory)
    prepared = contextmanager(peer.prepare)(place, workload)
    log = site.directory / f"{workload}-{peer.name}-{topics.prefix}worker.log"
    try:
        with prepared as run:
            # A client that meets a topic before its leader may look again only minutes later.
            with Ends(site.bootstrap) as ends:
                ends.total(topics.into(STAGES[0]), topics.job_state, *topics.hand_offs)
            yield Trial(site, peer, run, topics, log)
    finally:
        topics.drop()
