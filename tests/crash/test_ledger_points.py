"""SIGKILL at each named point of the ledger: no mail is sent twice, and none is forgotten silently.

A child runs one effect with its crash point armed. The target is a file that mails are appended to:
it honours no keys, and can be looked into. The next worker of the slot then runs the same effect.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import pytest

from streams.config import Settings, load_settings
from streams.context import DidNotHappen, EffectCall, Happened
from streams.crashpoints import arm
from streams.errors import EffectParked
from streams.ledger.effects import Ledger
from streams.postgres import SyncConn, connect, open_pool
from tests.support import forked
from tests.support.forked import Forked
from tests.support.worker import environment

pytestmark = pytest.mark.services

TRACE = "fe" * 16
KEY = f"{TRACE}:act:0:mail"


class Kind(StrEnum):
    """How the effect is declared."""

    PLAIN = "plain"
    RECONCILED = "reconciled"
    IDEMPOTENT = "idempotent"
    #: Plain, and the connection breaks when the mail is sent.
    BROKEN = "broken"


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

    async def send_into_the_dark(self, subject: str, *, idempotency_key: str) -> int:
        await self.send(subject, idempotency_key=idempotency_key)
        raise ConnectionResetError("no answer")

    async def look(self, subject: str, *, idempotency_key: str) -> Happened[int] | DidNotHappen:
        wanted = f"{idempotency_key} {subject}"
        return Happened(self.mails.index(wanted) + 1) if wanted in self.mails else DidNotHappen()

    @property
    def mails(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []


async def run_effect(settings: Settings, outbox: Outbox, kind: Kind) -> int:
    look = outbox.look if kind is Kind.RECONCILED else None
    idempotent = kind is Kind.IDEMPOTENT
    send = outbox.send_into_the_dark if kind is Kind.BROKEN else outbox.send
    call = EffectCall(KEY, "mail", TRACE, "mail", "act", send, ("hello",), {}, idempotent, look)
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
        child = start(settings.model_copy(update={"crash_point": point}), path, kind)
        assert child.wait(60) == -signal.SIGKILL, f"{point} was not reached"
        return Outbox(path)

    return run


def start(settings: Settings, path: Path, kind: Kind) -> Forked:
    """A worker that runs the effect."""
    module = "tests.crash.test_ledger_points"
    return forked.start(module, str(path), kind, env=environment(settings))


def status(settings: Settings) -> str | None:
    """Of the effect's row, if there is one."""
    with connect(settings) as conn:
        row = conn.execute("SELECT status FROM effects").fetchone()
    return None if row is None else str(row["status"])


async def test_killed_before_the_claim(kill_at: Kill, settings: Settings) -> None:
    outbox = kill_at("ledger.asked", Kind.PLAIN)
    assert (outbox.mails, status(settings)) == ([], None)
    assert await run_effect(settings, outbox, Kind.PLAIN) == 1
    assert len(outbox.mails) == 1


async def test_killed_while_its_claim_is_under_way(settings: Settings, tmp_path: Path) -> None:
    """Its server process outlives it, and may write the claim when nobody waits for it."""
    outbox = Outbox(tmp_path / "outbox")
    with connect(settings) as watch:
        with connect(settings) as gate, gate.transaction():
            gate.execute("LOCK TABLE effects IN EXCLUSIVE MODE")
            child = start(settings, outbox.path, Kind.RECONCILED)
            wait_until(lambda: blocked(watch) == 1, child)
            child.kill()
            assert child.wait(60) == -signal.SIGKILL
        wait_until(lambda: blocked(watch) == 0)
    assert outbox.mails == []
    assert await run_effect(settings, outbox, Kind.RECONCILED) == 1
    assert len(outbox.mails) == 1


def wait_until(fact: Callable[[], bool], child: Forked | None = None) -> None:
    """Within a minute, and before the child ends by itself."""
    deadline = time.monotonic() + 60
    while not fact():
        assert child is None or child.poll() is None, "the worker ended before the kill"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def blocked(watch: SyncConn) -> int:
    """Statements that wait for a lock."""
    row = watch.execute(
        "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock'"
    ).fetchone()
    assert row is not None
    return int(row["n"])


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


@pytest.mark.parametrize("kind", [Kind.PLAIN, Kind.RECONCILED, Kind.IDEMPOTENT])
async def test_killed_after_the_settlement(kill_at: Kill, settings: Settings, kind: Kind) -> None:
    outbox = kill_at("ledger.settled", kind)
    assert status(settings) == "done"
    assert await run_effect(settings, outbox, kind) == 1
    assert len(outbox.mails) == 1


async def test_killed_after_the_doubt_and_before_the_job_is_parked(
    kill_at: Kill, settings: Settings
) -> None:
    outbox = kill_at("ledger.doubted", Kind.BROKEN)
    assert (len(outbox.mails), status(settings)) == (1, "in_doubt")
    with pytest.raises(EffectParked, match="may or may not have happened"):
        await run_effect(settings, outbox, Kind.BROKEN)
    assert (len(outbox.mails), status(settings)) == (1, "in_doubt")
    assert await run_effect(settings, outbox, Kind.RECONCILED) == 1
    assert len(outbox.mails) == 1


@pytest.mark.parametrize(("point", "sent"), [("ledger.claimed", 0), ("ledger.called", 1)])
async def test_where_nobody_can_be_asked_the_job_is_parked_and_nothing_sent(
    kill_at: Kill, settings: Settings, point: str, sent: int
) -> None:
    outbox = kill_at(point, Kind.PLAIN)
    for _ in range(2):
        with pytest.raises(EffectParked, match="may or may not have happened") as e:
            await run_effect(settings, outbox, Kind.PLAIN)
        assert e.value.kind == "in_doubt"
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
