"""The workers: started anew whenever they end, as by a process manager, and watched for leaks."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, RLock, Thread
from typing import Final

from streams.config import Settings
from tests.support.worker import Worker

_APP: Final = "tests.soak.errands:flow"
_LOOK_EVERY_S: Final = 0.2
_SAMPLE_EVERY_S: Final = 2.0
_MIB: Final = 2**20


@dataclass(slots=True)
class Life:
    """One process of a slot; times are epoch seconds. `meant`: we ended it."""

    slot: int
    worker: Worker
    began_at: float
    ended_at: float | None = None
    code: int | None = None
    meant: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """Of slot 0: seconds since the start of the crew, process, resident MiB, open files.

    `kinds`: what the files are, by `socket`, `pipe` and so on.
    """

    at_s: float
    pid: int
    resident_mib: float
    files: int
    kinds: dict[str, int]


class Crew:
    """Slots with a worker each, which does everything. Safe to use from several threads."""

    def __init__(self, settings: Settings, folder: Path, variables: Mapping[str, str]) -> None:
        self._settings, self._folder, self._variables = settings, folder, dict(variables)
        self.lives: list[Life] = []
        self.samples: list[Sample] = []
        self._wanted: dict[int, Life] = {}
        self._lock = RLock()
        self._over = Event()
        self._began = time.monotonic()
        self._threads = [
            Thread(target=self._repeat, args=(self._look_after, _LOOK_EVERY_S), name="supervisor"),
            Thread(target=self._repeat, args=(self._sample, _SAMPLE_EVERY_S), name="sampler"),
        ]
        for thread in self._threads:
            thread.start()

    def start(self, slot: int) -> None:
        """From now on this slot has a worker, whatever happens to it."""
        with self._lock:
            worker = Worker(
                self._settings.model_copy(update={"slot": slot}),
                self._folder / f"worker-{slot}-{len(self.lives)}.log",
                app=_APP,
                variables=self._variables,
            )
            self._wanted[slot] = life = Life(slot, worker, time.time())
            self.lives.append(life)

    def kill(self, slot: int) -> None:
        """SIGKILL; it comes back."""
        with self._lock:
            self._wanted[slot].meant = True
            self._wanted[slot].worker.process.kill()

    def terminate(self, slot: int) -> None:
        """SIGTERM; it comes back once it has ended."""
        with self._lock:
            self._wanted[slot].meant = True
            self._wanted[slot].worker.process.terminate()

    def dismiss(self, slot: int) -> int:
        """SIGTERM; it does not come back. Waits for the end; the exit code."""
        with self._lock:
            life = self._wanted.pop(slot)
            life.meant = True
        code = life.worker.stop()
        life.code, life.ended_at = code, time.time()
        return code

    def pid(self, slot: int) -> int | None:
        """The process of the slot; None while it has none."""
        with self._lock:
            life = self._wanted.get(slot)
            return life.worker.process.pid if life is not None and life.worker.running else None

    def end(self) -> None:
        """SIGKILL whatever runs; no more is started."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        for life in self.lives:
            life.worker.clean_up()

    def unexpected(self) -> list[Life]:
        """Processes that ended by themselves."""
        return [life for life in self.lives if life.code is not None and not life.meant]

    def _repeat(self, do: object, every_s: float) -> None:
        assert callable(do)
        while not self._over.wait(every_s):
            do()

    def _look_after(self) -> None:
        with self._lock:
            for slot, life in list(self._wanted.items()):
                if (code := life.worker.process.poll()) is not None:
                    life.code, life.ended_at = code, time.time()
                    self.start(slot)

    def _sample(self) -> None:
        pid = self.pid(0)
        if pid is None:
            return
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            kinds = Counter(map(_kind, Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:
            return  # it has just ended, or this system has no /proc
        resident = pages * os.sysconf("SC_PAGE_SIZE") / _MIB
        at_s = round(time.monotonic() - self._began, 1)
        sample = Sample(at_s, pid, round(resident, 1), kinds.total(), dict(kinds))
        self.samples.append(sample)
        with (self._folder / "samples.jsonl").open("a") as out:
            out.write(json.dumps(asdict(sample)) + "\n")


def _kind(file: Path) -> str:
    """`socket` of `socket:[123]`; the file may be closed by now."""
    try:
        return str(file.readlink()).partition(":")[0]
    except FileNotFoundError:
        return "closed"
