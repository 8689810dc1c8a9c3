"""SIGKILL at each named point of the ledger: no mail is sent twice, and none is forgotten silently.

A child runs one effect with its crash point armed. The target is a file that mails are appended to:
it honours no keys, and can be looked into. The next worker of the slot then runs the same effect.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import pytest

from streams.config import Settings, load_settings
from streams.context import DidNotHappen, EffectCall, Happened
from streams.crashpoints import arm
from streams.errors import EffectParked
from streams.ledger.effects import Ledger
from streams.postgres import connect, open_pool
from tests.support.worker import environment

pytestmark = pytest.mark.services

TRACE = "fe" * 16
KEY = f"{TRACE}:act:0:mail"


class Kind(StrEnum):
    """How the effect is declared."""

    PLAIN = "plain"
    RECONCILED = "reconciled"
    IDEMPOTENT = "idempotent"


class Outbox:
    """An append-only file of mails."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def send(self, subject: str, *, idempotency_key: str) -> int:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{idempotency_key} {subject}\n")
            file.flush()
            os.fsync(file.fileno())
        return len(self.mails)

    async def look(self, subject: str, *, idempotency_key: str) -> Happened[int] | DidNotHappen:
        wanted = f"{idempotency_key} {subject}"
        return Happened(self.mails.index(wanted) + 1) if wanted in self.mails else DidNotHappen()

    @property
    def mails(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []


async def run_effect(settings: Settings, outbox: Outbox, kind: Kind) -> int:
    look = outbox.look if kind is Kind.RECONCILED else None
    idempotent = kind is Kind.IDEMPOTENT
    call = EffectCall(
        KEY, "mail", TRACE, "mail", "act", outbox.send, ("hello",), {}, idempotent, look
    )
    async with open_pool(settings) as pool:
        ledger = Ledger(pool, settings)
        await ledger.open()
        try:
            return int(await ledger.run(call))
        finally:
            await ledger.close()


Kill = Callable[[str, Kind], Outbox]


@pytest.fixture
def kill_at(settings: Settings, tmp_path: Path) -> Kill:
    """Runs the effect in a worker that is killed at a point; what it left at the target."""

    def run(point: str, kind: Kind) -> Outbox:
        path = tmp_path / "outbox"
        child = os.spawnve(
            os.P_WAIT,
            sys.executable,
            [sys.executable, "-m", "tests.crash.test_ledger_points", str(path), kind],
            environment(settings.model_copy(update={"crash_point": point})),
        )
        assert child == -signal.SIGKILL, f"{point} was not reached"
        return Outbox(path)

    return run


def status(settings: Settings) -> str:
    with connect(settings) as conn:
        row = conn.execute("SELECT status FROM effects").fetchone()
    assert row is not None
    return str(row["status"])


async def test_killed_before_the_call(kill_at: Kill, settings: Settings) -> None:
    outbox = kill_at("ledger.claimed", Kind.RECONCILED)
    assert outbox.mails == []
    assert await run_effect(settings, outbox, Kind.RECONCILED) == 1
    assert len(outbox.mails) == 1


async def test_killed_after_the_call_and_before_its_settlement(
    kill_at: Kill, settings: Settings
) -> None:
    outbox = kill_at("ledger.called", Kind.RECONCILED)
    assert len(outbox.mails) == 1
    assert await run_effect(settings, outbox, Kind.RECONCILED) == 1
    assert len(outbox.mails) == 1


@pytest.mark.parametrize(("first", "sent"), [("ledger.claimed", 0), ("ledger.called", 1)])
async def test_killed_between_the_targets_word_and_what_follows_from_it(
    kill_at: Kill, settings: Settings, first: str, sent: int
) -> None:
    kill_at(first, Kind.RECONCILED)
    outbox = kill_at("ledger.reconciled", Kind.RECONCILED)
    assert (len(outbox.mails), status(settings)) == (sent, "claimed")
    assert await run_effect(settings, outbox, Kind.RECONCILED) == 1
    assert len(outbox.mails) == 1


async def test_killed_after_the_second_call_that_the_target_allowed(
    kill_at: Kill, settings: Settings
) -> None:
    kill_at("ledger.claimed", Kind.RECONCILED)
    outbox = kill_at("ledger.called", Kind.RECONCILED)
    assert len(outbox.mails) == 1
    assert await run_effect(settings, outbox, Kind.RECONCILED) == 1
    assert len(outbox.mails) == 1


@pytest.mark.parametrize("kind", Kind)
async def test_killed_after_the_settlement(kill_at: Kill, settings: Settings, kind: Kind) -> None:
    outbox = kill_at("ledger.settled", kind)
    assert status(settings) == "done"
    assert await run_effect(settings, outbox, kind) == 1
    assert len(outbox.mails) == 1


@pytest.mark.parametrize(("point", "sent"), [("ledger.claimed", 0), ("ledger.called", 1)])
async def test_where_nobody_can_be_asked_the_job_is_parked_and_nothing_sent(
    kill_at: Kill, settings: Settings, point: str, sent: int
) -> None:
    outbox = kill_at(point, Kind.PLAIN)
    for _ in range(2):
        with pytest.raises(EffectParked, match="may or may not have happened"):
            await run_effect(settings, outbox, Kind.PLAIN)
    assert (len(outbox.mails), status(settings)) == (sent, "in_doubt")
    # A later release that can ask brings it on.
    assert await run_effect(settings, outbox, Kind.RECONCILED) == 1
    assert len(outbox.mails) == 1


@pytest.mark.parametrize(("point", "sent"), [("ledger.claimed", 0), ("ledger.called", 1)])
async def test_an_idempotent_effect_is_called_again_under_its_key(
    kill_at: Kill, settings: Settings, point: str, sent: int
) -> None:
    outbox = kill_at(point, Kind.IDEMPOTENT)
    assert await run_effect(settings, outbox, Kind.IDEMPOTENT) == sent + 1
    assert set(outbox.mails) == {f"{KEY} hello"}


if __name__ == "__main__":
    own = load_settings()
    arm(own.crash_point)
    asyncio.run(run_effect(own, Outbox(Path(sys.argv[1])), Kind(sys.argv[2])))
