"""What goes on while faults happen: a burst of jobs, then an even rate, until all are accepted."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

from streams.client import Client
from streams.config import Settings
from streams.errors import BadWorld
from tests.soak.errands import Errand, flow, job_id, some_errand

_BATCH: Final = 200
_AGAIN_AFTER_S: Final = 0.5
#: Part of the jobs that comes at once: each bound on what is in work is reached before memory is
#: first looked at, so that what grows later leaks.
_BURST: Final = 0.1


class Load:
    """`accepted`: errands that Kafka has confirmed, by job id. `refused`: batches sent again."""

    def __init__(self, settings: Settings, seed: int, jobs: int, seconds: float) -> None:
        self._settings, self._seed, self._jobs = settings, seed, jobs
        self._burst = int(jobs * _BURST)
        self._every_s = seconds * _BATCH / (jobs - self._burst)
        self.accepted: dict[str, Errand] = {}
        self.refused = 0
        self.error: BaseException | None = None
        self._given_up = Event()
        self._thread = Thread(target=self._run, name="load")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Submits from now on; the block's end waits for the last batch, unless it raised."""
        self._thread.start()
        try:
            yield
        except BaseException:
            self._given_up.set()
            raise
        finally:
            self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            asyncio.run(self._submit_all())
        except BaseException as e:
            self.error = e

    async def _submit_all(self) -> None:
        chance = random.Random(self._seed)
        due = time.monotonic()
        async with Client(self._settings) as client:
            for first in range(0, self._jobs, _BATCH):
                numbers = range(first, min(first + _BATCH, self._jobs))
                batch = {job_id(self._seed, n): some_errand(chance, n) for n in numbers}
                await self._submit(client, batch)
                due += self._every_s if first >= self._burst else 0.0
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _submit(self, client: Client, batch: dict[str, Errand]) -> None:
        """After "not confirmed" the same ids once more: some of them are in Kafka twice then."""
        items = [(job, errand.model_dump_json().encode()) for job, errand in batch.items()]
        while not self._given_up.is_set():
            try:
                async for _ in client.submit_many(flow, items):
                    pass
            except BadWorld:
                self.refused += 1
                await asyncio.sleep(_AGAIN_AFTER_S)
            else:
                self.accepted.update(batch)
                return
