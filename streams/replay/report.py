"""What a replay found: counts, kinds of difference with examples, the records by name. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from streams.replay.paths import MISSING, Difference, spell
from streams.replay.verdict import Judged, Verdict

#: Records that are not the same and named one by one; more are counted by kind only.
MAX_NAMED: Final = 100_000


@dataclass(slots=True)
class Group:
    """Records of a stage with the same verdict and kind of difference."""

    stage: str
    verdict: Verdict
    kind: str
    count: int = 0
    examples: list[Judged] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """`examples` bounds what each group keeps; `remarks` tell what lies beyond the horizon."""

    examples: int = 3
    counts: Counter[Verdict] = field(default_factory=Counter)
    groups: dict[tuple[str, Verdict, str], Group] = field(default_factory=dict)
    #: All that are not the same, in the order in which they were judged.
    named: list[Judged] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    seconds: float = 0.0
    #: The file was redacted: arguments of effects and messages were not compared.
    redacted: bool = False

    def add(self, batch: Iterable[Judged]) -> None:
        for judged in batch:
            self.counts[judged.verdict] += 1
            if judged.verdict is Verdict.SAME:
                continue
            key = (judged.stage, judged.verdict, judged.kind)
            group = self.groups.setdefault(key, Group(*key))
            group.count += 1
            if len(group.examples) < self.examples:
                group.examples.append(judged)
            if judged.verdict is not Verdict.SKIPPED and len(self.named) < MAX_NAMED:
                self.named.append(judged)

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def judged(self) -> int:
        return self.total - self.counts[Verdict.UNKNOWN] - self.counts[Verdict.SKIPPED]

    @property
    def all_same(self) -> bool:
        """Something was compared, all of it is the same, and nothing stayed unknown."""
        compared = self.counts[Verdict.SAME]
        return compared > 0 and compared == self.judged and not self._unknown

    @property
    def _unknown(self) -> bool:
        return bool(self.counts[Verdict.UNKNOWN] or self.remarks)

    def ordered(self) -> list[Group]:
        """By verdict, and within one the largest first."""
        order = list(Verdict)
        return sorted(
            self.groups.values(), key=lambda g: (order.index(g.verdict), -g.count, g.stage, g.kind)
        )

    def line(self) -> str:
        """The verdict in one sentence."""
        if not self.total:
            return "No record fits; nothing was compared."
        parts = [f"{self.counts[v]:,} {v.value}" for v in Verdict if self.counts[v]]
        rate = f", {self.total / self.seconds:,.0f}/s" if self.seconds > 0 else ""
        return f"{self.total:,} records: {', '.join(parts)} ({self.seconds:.1f} s{rate})."

    def as_json(self) -> dict[str, Any]:
        return {
            "all_same": self.all_same,
            "records": self.total,
            "counts": {v.value: self.counts[v] for v in Verdict},
            "seconds": round(self.seconds, 3),
            "arguments_compared": not self.redacted,
            "beyond_the_horizon": self.remarks,
            "groups": [
                {
                    "stage": g.stage,
                    "verdict": g.verdict.value,
                    "kind": g.kind,
                    "count": g.count,
                    "examples": [judged_json(j) for j in g.examples],
                }
                for g in self.ordered()
            ],
            "differing": [judged_json(j) for j in self.named],
            "named_all": len(self.named)
            == self.total - self.counts[Verdict.SAME] - self.counts[Verdict.SKIPPED],
        }


def judged_json(judged: Judged) -> dict[str, Any]:
    return {
        "job": judged.job,
        "seq": judged.seq,
        "stage": judged.stage,
        "record": judged.place,
        "verdict": judged.verdict.value,
        "kind": judged.kind,
        "differences": [difference_json(d) for d in judged.differences],
        "message": judged.message,
    }


def difference_json(difference: Difference) -> dict[str, Any]:
    """A side that has nothing is left out, since null is a value."""
    sides = {"was": difference.was, "now": difference.now}
    found = {name: value for name, value in sides.items() if value is not MISSING}
    return {"path": spell(difference.path), **found}
