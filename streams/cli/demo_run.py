"""The demo's run: own processes, real mail, kills on the way, and the count at the end."""

from __future__ import annotations

import asyncio
import gzip
import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from itertools import cycle, islice
from typing import Any, Final

from streams.cli.checks import SQL, projection_lag
from streams.cli.submit import LineReader
from streams.cli.supervise import Say, StopRequest, Supervisor
from streams.cli.tally import DeskCount, Kill, Tally, kill_marks
from streams.client import Client, entry_stage
from streams.config import Settings
from streams.errors import BadWorld
from streams.flow import Flow
from streams.kafka import admin_client
from streams.ledger.queries import skip_counts
from streams.postgres import SyncConn, connect
from streams.state.queries import counts, latencies

#: With nothing moving for this long, nothing will.
STALL_S: Final = 60.0
_TICK_S = 0.05
#: How long after a kill the projector may take to show what was committed before it.
_CATCH_UP_S = 15.0

#: Called with the numbers of submitted and finished jobs.
Progressed = Callable[[int, int], None]


def sample_lines(count: int | None) -> list[bytes]:
    """The sample's lines; with `count` as many, from the start again if there are fewer."""
    packed = files("infra.demo").joinpath("mail.jsonl.gz").read_bytes()
    lines = gzip.decompress(packed).splitlines()
    return lines if count is None else list(islice(cycle(lines), count))


async def submit_sample(flow: Flow, settings: Settings, lines: list[bytes]) -> int:
    """Submit the lines as `handoff submit` would; returns how many Kafka has confirmed."""
    reader = LineReader(flow, entry_stage(flow, None), settings)
    stream = io.BytesIO(b"\n".join(lines))
    sent = 0
    async with Client(settings) as client:
        async for ids in client.submit_many(flow, reader.read(stream)):
            sent += len(ids)
    return sent


@dataclass(frozen=True, slots=True)
class _Standing:
    done: int
    failed: int
    open: int

    @property
    def finished(self) -> int:
        return self.done + self.failed


class DemoRun:
    """Submits, watches and kills. `worker` names the child that does the work."""

    def __init__(self, flow: Flow, settings: Settings, supervisor: Supervisor, worker: str) -> None:
        self._flow = flow
        self._settings = settings
        self._supervisor = supervisor
        self._worker = worker
        self._admin = admin_client(settings)
        self._kills: list[Kill] = []

    def run(
        self,
        lines: list[bytes],
        kills: int,
        request: StopRequest,
        progressed: Progressed,
        say: Say,
        desk: Callable[[], DeskCount],
    ) -> Tally:
        """Blocks until all jobs are finished, nothing moves any more, or a stop is requested."""
        submitted = asyncio.run(submit_sample(self._flow, self._settings, lines))
        with connect(self._settings) as conn:
            stalled = self._watch(conn, submitted, kill_marks(kills), request, progressed, say)
            return self._tally(conn, submitted, kills, stalled, desk())

    def _watch(
        self,
        conn: SyncConn,
        submitted: int,
        marks: list[float],
        request: StopRequest,
        progressed: Progressed,
        say: Say,
    ) -> bool:
        last: list[Any] = []
        moved_at = time.monotonic()
        while not request.stop.wait(_TICK_S):
            self._supervisor.tick()
            standing = self._standing(conn)
            progressed(submitted, standing.finished)
            if standing.finished >= submitted:
                return False
            due = len(self._kills) < len(marks)
            if due and standing.finished >= marks[len(self._kills)] * submitted:
                self._kill(conn, submitted, say)
            now = counts(conn, flow=self._flow.name)
            if now != last:
                last, moved_at = now, time.monotonic()
            elif time.monotonic() - moved_at > STALL_S:
                return True
        return True

    def _standing(self, conn: SyncConn) -> _Standing:
        row = conn.execute(SQL["terminal_jobs"], {"flow": self._flow.name}).fetchone() or {}
        return _Standing(row["done"], row["failed"], row["open"])

    def _kill(self, conn: SyncConn, submitted: int, say: Say) -> None:
        """SIGKILL, restart at once, then count what the dead worker had left."""
        try:
            pid = self._supervisor.kill(self._worker)
        except ProcessLookupError:
            return  # it is being restarted: the next tick tries again
        self._supervisor.restart(self._worker)
        deadline = time.monotonic() + _CATCH_UP_S
        while (projection_lag(self._settings, self._admin, conn) or 0) > 0:
            if time.monotonic() > deadline:
                raise BadWorld("The projector does not catch up with job-state; see its log.")
            time.sleep(_TICK_S)
        # All that was committed before the kill shows by now: the rest was still to be done.
        finished = self._standing(conn).finished
        self._kills.append(Kill(pid, finished, submitted - finished))
        say(
            f"SIGKILL {len(self._kills)}: worker {pid} is gone and restarted, {finished:,} jobs "
            f"finished, {submitted - finished:,} in flight."
        )

    def _tally(
        self, conn: SyncConn, submitted: int, kills: int, stalled: bool, desk: DeskCount
    ) -> Tally:
        standing = self._standing(conn)
        flow = {"flow": self._flow.name}
        rows = conn.execute(SQL["effects_by_status"], flow)
        effects = {row["status"]: row["effects"] for row in rows}
        acting = conn.execute(SQL["acting_jobs"], flow).fetchone() or {}
        span = conn.execute(SQL["span_of_work"], flow).fetchone() or {}
        doubled = conn.execute(SQL["doubled_steps"]).fetchone() or {}
        latency = latencies(conn, flow=self._flow.name)
        return Tally(
            submitted=submitted,
            done=standing.done,
            failed=standing.failed,
            seconds=span["seconds"] or 0.0,
            p50_s=latency.p50_s,
            p95_s=latency.p95_s,
            desk=desk,
            acting=acting["jobs"],
            settled=effects.pop("done", 0),
            unsettled=sum(effects.values()),
            doubled_steps=doubled["steps"],
            skipped=sum(s.records for s in skip_counts(conn)),
            kills=tuple(self._kills),
            kills_wanted=kills,
            stalled=stalled,
        )
