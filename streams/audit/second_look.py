"""Before a suspect is reported: Postgres is asked again, as it is by now.

A duplicate that was skipped by a claim, a step that is only in the history, an effect that was
settled since the snapshot: none of them is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from streams.audit.facts import SQL, Facts, Row
from streams.audit.sources import Catalogue, Role
from streams.audit.wire import unpack
from streams.postgres import SyncConn

_BATCH: Final = 2_000
_BY_KEY: Final = {
    "target_unknown": "pg_known_effects",
    "effect_orphaned": "pg_owned_effects",
    "effect_in_doubt": "pg_answered_effects",
    "effect_unsettled": "pg_answered_effects",
}


class SecondLook:
    """Acquits suspects; the others become findings."""

    def __init__(self, conn: SyncConn, facts: Facts, catalogue: Catalogue) -> None:
        self._conn, self._facts = conn, facts
        self._sources = {s.n: s for s in catalogue.sources}
        self._stages = {n: s.stage for n, s in self._sources.items()}
        self._stages |= {n: stage for n, (_, _, stage) in catalogue.gone.items()}

    def take(self) -> None:
        """Raises `BadWorld`."""
        after = 0
        while page := list(self._facts.ask("suspects", {"after": after, "limit": _BATCH})):
            after = page[-1][0]
            acquitted: set[int] = set()
            for rule in {row[1] for row in page}:
                acquitted |= self._acquit(rule, [row for row in page if row[1] == rule])
            self._facts.run_many("acquit", [(rowid,) for rowid in acquitted])
        self._facts.run("convict")

    def _acquit(self, rule: str, rows: Sequence[Row]) -> set[int]:
        if rule == "record_lost":
            return self._known_steps(rows) | self._claimed_by_others(rows)
        if rule == "projection_missing":
            return self._known(rows, "pg_known_jobs", ids=_ids(rows))
        if rule == "join_differs":
            return self._known_sets(rows)
        if rule == "run_differs":
            return self._known_journals(rows)
        if (by_key := _BY_KEY.get(rule)) is not None:
            return self._known(rows, by_key, keys=[row[5] for row in rows])
        return self._known_steps(rows, before=1 if rule == "gap" else 0)

    def _known_steps(self, rows: Sequence[Row], before: int = 0) -> set[int]:
        def forked(row: Row) -> bool:
            return bool(row[1] == "branch_orphan" and row[5] == "called")

        return self._known(
            rows,
            "pg_known_steps",
            # A child names a step of its parent as its fork.
            ids=[_parent(row[2]) if forked(row) else _text(row[2]) for row in rows],
            seqs=[row[3] - before for row in rows],
            # A step before this one may have been any stage's.
            stages=[None if before else self._stages.get(row[4]) for row in rows],
            roles=[row[5] or "" for row in rows],
        )

    def _known_sets(self, rows: Sequence[Row]) -> set[int]:
        forks = [row for row in rows if row[5] is not None]
        children = [row for row in rows if row[5] is None]
        parents = [_text(row[2]).rpartition("/") for row in children]
        return self._known(
            forks,
            "pg_known_joins",
            ids=_ids(forks),
            seqs=[row[3] for row in forks],
            stages=[self._stages.get(row[4]) for row in forks],
            keys=[row[5] for row in forks],
        ) | self._known(
            children,
            "pg_known_arrivals",
            ids=[parent for parent, _, _ in parents],
            branches=[int(number) for _, _, number in parents],
        )

    def _known_journals(self, rows: Sequence[Row]) -> set[int]:
        # Events are named `kind/ref`, runs by their status.
        runs = [row for row in rows if "/" not in row[5]]
        events = [row for row in rows if "/" in row[5]]
        return self._known(
            runs,
            "pg_known_runs",
            ids=_ids(runs),
            seqs=[row[3] for row in runs],
            keys=[row[5] for row in runs],
        ) | self._known(
            events, "pg_known_events", ids=_ids(events), keys=[row[5] for row in events]
        )

    def _claimed_by_others(self, rows: Sequence[Row]) -> set[int]:
        rows = [
            row
            for row in rows
            if row[6] in self._sources and self._sources[row[6]].role in (Role.STAGE, Role.JOIN)
        ]
        return self._known(
            rows,
            "pg_claimed_by_others",
            ids=_ids(rows),
            seqs=[row[3] for row in rows],
            stages=[self._stages[row[4]] for row in rows],
            topics=[self._sources[row[6]].facts.topic_id for row in rows],
            parts=[row[7] for row in rows],
            ats=[row[8] for row in rows],
        )

    def _known(self, rows: Sequence[Row], name: str, **values: list[Any]) -> set[int]:
        if not rows:
            return set()
        found = self._conn.execute(SQL[name].encode(), values)
        return {rows[row["n"] - 1][0] for row in found}


def _parent(job: bytes) -> str:
    return _text(job).rpartition("/")[0]


def _ids(rows: Sequence[Row]) -> list[str]:
    return [_text(row[2]) for row in rows]


def _text(job: bytes) -> str:
    try:
        return unpack(job)
    except UnicodeDecodeError:
        return job.hex()
