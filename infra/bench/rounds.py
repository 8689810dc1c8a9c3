"""A whole run: rounds of each workload, the peers interleaved, and all of it as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import psycopg
from confluent_kafka import KafkaException

from infra.bench.figures import per_million
from infra.bench.machine import machine, versions
from infra.bench.measure import Plan, measure
from infra.bench.processes import PeerDied
from infra.bench.report import Failure, goals, number, verdict_text
from infra.bench.roster import PEERS, Workload, rotated
from infra.bench.trial import Measurement, Site

_WARM_UP_JOBS: Final = 40_000
_WARM_UP_PEERS: Final = ("bare-loop", "handoff")
#: What can keep one measurement from being made.
FAULTS: Final = (PeerDied, RuntimeError, KafkaException, psycopg.Error)


@dataclass
class Results:
    """What has been found so far, and when the run began (UTC)."""

    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    measurements: list[Measurement] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


def note(text: str) -> None:
    """Progress goes to stderr, so that stdout is the report alone."""
    print(text, file=sys.stderr, flush=True)


def run_round(
    site: Site, workload: Workload, plan: Plan, turn: int, peers: Sequence[str], results: Results
) -> None:
    """Each peer once. A failure is noted and does not stop the others."""
    for name in rotated(peers, turn):
        try:
            found = measure(site, PEERS[name], workload, plan, turn)
        except FAULTS as e:
            results.failures.append((workload, name, turn, str(e)))
            note(f"{workload}, round {turn + 1}: {name} could not be measured. {e}")
        else:
            results.measurements.append(found)
            note(f"{workload}, round {turn + 1}: {name}: {headline(found)}")


def warm_broker(site: Site) -> None:
    """Runs that are not counted: a JVM just started is slow and compiles what is asked of it, so
    whoever came first, or asked for something else than the one before, would pay."""
    note("Warming the broker up; these runs are not counted.")
    for name in _WARM_UP_PEERS:
        try:
            measure(site, PEERS[name], Workload.THROUGHPUT, Plan(jobs=_WARM_UP_JOBS), 0)
        except FAULTS as e:
            note(f"The broker could not be warmed up with {name}. {e}")


def headline(found: Measurement) -> str:
    """The figure that its workload is about, and the verdict."""
    verdict = verdict_text([found])
    if found.workload is Workload.LATENCY:
        return f"p50 {number(found.latency_ms.get('p50'), 1)} ms, {verdict}"
    if found.workload is Workload.CRASH:
        return f"{len(found.killed_at)} kills, {verdict}"
    if found.workload is Workload.TRACING:
        cpu = per_million(found.cost.cpu_s, found.jobs)
        spans = f", {number(found.export.rate)} spans/s" if found.export else ""
        return f"{number(cpu, 1)} CPU s per 1,000,000 jobs{spans}, {verdict}"
    return f"{number(found.rate)} jobs/s, {verdict}"


def as_json(site: Site, plan: Plan, results: Results) -> str:
    """The whole run: settings, versions, each measurement, the goals."""
    report = {
        "started": results.started,
        "machine": machine(),
        "versions": versions(site.database_url),
        "plan": asdict(plan),
        "environment": {k: v for k, v in os.environ.items() if k.startswith("HANDOFF_")},
        "measurements": [
            {**asdict(m), "exactly_once": m.verdict.exactly_once} for m in results.measurements
        ],
        "failures": results.failures,
        "goals": [{**asdict(g), "met": g.met} for g in goals(results.measurements)],
    }
    return json.dumps(report, indent=1) + "\n"
