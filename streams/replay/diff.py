"""Two jobs hop by hop. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from schemas.state import JOIN
from streams.replay.paths import Difference, Path, differences, without
from streams.state.views import Hop


@dataclass(frozen=True, slots=True)
class HopPair:
    """The n-th hop of each job, None where one has fewer; `differences` is of what they did.

    Attempts and durations are for the eye: two runs of equal jobs differ in them.
    """

    a: Hop | None
    b: Hop | None
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        return not self.differences


def diff_jobs(a: Sequence[Hop], b: Sequence[Hop], ignored: Sequence[Path] = ()) -> list[HopPair]:
    """Both jobs' hops in the order of their steps, side by side."""
    return [
        HopPair(x, y, tuple(without(differences(_did(x), _did(y)), ignored)))
        for x, y in zip_longest(a, b)
    ]


def _did(hop: Hop | None) -> dict[str, Any]:
    if hop is None:
        return {}
    return {
        "stage": hop.stage,
        "status": hop.status.value,
        "to": list(hop.to),
        "data": _data_of(hop),
        **({} if hop.error is None else {"error": {"kind": hop.error.kind}}),
    }


def _data_of(hop: Hop) -> Any:
    """A join's reference names the job itself, and two jobs have two names."""
    if hop.stage == JOIN and isinstance(hop.data, dict):
        return {name: value for name, value in hop.data.items() if name != "parent"}
    return hop.data


def queued_us(hop: Hop) -> int | None:
    """From the record's writing to the start of its handler."""
    return None if hop.timing is None else hop.timing.started_us - hop.timing.produced_us


def working_us(hop: Hop) -> int | None:
    """The handler's last run."""
    return None if hop.timing is None else hop.timing.finished_us - hop.timing.started_us
