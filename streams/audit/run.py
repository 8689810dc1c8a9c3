"""One audit, from the first question to the verdict.

The order is the proof (infra/decisions/0010-audit.md): each fact that must follow from another is
read after it, so that nothing that changes meanwhile raises an alarm.

1 snapshot of Postgres → 2 groups' offsets → 3 early states → 4 hand-offs → 5 late states → 6 the
target's record → rules → 7 second look.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from streams.audit.facts import Facts
from streams.audit.postgres_facts import Filter, Snapshot
from streams.audit.rules import Bounds, judge
from streams.audit.second_look import SecondLook
from streams.audit.sources import Catalogue, Position, Role, Source, discover, positions
from streams.audit.target import read_target
from streams.audit.topic_facts import TopicFacts
from streams.audit.verdict import Verdict
from streams.config import Settings
from streams.kafka import AdminClient, admin_client
from streams.postgres import connect

#: How late a timer may be: the dispatcher looks several times a second.
_OVERDUE_MS: Final = 60_000
#: Brokers' clocks and ours: what is so near to expiring counts as expired.
_SLACK_MS: Final = 10_000

#: Told what is done, how far, of how much.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Options:
    """`flow` None: all flows. `since_ms`: only what is younger must be explained. `stuck_after_s`:
    what waits for longer is stuck. `targets`: files of effect targets."""

    flow: str | None = None
    since_ms: int | None = None
    stuck_after_s: float = 900.0
    targets: tuple[Path, ...] = ()


@dataclass(slots=True)
class _Audit:
    settings: Settings
    options: Options
    facts: Facts
    progress: Progress
    admin: AdminClient
    began_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    def run(self) -> Verdict:
        options = self.options
        catalogue = discover(self.settings, self.admin, options.flow, options.since_ms)
        topics = TopicFacts(self.settings, self.admin, self.facts, catalogue, options.flow)
        with connect(self.settings) as conn:
            wanted = Filter(options.flow, options.since_ms)
            snapshot = Snapshot(conn, self.facts, catalogue, wanted)
            snapshot.read(lambda done, total: self.progress("Postgres", done, total))  # 1
        heads = self._positions(catalogue)  # 2
        topics.read_states(self.progress)  # 3
        topics.read_hand_offs(self.progress)  # 4
        topics.read_states(self.progress)  # 5
        for path in options.targets:
            for batch in read_target(path):  # 6
                self.facts.add("target", batch)
        topics.write_parts(heads)
        self._write_topics(catalogue)
        bounds = self._bounds(catalogue)
        judge(self.facts, bounds, lambda done, total: self.progress("rules", done, total))
        with connect(self.settings) as conn:
            SecondLook(conn, self.facts, catalogue).take()  # 7
        return Verdict(self.facts, bounds, catalogue)

    def _positions(self, catalogue: Catalogue) -> dict[tuple[int, int], int | None]:
        heads: dict[tuple[int, int], int | None] = {}
        for source in catalogue.of(Role.STAGE, Role.JOIN):
            for position in positions(self.settings, source):
                heads[source.n, position.partition] = position.head
                self._write_position(source, position)
        return heads

    def _write_position(self, source: Source, position: Position) -> None:
        p = position.partition
        self.facts.add("finished", [(source.n, p, a, b) for a, b in position.finished])
        if position.fault is not None:
            row = (
                "position_unreadable",
                None,
                None,
                source.n,
                p,
                position.head,
                position.fault,
            )
            self.facts.add("finding", [row])

    def _bounds(self, catalogue: Catalogue) -> Bounds:
        stuck_ms = int(self.options.stuck_after_s * 1000)
        return Bounds(
            now_ms=self.began_ms,
            since_ms=self.options.since_ms or 0,
            stuck_ms=stuck_ms,
            overdue_ms=min(stuck_ms, _OVERDUE_MS),
            compacted_ms=_expired_ms(catalogue.state),
            state=catalogue.state.n,
        )

    def _write_topics(self, catalogue: Catalogue) -> None:
        rows: list[tuple[object, ...]] = [
            (s.n, s.name, s.role.value, s.flow, s.stage, _expired_ms(s)) for s in catalogue.sources
        ]
        rows += [
            (n, name, Role.GONE.value, flow, stage, -1)
            for n, (name, flow, stage) in catalogue.gone.items()
        ]
        self.facts.add("topic", rows)


def _expired_ms(source: Source) -> int:
    """What is older may have been removed by Kafka itself, as of now; -1: nothing ever is."""
    if source.keeps_ms is None:
        return -1
    return int(time.time() * 1000) - source.keeps_ms + _SLACK_MS


@contextmanager
def audited(
    settings: Settings,
    options: Options | None = None,
    progress: Progress = lambda _what, _done, _total: None,
) -> Iterator[Verdict]:
    """The verdict; its details can be asked for as long as the block runs.

    Reads only, and may run beside workers. Raises `BadWorld` when Kafka or Postgres cannot be read,
    `BadSetup` when there is nothing to audit.
    """
    with tempfile.TemporaryDirectory(prefix="handoff-audit-") as folder:
        facts = Facts(Path(folder) / "facts.db")
        try:
            with admin_client(settings) as admin:
                yield _Audit(settings, options or Options(), facts, progress, admin).run()
        finally:
            facts.close()
