"""Flows with one stage, `strike`, whose jobs may kill the process that runs them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import resource
import time
from contextlib import suppress
from datetime import timedelta
from typing import Literal

from streams import Backoff, Context, Flow, stage
from tests.support import target
from tests.support.flows import Job

#: Exponential in the length of the text; `re` keeps the interpreter lock all the while.
_CATASTROPHE = re.compile(r"(a+)+$")

#: How long `nap` blocks the event loop.
NAP_S = 6.0


class Deed(Job):
    deed: Literal[
        "",
        "exit",
        "segv",
        "spin",
        "regex",
        "memory",
        "interrupt",
        "nap",
        "cancel",
        "deaf",
        "thread",
    ] = ""


def do(deed: Deed) -> None:
    if deed.deed:
        print("at it", flush=True)
    match deed.deed:
        case "exit":
            os._exit(7)
        case "segv":
            ctypes.string_at(0)
        case "spin":
            while True:
                pass
        case "regex":
            _CATASTROPHE.match("a" * 64 + "!")
        case "memory":
            _eat_all_memory()
        case "interrupt":
            raise KeyboardInterrupt
        case "nap":
            time.sleep(NAP_S)
        case "cancel":
            # Inline, this is the agent's own task.
            task = asyncio.current_task()
            assert task is not None
            task.cancel()


def _eat_all_memory() -> None:
    """As in a container whose limit the allocator can see."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as f:
        pages = int(f.read().split()[0])
    limit = pages * resource.getpagesize() + 2**26
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        bytearray(2**30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


_QUICK = Backoff(attempts=2, first=timedelta(milliseconds=20))


@stage("strike", emits="done", retry=_QUICK)
def strike(deed: Deed, _: Context) -> Deed:
    """Does the deed inline."""
    do(deed)
    return deed.past("strike")


@stage("strike", emits="done", concurrency=8, retry=_QUICK)
async def concurrent_strike(deed: Deed, _: Context) -> Deed:
    """Passes its gate, takes its time, does the deed."""
    if deed.gate:
        await target.pass_gate(deed.gate)
    await asyncio.sleep(deed.wait_ms / 1000)
    do(deed)
    if deed.deed == "thread":
        # Its task can be cancelled, its thread cannot.
        await asyncio.to_thread(time.sleep, 3_600)
    while deed.deed == "deaf":
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3_600)
    return deed.past("strike")


@stage("watch", emits="strike", retry=_QUICK)
async def watch(deed: Deed, _: Context) -> Deed:
    """Passes its gate, takes its time, hands on."""
    if deed.gate:
        await target.pass_gate(deed.gate)
    await asyncio.sleep(deed.wait_ms / 1000)
    return deed.past("watch")


inline = Flow("deadly", stages=(strike,), sinks=("done",))
concurrent = Flow("deadly", stages=(concurrent_strike,), sinks=("done",))
#: Both stages in one process: who dies with whom?
both = Flow("deadly", stages=(watch, concurrent_strike), sinks=("done",))
