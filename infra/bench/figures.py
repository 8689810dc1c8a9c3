"""Medians, percentiles and ratios of measurements. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Final

_QUANTILES: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "max": 1.0}


def percentiles_ms(seconds: Iterable[float]) -> dict[str, float]:
    """p50, p95, p99 and max in ms (nearest rank); empty for no values."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    return {
        name: round(1000 * ordered[min(len(ordered) - 1, int(q * len(ordered)))], 1)
        for name, q in _QUANTILES.items()
    }


def median(values: Iterable[float | None]) -> float | None:
    """The median of the figures that exist; None if none does."""
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def ratio_by_round(
    mine: Mapping[int, float | None], theirs: Mapping[int, float | None]
) -> float | None:
    """Median over rounds of mine / theirs in the same round: a noisy minute hits both alike."""
    return median(ratios_by_round(mine, theirs))


def ratios_by_round(
    mine: Mapping[int, float | None], theirs: Mapping[int, float | None]
) -> list[float]:
    """mine / theirs of each round that has both, in the order of `mine`."""
    return [
        figure / other
        for turn, figure in mine.items()
        if figure is not None and (other := theirs.get(turn))
    ]


def per_thousand(total: float | None, jobs: int) -> float | None:
    """A cost per 1,000 jobs."""
    return None if total is None or not jobs else 1000 * total / jobs


def per_million(total: float | None, jobs: int) -> float | None:
    """A cost per 1,000,000 jobs."""
    return None if total is None or not jobs else 1_000_000 * total / jobs
