"""A worker is SIGKILLed around an effect; the next one of its slot finds what it left.

The child runs one effect against a target with a record of its own (an append-only file, as a mail
server keeps a log) and kills itself at the named point; the parent then runs the same effect.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from streams.config import Settings, load_settings
from streams.context import EffectCall
from streams.errors import EffectParked
from streams.ledger.effects import Ledger
from streams.postgres import open_pool

pytestmark = pytest.mark.services

TRACE = "ef" * 16


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Target:
    """Keeps every call in a file; `die_at` kills the process before or after the call counts."""

    def __init__(self, record: Path, die_at: str = "") -> None:
        self.record = record
        self.die_at = die_at

    async def send(self, subject: str, *, idempotency_key: str) -> int:
        if self.die_at == "before the call":
            die()
        with self.record.open("a", encoding="utf-8") as file:
            file.write(f"{idempotency_key} {subject}\n")
            file.flush()
            os.fsync(file.fileno())
        if self.die_at == "after the call":
            die()
        return len(self.calls)

    @property
    def calls(self) -> list[str]:
        return self.record.read_text(encoding="utf-8").splitlines() if self.record.exists() else []


async def run_effect(settings: Settings, target: Target, *, idempotent: bool) -> Any:
    async with open_pool(settings) as pool:
        ledger = Ledger(pool, settings)
        await ledger.open()
        try:
            return await ledger.run(
                EffectCall(
                    f"{TRACE}:act:0:send",
                    "send",
                    TRACE,
                    "mail",
                    "act",
                    target.send,
                    ("hello",),
                    {},
                    idempotent,
                )
            )
        finally:
            if target.die_at == "after the settlement":
                die()
            await ledger.close()


@pytest.fixture
def crash(settings: Settings, tmp_path: Path) -> Callable[[str, bool], Awaitable[Target]]:
    async def crash(die_at: str, idempotent: bool) -> Target:
        record = tmp_path / "record"
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            str(record),
            die_at,
            "idempotent" if idempotent else "",
            env={**os.environ, "DATABASE_URL": settings.database_url},
        )
        assert await child.wait() == -signal.SIGKILL
        return Target(record)

    return crash


@pytest.mark.parametrize("die_at", ["before the call", "after the call"])
async def test_an_idempotent_effect_is_repeated_under_its_key(
    crash: Any, settings: Settings, die_at: str
) -> None:
    target = await crash(die_at, True)
    before = len(target.calls)
    assert await run_effect(settings, target, idempotent=True) == before + 1
    # One effect by its key, however many calls.
    assert set(target.calls) == {f"{TRACE}:act:0:send hello"}
    assert before == (die_at == "after the call")


@pytest.mark.parametrize("die_at", ["before the call", "after the call"])
async def test_an_effect_that_is_not_idempotent_is_parked_and_never_repeated(
    crash: Any, settings: Settings, die_at: str
) -> None:
    target = await crash(die_at, False)
    before = len(target.calls)
    for _ in range(2):
        with pytest.raises(EffectParked, match="may or may not have happened") as e:
            await run_effect(settings, target, idempotent=False)
        assert e.value.kind == "in_doubt"
    assert len(target.calls) == before == (die_at == "after the call")


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_settled_effect_is_answered_from_the_ledger(
    crash: Any, settings: Settings, idempotent: bool
) -> None:
    target = await crash("after the settlement", idempotent)
    assert await run_effect(settings, target, idempotent=idempotent) == 1
    assert len(target.calls) == 1


if __name__ == "__main__":
    path, point, repeatable = sys.argv[1:]
    asyncio.run(run_effect(load_settings(), Target(Path(path), point), idempotent=bool(repeatable)))
