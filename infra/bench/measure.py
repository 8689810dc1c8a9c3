"""The workloads: load, start, watch, kill, verify.

The peer runs in a process group of its own; the verdict is read from the topics after it is gone.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from infra.bench.counter import Arrivals, Ends
from infra.bench.figures import percentiles_ms
from infra.bench.load import Loader, Sent
from infra.bench.processes import PeerGroup, group_cpu_s
from infra.bench.roster import Peer, Workload
from infra.bench.topics import STAGES
from infra.bench.trial import Export, Measurement, Site, Trial, trial
from infra.bench.verdict import SPANS_PER_JOB
from infra.otel.span_counter import SpanCounter

#: Jobs that warm a peer up, and the rate they come at.
_WARM_JOBS: Final = 200
_WARM_RATE: Final = 100.0
#: How long the topics must stand still before a killed and restarted peer counts as finished.
_QUIET_S: Final = 5.0


@dataclass(frozen=True)
class Plan:
    """Sizes and bounds of a run."""

    jobs: int = 100_000
    io_jobs: int = 20_000
    rate: float = 200.0
    seconds: float = 20.0
    crash_jobs: int = 30_000
    kills: int = 3
    #: A measurement that takes longer, or whose `done` stands still for so long, is given up.
    limit_s: float = 170.0
    stall_s: float = 45.0
    seed: int = 1


def measure(site: Site, peer: Peer, workload: Workload, plan: Plan, turn: int) -> Measurement:
    """Run `workload` once. Raises `PeerDied` or `RuntimeError` with the reason if it cannot be."""
    how = {
        Workload.THROUGHPUT: _throughput,
        Workload.IO: _io,
        Workload.LATENCY: _latency,
        Workload.CRASH: _crash,
        Workload.TRACING: _tracing,
    }[workload]
    with trial(site, peer, workload) as here:
        return how(here, plan, turn)


def _throughput(here: Trial, plan: Plan, turn: int) -> Measurement:
    """A backlog. Seconds run from the first hand-off to the last arrival on `done`."""
    bootstrap, topics = here.site.bootstrap, here.topics
    jobs = here.peer.jobs(Workload.THROUGHPUT, plan.jobs)
    sent = Loader(bootstrap, topics.into(STAGES[0]), linger_ms=20).burst(jobs)
    here.count_cost_from_here()
    with Arrivals(bootstrap, topics.into("done")) as arrivals:
        with here.running() as group:
            finished = arrivals.wait_for(
                sent.keys(), limit_s=plan.limit_s, stall_s=plan.stall_s, check=group.check
            )
            cost = here.cost(group)
            here.wait_for_states(jobs, group.check)
        with Ends(bootstrap) as ends:
            first = ends.first_record_at(topics.into("enrich"))
        seconds = arrivals.last_at - first if arrivals.last_at and first else None
        rate = len(arrivals.first_at) / seconds if seconds else None
    return Measurement(
        Workload.THROUGHPUT,
        here.peer.name,
        turn,
        jobs,
        finished,
        here.verdict(sent),
        seconds,
        rate,
        cost,
    )


def _io(here: Trial, plan: Plan, turn: int) -> Measurement:
    """A burst onto a warm peer. Seconds run from the first job's sending to the last arrival."""
    bootstrap, topics = here.site.bootstrap, here.topics
    jobs = here.peer.jobs(Workload.IO, plan.io_jobs)
    with Arrivals(bootstrap, topics.into("done")) as arrivals, here.running() as group:
        sent = _warm_up(here, plan, arrivals, group)
        warm = len(sent)
        here.count_cost_from_here()
        loader = Loader(bootstrap, topics.into(STAGES[0]), linger_ms=1)
        start = time.time()
        sent |= loader.burst(jobs)
        finished = arrivals.wait_for(
            sent.keys(), limit_s=plan.limit_s, stall_s=plan.stall_s, check=group.check
        )
        cost = here.cost(group)
        here.wait_for_states(len(sent), group.check)
        seconds = (arrivals.last_at or start) - start
        rate = (len(arrivals.first_at) - warm) / seconds if seconds else None
    return Measurement(
        Workload.IO, here.peer.name, turn, jobs, finished, here.verdict(sent), seconds, rate, cost
    )


def _latency(here: Trial, plan: Plan, turn: int) -> Measurement:
    """An even beat of jobs onto a warm peer; each job's time from its sending to its arrival."""
    bootstrap, topics = here.site.bootstrap, here.topics
    with (
        Arrivals(bootstrap, topics.into("done"), one_by_one=True) as arrivals,
        here.running() as group,
    ):
        sent = _warm_up(here, plan, arrivals, group)
        here.count_cost_from_here()
        beat = _feed(here, plan.rate, plan.seconds, arrivals, group.check)
        sent |= beat
        finished = arrivals.wait_for(
            sent.keys(), limit_s=plan.limit_s, stall_s=plan.stall_s, check=group.check
        )
        cost = here.cost(group)
        here.wait_for_states(len(sent), group.check)
        waits = [arrivals.first_at[k] - t for k, t in beat.items() if k in arrivals.first_at]
    return Measurement(
        Workload.LATENCY,
        here.peer.name,
        turn,
        len(beat),
        finished,
        here.verdict(sent),
        cost=cost,
        latency_ms=percentiles_ms(waits),
    )


def _tracing(here: Trial, plan: Plan, turn: int) -> Measurement:
    """A burst onto warm stages, then all of its spans from a tracer that runs when they are gone.

    The CPU seconds are those of the stages' process from the burst on, without its start. Handlers
    make no spans of their own: what is compared is what the runtime does for a job that is sampled.
    """
    bootstrap, topics = here.site.bootstrap, here.topics
    with SpanCounter() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_SDK_DISABLED": "false"}
        with Arrivals(bootstrap, topics.into("done")) as arrivals, here.running(env) as group:
            sent = _warm_up(here, plan, arrivals, group)
            warm = len(sent)
            loader = Loader(bootstrap, topics.into(STAGES[0]), linger_ms=20)
            here.count_cost_from_here(group)
            start = time.time()
            sent |= loader.burst(plan.jobs)
            finished = arrivals.wait_for(
                sent.keys(), limit_s=plan.limit_s, stall_s=plan.stall_s, check=group.check
            )
            cost = here.cost(group)
            here.wait_for_states(len(sent), group.check)
            seconds = (arrivals.last_at or start) - start
            rate = (len(arrivals.first_at) - warm) / seconds if seconds else None
        export = None
        if here.has_tracer and finished:
            export = _export(here, plan, len(sent) * SPANS_PER_JOB, collector, env)
        elif collector.spans:
            raise RuntimeError(f"{here.peer.name} sent {collector.spans} spans; it samples none.")
    return Measurement(
        Workload.TRACING,
        here.peer.name,
        turn,
        plan.jobs,
        finished,
        here.verdict(sent),
        seconds,
        rate,
        cost,
        export=export,
    )


def _export(
    here: Trial, plan: Plan, wanted: int, collector: SpanCounter, env: Mapping[str, str]
) -> Export:
    """All of `job-state` through the tracer. Raises `RuntimeError` if `wanted` do not come."""
    before, deadline = None, time.monotonic() + plan.limit_s
    with here.tracing(env) as tracer:
        while collector.spans < wanted:
            tracer.check()
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"The tracer exported {collector.spans:,} of {wanted:,} spans in "
                    f"{plan.limit_s:.0f} s."
                )
            if before is None and collector.spans:
                before = group_cpu_s(tracer.pgid)
            time.sleep(0.005)
        after = group_cpu_s(tracer.pgid)
    spent = None if before is None or after is None else after - before
    return Export(collector.since_first, collector.rate, spent)


def _warm_up(here: Trial, plan: Plan, arrivals: Arrivals, group: PeerGroup) -> Sent:
    """Jobs that wake the peer and connect everybody; returns when all have come through."""
    sent = _feed(here, _WARM_RATE, _WARM_JOBS / _WARM_RATE, arrivals, group.check)
    if not arrivals.wait_for(
        sent.keys(), limit_s=plan.limit_s, stall_s=plan.stall_s, check=group.check
    ):
        raise RuntimeError(f"{here.peer.name} did not finish its {len(sent)} warm-up jobs.")
    return sent


def _feed(
    here: Trial, rate: float, seconds: float, arrivals: Arrivals, check: Callable[[], None]
) -> Sent:
    """Feed at `rate` while reading what arrives."""
    sent: Sent = {}
    loader = Loader(here.site.bootstrap, here.topics.into(STAGES[0]), linger_ms=0)
    feeder = threading.Thread(target=loader.feed, args=(rate, seconds, sent))
    feeder.start()
    try:
        while feeder.is_alive():
            check()
            arrivals.read(0.05)
    finally:
        feeder.join()
    return sent


def _crash(here: Trial, plan: Plan, turn: int) -> Measurement:
    """A backlog; SIGKILL at random points of progress, each with work in flight; then count."""
    bootstrap, topics = here.site.bootstrap, here.topics
    jobs = here.peer.jobs(Workload.CRASH, plan.crash_jobs)
    sent = Loader(bootstrap, topics.into(STAGES[0]), linger_ms=20).burst(jobs)
    chance = random.Random(plan.seed + turn)
    marks = sorted(chance.uniform(0.05, 0.85) for _ in range(plan.kills))
    start = time.time()
    killed_at: list[float] = []
    with ExitStack() as opened:
        hand_offs = [opened.enter_context(Arrivals(bootstrap, topic)) for topic in topics.hand_offs]

        def progress() -> float:
            """Share of all hand-offs that has been made."""
            return sum(hop.count(0.01) for hop in hand_offs) / (len(hand_offs) * jobs)

        for mark in marks:
            with here.running() as group:
                _wait_for_progress(progress, mark, plan.limit_s, group.check)
                time.sleep(chance.uniform(0, 0.15))
            killed_at.append(round(progress(), 2))
        with here.running() as group:
            finished = hand_offs[-1].wait_for(
                sent.keys(), limit_s=plan.limit_s, stall_s=plan.stall_s, check=group.check
            )
            seconds = time.time() - start
            _wait_for_quiet(here, group.check)
    return Measurement(
        Workload.CRASH,
        here.peer.name,
        turn,
        jobs,
        finished,
        here.verdict(sent),
        seconds,
        killed_at=killed_at,
    )


def _wait_for_progress(
    progress: Callable[[], float], mark: float, limit_s: float, check: Callable[[], None]
) -> None:
    """Return once `progress` is at `mark`, or 3 % on from where it stood if that is further."""
    target = max(mark, progress() + 0.03)
    deadline = time.monotonic() + limit_s
    while progress() < target:
        check()
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"The peer did not reach {target:.0%} of the work in {limit_s:.0f} s."
            )


def _wait_for_quiet(here: Trial, check: Callable[[], None]) -> None:
    """Return once no topic has grown for 5 s: duplicates, too, have then come through."""
    watched = [here.topics.job_state, *here.topics.hand_offs]
    with Ends(here.site.bootstrap) as ends:
        last, since = ends.total(*watched), time.monotonic()
        while time.monotonic() - since < _QUIET_S:
            check()
            time.sleep(0.2)
            if (now := ends.total(*watched)) != last:
                last, since = now, time.monotonic()
