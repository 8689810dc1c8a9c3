"""A worker's memory: few collections on the hot path, and what a backlog took goes back."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from typing import Final

_COLLECT_EVERY_S: Final = 60.0

# malloc.h of glibc, mallopt(3).
_M_ARENA_MAX: Final = -8
_M_MMAP_THRESHOLD: Final = -3
_ARENAS: Final = 2
_MMAP_FROM_BYTES: Final = 128 * 1024


def calm() -> None:
    """Once, before the first record, and before threads are started.

    Records in flight are many and free of cycles: collecting them over and over costs a third of
    the hot path, so it is left to `collect`. What was imported never becomes garbage.

    A worker has some forty threads, most of them the driver's. With an arena for each, and fetched
    batches in the heap (glibc raises its threshold for mmap to the largest block it has seen), the
    worst minute's memory stays torn and for good. Without glibc nothing is set.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(300_000, 10, 20)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_FROM_BYTES)


async def collect() -> None:
    """For ever. Cycles are few (what raised, clients that broke), but with thresholds like these
    they would stay for hours. One full collection takes some 10 ms. Free memory goes back to the
    system, where the C library can be told to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while True:
        await asyncio.sleep(_COLLECT_EVERY_S)
        gc.collect()
        if trim is not None:
            await asyncio.to_thread(trim, 0)
