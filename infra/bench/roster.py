"""Who is measured: how each peer is prepared and started, and its share of the jobs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from infra.bench.topics import PARTITIONS, STAGES, Topics


class Workload(StrEnum):
    THROUGHPUT = "throughput"
    IO = "io"
    LATENCY = "latency"
    CRASH = "crash"
    TRACING = "tracing"


@dataclass(frozen=True)
class Place:
    """Where one measurement happens: its broker, prefix, database and scratch directory."""

    topics: Topics
    #: The server's database; a measurement that needs one makes its own beside it.
    database_url: str
    state_dir: Path


@dataclass(frozen=True)
class Run:
    """How to start a peer that has been prepared."""

    command: Sequence[str]
    env: Mapping[str, str]
    #: Starts the agent that exports this peer's spans; empty for a peer that has none to export.
    tracer: Sequence[str] = ()


#: Prepares topics and what else a peer needs, yields how to start it, cleans up what is its own.
Prepare = Callable[[Place, Workload], Iterator[Run]]

#: What a stage waits in the io workload, in ms.
SLEEP_MS: Final = 50
#: Session time-out of the consumer groups where processes are killed, in ms.
SESSION_MS: Final = 6_000


@dataclass(frozen=True)
class Peer:
    """One contender. `share` of the jobs asked for: a slow one shows its steady rate with fewer."""

    name: str
    prepare: Prepare
    share: Mapping[Workload, float] = field(default_factory=dict)
    by_default: bool = True

    def jobs(self, workload: Workload, asked: int) -> int:
        """How many of `asked` jobs this peer gets, at least 500 (or all, if fewer)."""
        return max(min(asked, 500), round(asked * self.share.get(workload, 1.0)))


def _peer(module: str, *arguments: str, env: Mapping[str, str] | None = None) -> Prepare:
    def prepare(place: Place, workload: Workload) -> Iterator[Run]:
        place.topics.create()
        told = {
            "BENCH_BOOTSTRAP": place.topics.bootstrap,
            "BENCH_PREFIX": place.topics.prefix,
            "BENCH_STATE_DIR": str(place.state_dir),
            "BENCH_SLEEP_MS": str(SLEEP_MS if workload is Workload.IO else 0),
            "BENCH_SESSION_MS": str(SESSION_MS if workload is Workload.CRASH else 0),
            **(env or {}),
        }
        yield Run([sys.executable, "-m", f"infra.bench.peers.{module}", *arguments], told)

    return prepare


def _faust(*, tuned: bool) -> Prepare:
    def prepare(place: Place, workload: Workload) -> Iterator[Run]:
        # One event at a time would wait 50 ms for each: the io workload gets more copies.
        env = {"BENCH_FAUST_CONCURRENCY": "200" if workload is Workload.IO else "1"}
        loop: list[str] = []
        if tuned:
            env |= {"BENCH_FAUST_QUIET": "1", "BENCH_FAUST_LINGER": "0.05"}
            loop = ["-L", "uvloop"] if importlib.util.find_spec("uvloop") else []
        arguments = [*loop, "worker", "-l", "warn", "--without-web"]
        yield from _peer("plain_faust", *arguments, env=env)(place, workload)

    return prepare


def _handoff(*also: str, per_stage: bool = False) -> Prepare:
    """handoff with validation, headers, claims and job state on; `also`: further agents.

    `per_stage`: a process for each stage, as stages are deployed, instead of one for all.
    """

    def prepare(place: Place, workload: Workload) -> Iterator[Run]:
        program = str(Path(sys.executable).with_name("handoff"))
        app = "infra.bench.flow:flow_io" if workload is Workload.IO else "infra.bench.flow:flow"
        name = "".join(c if c.isalnum() else "_" for c in place.topics.prefix).strip("_")
        with temporary_database(place.database_url, name) as database_url:
            env = {
                "KAFKA_BOOTSTRAP_SERVERS": place.topics.bootstrap,
                "DATABASE_URL": database_url,
                "HANDOFF_PREFIX": place.topics.prefix,
                "HANDOFF_PARTITIONS": str(PARTITIONS),
                "BENCH_SLEEP_MS": str(SLEEP_MS),
            }
            for command in (["topics", "apply", "--app", app, "--yes"], ["db", "migrate"]):
                _do([program, *command], env)
            if per_stage:
                launcher = [sys.executable, "-m", "infra.bench.peers.per_stage"]
                yield Run([*launcher, program, app, *STAGES, *also], env)
            else:
                yield Run([program, "worker", *STAGES, *also, "--app", app], env)

    return prepare


def _traced(*, sampler: str) -> Prepare:
    """The stages in one process, as `_handoff`, under one of the standard samplers.

    Where it keeps jobs, the tracer is a process of its own. Whoever runs them names the collector.
    """

    def prepare(place: Place, workload: Workload) -> Iterator[Run]:
        for run in _handoff()(place, workload):
            program, _, *_, app = run.command
            env = {**run.env, "OTEL_TRACES_SAMPLER": sampler}
            keeps = sampler != "always_off"
            tracer = [program, "worker", "tracer", "--app", app] if keeps else []
            yield Run(run.command, env, tracer)

    return prepare


def _do(command: Sequence[str], env: Mapping[str, str]) -> None:
    done = subprocess.run(
        command,
        check=False,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        raise RuntimeError(
            f"`{' '.join(command)}` ended with exit code {done.returncode}: "
            f"{(done.stderr or done.stdout).strip()[-2000:]}"
        )


@contextmanager
def temporary_database(server_url: str, name: str) -> Iterator[str]:
    """A new database beside the one of `server_url`; yields its URL and drops it afterwards."""
    create = sql.SQL("CREATE DATABASE {} ENCODING 'UTF8' TEMPLATE template0")
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(create.format(sql.Identifier(name)))
        try:
            yield urlsplit(server_url)._replace(path=f"/{name}").geturl()
        finally:
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


CONTROL: Final = "control"
OURS: Final = "handoff"
OURS_PER_STAGE: Final = "handoff-per-stage"
FAUST: Final = "faust"
UNSAMPLED: Final = "handoff-sampling-0"
SAMPLED: Final = "handoff-sampling-100"

_SLOW: Final = {Workload.THROUGHPUT: 0.05, Workload.IO: 0.05, Workload.CRASH: 0.2}

PEERS: Final = {
    peer.name: peer
    for peer in (
        Peer(CONTROL, _peer("control", "worker", "-l", "warn", "--without-web")),
        Peer(OURS, _handoff()),
        Peer(OURS_PER_STAGE, _handoff(per_stage=True)),
        # The same process also folds job-state into Postgres: what the projection costs.
        Peer("handoff+projector", _handoff("projector"), by_default=False),
        # A pair that differs in the sampler alone.
        Peer(UNSAMPLED, _traced(sampler="always_off"), by_default=False),
        Peer(SAMPLED, _traced(sampler="always_on"), by_default=False),
        Peer("bare-loop", _peer("bare_loop")),
        Peer(FAUST, _faust(tuned=False), _SLOW),
        Peer("faust-tuned", _faust(tuned=True), _SLOW),
    )
}

#: Workloads that compare handoff with itself, whichever peers were asked for.
OWN_PEERS: Final = {Workload.TRACING: (UNSAMPLED, SAMPLED)}


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The order of round `turn`: each round begins with the next peer, for fairness."""
    at = turn % len(names) if names else 0
    return [*names[at:], *names[:at]]
