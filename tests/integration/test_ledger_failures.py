"""The ledger when functions raise, handlers are cancelled and Postgres goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.rows import DictRow, dict_row

from streams.config import Settings
from streams.context import EffectCall
from streams.errors import BadRecord, BadWorld, EffectNotDone, EffectParked
from streams.ledger.effects import Ledger
from streams.postgres import Pool, open_pool

pytestmark = pytest.mark.services

KEY = f"{'cd' * 16}:act:0:send"


class Refused(EffectNotDone, BadWorld):
    """As a stage author writes it: nothing done, and no attempt to be spent."""


class Target:
    """Raises what it is told to, then answers; counts its calls."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def send(self, subject: str, *, idempotency_key: str) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


def effect(fn: Any, *args: Any, idempotent: bool = False) -> EffectCall:
    return EffectCall(KEY, "send", "cd" * 16, "mail", "act", fn, args, {}, idempotent)


def admin(settings: Settings) -> psycopg.Connection[DictRow]:
    return psycopg.connect(settings.database_url, autocommit=True, row_factory=dict_row)


def row(settings: Settings) -> DictRow | None:
    with admin(settings) as conn:
        return conn.execute("SELECT *, leased_until <= now() AS over FROM effects").fetchone()


@pytest.fixture
async def pool(settings: Settings) -> AsyncIterator[Pool]:
    async with open_pool(settings) as pool:
        yield pool


@pytest.fixture
async def ledger(pool: Pool, settings: Settings) -> AsyncIterator[Ledger]:
    ledger = Ledger(pool, settings)
    await ledger.open()
    yield ledger
    await ledger.close()


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("error", [EffectNotDone("429"), BadRecord("no such desk"), Refused("-")])
async def test_a_call_that_was_refused_is_made_again(
    ledger: Ledger, settings: Settings, error: Exception, idempotent: bool
) -> None:
    target = Target(error)
    with pytest.raises(type(error)) as e:
        await ledger.run(effect(target.send, "hello", idempotent=idempotent))
    assert e.value is error
    found = row(settings)
    assert found is not None
    assert (found["status"], found["note"]) == ("released", f"{type(error).__name__}: {error}")
    assert await ledger.run(effect(target.send, "hello", idempotent=idempotent)) == 2
    found = row(settings)
    assert found is not None
    assert (found["status"], found["calls"], found["fence"], found["note"]) == ("done", 2, 2, None)


async def test_a_call_that_was_refused_may_be_made_with_other_arguments(ledger: Ledger) -> None:
    target = Target(BadRecord("no such address"))
    with pytest.raises(BadRecord):
        await ledger.run(effect(target.send, "helo"))
    assert await ledger.run(effect(target.send, "hello")) == 2
    with pytest.raises(EffectParked):
        await ledger.run(effect(target.send, "helo"))


@pytest.mark.parametrize("error", [BadWorld("no answer"), ValueError("bad\0 JSON"), TimeoutError()])
async def test_an_unknown_outcome_is_repeated_under_the_same_key_if_idempotent(
    ledger: Ledger, settings: Settings, error: Exception
) -> None:
    target = Target(error)
    with pytest.raises(type(error)) as e:
        await ledger.run(effect(target.send, "hello", idempotent=True))
    assert e.value is error
    found = row(settings)
    assert found is not None
    assert (found["status"], found["over"]) == ("claimed", True)
    # The target may have done the first: the key stays bound to its arguments.
    with pytest.raises(EffectParked, match="other arguments"):
        await ledger.run(effect(target.send, "good-bye", idempotent=True))
    assert await ledger.run(effect(target.send, "hello", idempotent=True)) == 2


async def test_not_done_after_an_unknown_outcome_does_not_free_the_key(ledger: Ledger) -> None:
    target = Target(TimeoutError(), EffectNotDone("429"))
    for error in (TimeoutError, EffectNotDone):
        with pytest.raises(error):
            await ledger.run(effect(target.send, "hello", idempotent=True))
    with pytest.raises(EffectParked, match="other arguments"):
        await ledger.run(effect(target.send, "good-bye", idempotent=True))
    assert await ledger.run(effect(target.send, "hello", idempotent=True)) == 3


@pytest.mark.parametrize("error", [BadWorld("no answer"), ValueError("bad\0 JSON"), TimeoutError()])
async def test_an_unknown_outcome_parks_the_job_if_not_idempotent(
    ledger: Ledger, settings: Settings, error: Exception
) -> None:
    target = Target(error)
    with pytest.raises(EffectParked, match=f"its function raised {type(error).__name__}") as e:
        await ledger.run(effect(target.send, "hello"))
    assert (e.value.kind, e.value.__cause__) == ("in_doubt", error)
    with pytest.raises(EffectParked, match="may or may not have happened"):
        await ledger.run(effect(target.send, "hello"))
    found = row(settings)
    assert found is not None
    assert found["status"] == "in_doubt"
    assert target.calls == 1


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_call_that_was_cancelled_has_an_unknown_outcome(
    ledger: Ledger, settings: Settings, idempotent: bool
) -> None:
    called = asyncio.Event()
    calls = []

    async def send(*, idempotency_key: str) -> str:
        calls.append(idempotency_key)
        called.set()
        if len(calls) == 1:
            await asyncio.Event().wait()
        return "sent"

    running = asyncio.create_task(ledger.run(effect(send, idempotent=idempotent)))
    await called.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    # No waiting for a lease of its own, nor for the ending that is still being written.
    if idempotent:
        assert await ledger.run(effect(send, idempotent=True)) == "sent"
    else:
        with pytest.raises(EffectParked):
            await ledger.run(effect(send))
    assert len(calls) == 1 + idempotent


async def test_closing_writes_the_endings_of_calls_that_were_cancelled(
    pool: Pool, settings: Settings
) -> None:
    ledger = Ledger(pool, settings)
    await ledger.open()
    called = asyncio.Event()

    async def send(*, idempotency_key: str) -> None:
        called.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(ledger.run(effect(send)))
    await called.wait()
    running.cancel()
    await asyncio.wait([running])
    await ledger.close()
    found = row(settings)
    assert found is not None
    assert (found["status"], found["note"]) == ("in_doubt", "CancelledError")


async def test_a_result_that_cannot_be_stored_parks_the_job_and_says_that_it_happened(
    ledger: Ledger, settings: Settings
) -> None:
    async def send(*, idempotency_key: str) -> Any:
        return object()

    with pytest.raises(EffectParked, match="has happened, but") as e:
        await ledger.run(effect(send))
    assert e.value.kind == "result_unstorable"
    with pytest.raises(EffectParked, match="happened, but its result cannot be stored") as e:
        await ledger.run(effect(send))
    assert e.value.kind == "in_doubt"


class Blocker:
    """Holds the effect's row by a transaction, so that the ledger's next statement waits for it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.conn = psycopg.connect(settings.database_url)

    def insert(self) -> None:
        self.conn.execute(
            "INSERT INTO effects (key, trace_id, flow, stage, name, fingerprint, idempotent,"
            " status, slot, incarnation, leased_until)"
            " VALUES (%s, '', '', '', '', '', true, 'claimed', 99, '', now())",
            [KEY],
        )

    def lock(self) -> None:
        self.conn.execute("SELECT FROM effects WHERE key = %s FOR UPDATE", [KEY])

    async def waiter(self) -> int:
        """Backend of the ledger's statement, as soon as it waits."""
        with admin(self.settings) as conn:
            while True:
                found = conn.execute(
                    "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                    " AND wait_event_type = 'Lock'"
                ).fetchone()
                if found is not None:
                    return int(found["pid"])
                await asyncio.sleep(0.01)

    async def kill_waiter(self) -> None:
        pid = await self.waiter()
        with admin(self.settings) as conn:
            conn.execute("SELECT pg_terminate_backend(%s)", [pid])

    def free(self) -> None:
        self.conn.rollback()
        self.conn.close()


async def test_a_claim_whose_handler_was_cancelled_is_given_back_uncalled(
    ledger: Ledger, settings: Settings
) -> None:
    target = Target()
    blocker = Blocker(settings)
    blocker.insert()
    asking = asyncio.create_task(ledger.run(effect(target.send, "hello")))
    await blocker.waiter()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    blocker.free()
    assert await ledger.run(effect(target.send, "hello")) == 1
    found = row(settings)
    assert found is not None
    # The claim of the cancelled handler was made, released, and made again.
    assert (found["status"], found["fence"]) == ("done", 2)


async def test_a_claim_that_postgres_did_not_answer_calls_nothing_and_parks_nothing(
    ledger: Ledger, settings: Settings
) -> None:
    target = Target()
    blocker = Blocker(settings)
    blocker.insert()
    asking = asyncio.create_task(ledger.run(effect(target.send, "hello")))
    await blocker.kill_waiter()
    with pytest.raises(BadWorld, match="does not serve"):
        await asking
    blocker.free()
    assert target.calls == 0
    assert await ledger.run(effect(target.send, "hello")) == 1


async def test_a_claim_whose_answer_was_lost_is_known_not_to_have_been_called(
    ledger: Ledger, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target()
    work = ledger._claims._work

    async def lose_the_answer(asks: Any) -> Any:
        monkeypatch.setattr(ledger._claims, "_work", work)
        await work(asks)
        raise BadWorld("The connection broke after the commit.")

    monkeypatch.setattr(ledger._claims, "_work", lose_the_answer)
    with pytest.raises(BadWorld):
        await ledger.run(effect(target.send, "hello"))
    found = row(settings)
    assert found is not None
    assert found["status"] == "claimed"
    assert await ledger.run(effect(target.send, "hello")) == 1


async def test_a_result_that_postgres_did_not_take_is_kept_and_the_effect_not_repeated(
    ledger: Ledger, settings: Settings
) -> None:
    blocker = Blocker(settings)
    calls = []

    async def send(*, idempotency_key: str) -> str:
        calls.append(idempotency_key)
        blocker.lock()
        return "sent"

    running = asyncio.create_task(ledger.run(effect(send)))
    await blocker.kill_waiter()
    with pytest.raises(BadWorld):
        await running
    blocker.free()
    found = row(settings)
    assert found is not None
    assert await ledger.run(effect(send)) == "sent"
    found = row(settings)
    assert found is not None
    assert (found["status"], found["result"]) == ("done", "sent")
    assert len(calls) == 1


async def test_what_postgres_did_not_take_is_told_again_without_being_asked(
    ledger: Ledger, settings: Settings
) -> None:
    blocker = Blocker(settings)

    async def send(*, idempotency_key: str) -> str:
        blocker.lock()
        return "sent"

    running = asyncio.create_task(ledger.run(effect(send)))
    await blocker.kill_waiter()
    with pytest.raises(BadWorld):
        await running
    blocker.free()
    while (found := row(settings)) is None or found["status"] != "done":
        await asyncio.sleep(0.05)
    assert found["result"] == "sent"


class Proxy:
    """Stands before Postgres; once frozen it passes nothing on and closes nothing, as a stopped
    server does whose kernel still acknowledges."""

    def __init__(self, settings: Settings) -> None:
        with psycopg.connect(settings.database_url) as conn:
            self.host, self.port = conn.info.hostaddr or conn.info.host, conn.info.port
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.pumps: set[asyncio.Task[None]] = set()

    async def open(self, settings: Settings) -> Settings:
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        url = make_conninfo(settings.database_url, host="127.0.0.1", hostaddr=None, port=port)
        return settings.model_copy(update={"database_url": url, "database_timeout_s": 0.5})

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.host.startswith("/"):
            path = f"{self.host}/.s.PGSQL.{self.port}"
            there, back = await asyncio.open_unix_connection(path)
        else:
            there, back = await asyncio.open_connection(self.host, self.port)
        for a, b in ((reader, back), (there, writer)):
            pump = asyncio.create_task(self.pump(a, b))
            self.pumps.add(pump)
            pump.add_done_callback(self.pumps.discard)

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self.thawed.wait()
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def close(self) -> None:
        for pump in self.pumps:
            pump.cancel()
        if self.pumps:
            await asyncio.wait(self.pumps)
        self.server.close()


async def test_a_postgres_that_has_stopped_is_given_up_and_found_again(settings: Settings) -> None:
    """Public case 19 (psycopg#701 #1371): each call has a hard deadline, of our own clock."""
    proxy = Proxy(settings)
    behind = await proxy.open(settings)
    target = Target()
    async with open_pool(behind) as pool:
        ledger = Ledger(pool, behind)
        await ledger.open()
        other = f"{'cd' * 16}:act:0:other"
        assert await ledger.run(replace(effect(target.send, "hello"), key=other)) == 1
        proxy.thawed.clear()
        with pytest.raises(BadWorld, match="does not serve"):
            await ledger.run(effect(target.send, "hello"))
        assert target.calls == 1
        proxy.thawed.set()
        while True:
            try:
                assert await ledger.run(effect(target.send, "hello")) == 2
                break
            except BadWorld:
                await asyncio.sleep(0.05)  # the pool is still replacing its connections
        await ledger.close()
    await proxy.close()
