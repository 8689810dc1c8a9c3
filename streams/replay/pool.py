"""Trials in processes of their own, one for each core: an interpreter runs one handler at a time.

The parent reads and looks up, the children run handlers and compare. Each loads the flow by itself.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from streams.config import Settings
from streams.errors import BadSetup
from streams.flow import Flow
from streams.logs import configure_logs
from streams.replay.effects import Policy
from streams.replay.facts import Case
from streams.replay.paths import Path
from streams.replay.trial import Trial
from streams.replay.verdict import Judged

#: Gives the flow; it travels to the children, so it is a module's function or a `partial` of one.
Load = Callable[[], Flow]

_trial: Trial | None = None


class Pool:
    """`with Pool(…) as pool`: `judge` is as a `Trial`'s, but gives a future."""

    def __init__(
        self,
        processes: int,
        load: Load,
        settings: Settings,
        policy: Policy,
        ignored: Sequence[Path] = (),
    ) -> None:
        # Not forked: the driver's threads would not be there, and its locks would.
        self._pool = ProcessPoolExecutor(
            processes,
            mp_context=get_context("spawn"),
            initializer=_begin,
            initargs=(load, settings, policy, tuple(ignored)),
        )

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def judge(self, cases: Sequence[Case]) -> Future[list[Judged]]:
        return self._pool.submit(_judge, list(cases))

    @staticmethod
    def result(future: Future[list[Judged]]) -> list[Judged]:
        """Raises `BadSetup` when a process is gone: a handler has ended it, or it never started."""
        try:
            return future.result()
        except BrokenProcessPool as e:
            raise BadSetup(
                "A process of the replay ended while it ran handlers, or could not load the flow. "
                "With one process (--jobs 1) it would say more; nothing was written."
            ) from e


def _begin(load: Load, settings: Settings, policy: Policy, ignored: Sequence[Path]) -> None:
    global _trial  # noqa: PLW0603 - a process of the pool has one, made when it starts
    # The parent is told, and ends the pool.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What handlers print must not mix with the parent's report.
    sys.stdout = sys.stderr
    configure_logs(settings)
    _trial = Trial(load(), settings, policy, ignored).__enter__()


def _judge(cases: Sequence[Case]) -> list[Judged]:
    assert _trial is not None, "the pool's initializer has run"
    return _trial.judge(cases)
