"""`python -m tests.soak`: the long lane. Exit code 0: it has passed; 1: it has not.

The seed is printed; the same seed gives the same schedule and the same jobs.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.soak.run import Report, soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of load and faults")
    parser.add_argument("--seed", type=int, help="of the schedule and the jobs; else a new one")
    parser.add_argument("--jobs", type=int, help="else 90 for each second")
    parser.add_argument("--folder", type=Path, help="for logs; else a new one, kept")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    folder = options.folder or Path(tempfile.mkdtemp(prefix="handoff-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    # Passable for the user that Postgres runs as when we are root.
    folder.chmod(0o711)
    jobs = options.jobs or int(options.seconds * 90)
    _say(f"seed {seed}: {jobs:,} jobs in {options.seconds:.0f} s; logs are in {folder}")
    try:
        report = soak(folder, seed=seed, seconds=options.seconds, jobs=jobs, say=_say)
    except BaseException:
        _say(f"seed {seed} broke off; logs are in {folder}")
        raise
    for line in lines(report):
        print(line)
    print(f"seed {seed}: {'failed' if report.faults else 'passed'}")
    return 1 if report.faults else 0


def lines(report: Report) -> Iterator[str]:
    """For people: what happened, what was counted, what was wrong."""
    yield f"load {report.load_s:.0f} s, then drained by itself in {report.drain_s:.0f} s"
    yield "faults: " + _counts(report.happened)
    yield "workers that ended by themselves (slot: code): " + (_counts(report.exits) or "none")
    yield "counted: " + _counts(report.counts)
    reasons = [doubt.because or "unexplained" for doubt in report.doubts]
    told = {reason: reasons.count(reason) for reason in sorted(set(reasons))}
    yield f"in doubt: {len(reasons)}, because: {_counts(told) or '-'}"
    if report.leak is not None:
        yield "slot 0: " + ", ".join(f"{k} {v}" for k, v in asdict(report.leak).items())
    yield f"audit: {report.verdict}"
    for fault in report.faults:
        yield f"FAULT: {fault}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
