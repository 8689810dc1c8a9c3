"""The ledger on a real Postgres: each thing that a claim may find, and two workers racing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row
from pydantic import BaseModel

from streams.config import Settings
from streams.context import Context, EffectCall
from streams.errors import EffectParked
from streams.ledger.effects import Ledger, ask_of
from streams.ledger.queries import list_effects
from streams.ledger.rows import Granted
from streams.ledger.rules import Ending, Status
from streams.postgres import connect, open_pool

pytestmark = pytest.mark.services

KEY = f"{'ab' * 16}:act:0:reply"


class Ticket(BaseModel):
    number: int
    lines: list[str] = []


class Desk:
    """A target with a record of its own; a closed gate keeps a call in the middle."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()

    async def file(self, subject: str, *, idempotency_key: str) -> Ticket:
        self.calls.append(idempotency_key)
        self.called.set()
        await self.gate.wait()
        return Ticket(number=len(self.calls), lines=[subject, "\0 kept as it is"])


def effect(
    fn: Callable[..., Awaitable[Any]], *args: Any, idempotent: bool = False, key: str = KEY
) -> EffectCall:
    trace_id, stage, _, name = key.split(":")
    return EffectCall(key, name, trace_id, "mail", stage, fn, args, {}, idempotent)


def sql(settings: Settings, query: str, *args: object) -> list[DictRow]:
    with psycopg.connect(settings.database_url, autocommit=True, row_factory=dict_row) as conn:
        cursor = conn.execute(query.encode(), args)
        return cursor.fetchall() if cursor.description else []


def row(settings: Settings) -> DictRow:
    return sql(settings, "SELECT * FROM effects WHERE key = %s", KEY)[0]


Worker = Callable[..., Awaitable[Ledger]]


@pytest.fixture
async def worker(settings: Settings) -> AsyncIterator[Worker]:
    """Starts the ledger of another worker process: `await worker(slot=1)`."""
    opened: list[tuple[Ledger, Any]] = []

    async def start(slot: int = 0, **changes: Any) -> Ledger:
        own = settings.model_copy(update={"slot": slot, **changes})
        pool = open_pool(own)
        await pool.open()
        ledger = Ledger(pool, own)
        await ledger.open()
        opened.append((ledger, pool))
        return ledger

    yield start
    for ledger, pool in opened:
        await ledger.close()
        await pool.close()


async def die_in_call(ledger: Ledger, call: EffectCall) -> None:
    """Leave a claim as a killed process does: made, and never spoken of again."""
    [claim] = await ledger._rows.claim([ask_of(call)])
    assert isinstance(claim, Granted)


def expire(settings: Settings) -> None:
    sql(settings, "UPDATE effects SET leased_until = now() - interval '1 s'")


async def test_a_redelivery_gets_the_stored_result_and_nothing_is_called(
    worker: Worker, settings: Settings
) -> None:
    desk = Desk()
    first = await (await worker()).run(effect(desk.file, "hello"))
    again = await (await worker(slot=1)).run(effect(desk.file, "hello"))
    assert first == again == Ticket(number=1, lines=["hello", "\0 kept as it is"])
    assert desk.calls == [KEY]
    found = row(settings)
    assert (found["status"], found["calls"], found["fence"]) == ("done", 1, 1)
    assert found["settled_at"] is not None


async def test_a_handler_reaches_the_ledger_by_its_context(worker: Worker) -> None:
    desk = Desk()
    ledger = await worker()
    for attempt in (1, 2):
        job = Context("ab" * 16, "mail", "act", 3, attempt, ledger)
        assert (await job.effect("reply", desk.file, "hello")).number == 1
    assert desk.calls == [KEY]


async def test_other_arguments_park_the_job_and_the_stored_result_stays(
    worker: Worker, settings: Settings
) -> None:
    desk = Desk()
    ledger = await worker()
    first = await ledger.run(effect(desk.file, "hello"))
    with pytest.raises(EffectParked, match="asked for again with other arguments") as e:
        await ledger.run(effect(desk.file, "good-bye"))
    assert (e.value.kind, e.value.key) == ("fingerprint_mismatch", KEY)
    assert row(settings)["note"] == "asked for again with other arguments"
    assert await ledger.run(effect(desk.file, "hello")) == first
    assert len(desk.calls) == 1


async def test_other_arguments_are_refused_while_the_first_call_is_running(worker: Worker) -> None:
    desk = Desk()
    desk.gate.clear()
    running = asyncio.create_task((await worker()).run(effect(desk.file, "hello")))
    await desk.called.wait()
    with pytest.raises(EffectParked, match="other arguments") as e:
        await (await worker(slot=1)).run(effect(desk.file, "good-bye"))
    assert e.value.kind == "fingerprint_mismatch"
    desk.gate.set()
    assert (await running).number == 1


async def test_two_tasks_of_one_worker_share_one_call(worker: Worker) -> None:
    desk = Desk()
    ledger = await worker()
    results = await asyncio.gather(*(ledger.run(effect(desk.file, "hello")) for _ in range(5)))
    assert results == [results[0]] * 5
    assert len(desk.calls) == 1


async def test_a_live_attempt_of_another_slot_is_waited_for(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    desk.gate.clear()
    one, two = await worker(slot=0), await worker(slot=1)
    running = asyncio.create_task(one.run(effect(desk.file, "hello", idempotent=True)))
    await desk.called.wait()
    asked = _count(monkeypatch, two)
    waiting = asyncio.create_task(two.run(effect(desk.file, "hello", idempotent=True)))
    while len(asked) < 3:
        await asyncio.sleep(0.01)
    assert len(desk.calls) == 1
    desk.gate.set()
    assert await running == await waiting
    assert len(desk.calls) == 1


def _count(monkeypatch: pytest.MonkeyPatch, ledger: Ledger) -> list[int]:
    """Sizes of the claim batches that a ledger sends from now on."""
    sizes: list[int] = []
    claims = ledger._claims
    work = claims._work

    async def counted(asks: Any) -> Any:
        reply = await work(asks)
        sizes.append(len(asks))
        return reply

    monkeypatch.setattr(claims, "_work", counted)
    return sizes


async def test_an_idempotent_effect_of_a_dead_worker_is_repeated_once_its_lease_is_over(
    worker: Worker, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    call = effect(desk.file, "hello", idempotent=True)
    await die_in_call(await worker(slot=0), call)
    two = await worker(slot=1)
    asked = _count(monkeypatch, two)
    waiting = asyncio.create_task(two.run(call))
    while len(asked) < 2:
        await asyncio.sleep(0.01)
    assert desk.calls == []
    expire(settings)
    assert (await waiting).number == 1
    found = row(settings)
    assert (found["status"], found["fence"], found["calls"], found["slot"]) == ("done", 2, 2, 1)


async def test_an_effect_of_a_dead_worker_is_parked_where_it_cannot_be_repeated(
    worker: Worker, settings: Settings
) -> None:
    desk = Desk()
    call = effect(desk.file, "hello")
    await die_in_call(await worker(slot=0), call)
    expire(settings)
    two = await worker(slot=1)
    for _ in range(2):
        with pytest.raises(EffectParked, match="may or may not have happened: attempt 1 of") as e:
            await two.run(call)
        assert e.value.kind == "in_doubt"
    assert row(settings)["status"] == "in_doubt"
    assert desk.calls == []


async def test_a_repeat_needs_both_releases_of_the_stage_to_say_idempotent(
    worker: Worker, settings: Settings
) -> None:
    desk = Desk()
    await die_in_call(await worker(slot=0), effect(desk.file, "hello", idempotent=False))
    expire(settings)
    with pytest.raises(EffectParked, match="may or may not"):
        await (await worker(slot=1)).run(effect(desk.file, "hello", idempotent=True))
    assert desk.calls == []


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_restarted_worker_does_not_wait_for_the_lease_of_its_predecessor(
    worker: Worker, settings: Settings, idempotent: bool
) -> None:
    desk = Desk()
    call = effect(desk.file, "hello", idempotent=idempotent)
    await die_in_call(await worker(slot=3, effect_lease_s=86_400.0), call)
    again = await worker(slot=3)
    if idempotent:
        assert (await again.run(call)).number == 1
    else:
        with pytest.raises(EffectParked):
            await again.run(call)
    assert len(desk.calls) == idempotent
    # An effect in doubt keeps the name of the attempt that left it so.
    assert (row(settings)["incarnation"] == again.incarnation) is idempotent


async def test_a_late_settlement_answers_an_effect_in_doubt(
    worker: Worker, settings: Settings
) -> None:
    desk = Desk()
    desk.gate.clear()
    slow = asyncio.create_task((await worker(slot=0)).run(effect(desk.file, "hello")))
    await desk.called.wait()
    expire(settings)
    two = await worker(slot=1)
    with pytest.raises(EffectParked):
        await two.run(effect(desk.file, "hello"))
    desk.gate.set()
    assert await slow == await two.run(effect(desk.file, "hello"))
    found = row(settings)
    assert (found["status"], found["note"]) == ("done", "settled late, by attempt 1 of 1")
    assert len(desk.calls) == 1


async def test_of_two_settlements_the_first_is_everybodys_answer(
    worker: Worker, settings: Settings
) -> None:
    desk = Desk()
    desk.gate.clear()
    slow = asyncio.create_task(
        (await worker(slot=0)).run(effect(desk.file, "hello", idempotent=True))
    )
    await desk.called.wait()
    expire(settings)

    quick = Desk()
    quick.calls = ["…"] * 41
    taken_over = await (await worker(slot=1)).run(effect(quick.file, "hello", idempotent=True))
    desk.gate.set()
    assert taken_over.number == 42
    assert await slow == taken_over
    found = row(settings)
    assert (found["result"]["number"], found["fence"], found["note"]) == (42, 2, None)


async def test_a_fenced_attempt_cannot_release_the_claim_of_its_successor(
    worker: Worker, settings: Settings
) -> None:
    async def fail(*, idempotency_key: str) -> None:
        called.set()
        await gate.wait()
        raise ValueError

    async def hang(*, idempotency_key: str) -> None:
        taken.set()
        await end.wait()

    gate, called, taken, end = (asyncio.Event() for _ in range(4))
    fenced = asyncio.create_task((await worker(slot=0)).run(effect(fail, idempotent=True)))
    await called.wait()
    expire(settings)
    holder = asyncio.create_task((await worker(slot=1)).run(effect(hang, idempotent=True)))
    await taken.wait()
    before = row(settings)
    gate.set()
    with pytest.raises(ValueError):  # noqa: PT011
        await fenced
    assert row(settings) == before
    end.set()
    await holder
    assert row(settings)["status"] == "done"


async def test_only_the_last_attempt_of_the_same_process_may_release(
    worker: Worker, settings: Settings
) -> None:
    one, two = await worker(slot=0), await worker(slot=0)
    call = effect(Desk().file, "hello", idempotent=True)
    await die_in_call(one, call)
    await die_in_call(two, call)
    before = row(settings)
    assert before["fence"] == 2
    ask = ask_of(call)
    stale = Ending(ask.key, ask.fingerprint, Status.RELEASED, fence=1)
    strange = replace(stale, fence=2)
    await two._rows.end([stale])
    await one._rows.end([strange])
    assert row(settings) == before
    await two._rows.end([strange])
    assert row(settings)["status"] == "released"


async def test_an_effect_that_is_settled_while_another_decides_to_take_it_over_stays_done(
    worker: Worker, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public case 18 (dbos-transact-py#742): a take-over that was decided too late is refused."""
    desk = Desk()
    desk.gate.clear()
    call = effect(desk.file, "hello", idempotent=True)
    slow = asyncio.create_task((await worker(slot=0)).run(call))
    await desk.called.wait()
    expire(settings)
    two = await worker(slot=1)
    read = two._rows._read

    async def read_and_be_late(conn: Any, keys: Any) -> Any:
        found = await read(conn, keys)
        desk.gate.set()
        await asyncio.wait([slow])
        return found

    monkeypatch.setattr(two._rows, "_read", read_and_be_late)
    assert await two.run(call) == await slow
    assert len(desk.calls) == 1
    assert row(settings)["fence"] == 1


async def test_the_lease_of_a_long_call_is_renewed(worker: Worker, settings: Settings) -> None:
    desk = Desk()
    desk.gate.clear()
    one = await worker(slot=0, effect_lease_s=0.6)
    running = asyncio.create_task(one.run(effect(desk.file, "hello")))
    await desk.called.wait()
    first = row(settings)["leased_until"]
    # Renewed past its first end, twice over: by Postgres' clock it was never dead.
    while (row(settings)["leased_until"] - first).total_seconds() < 1.2:
        assert sql(settings, "SELECT leased_until > now() AS alive FROM effects") == [
            {"alive": True}
        ]
        await asyncio.sleep(0.05)
    desk.gate.set()
    assert (await running).number == 1
    assert row(settings)["note"] is None


async def test_concurrent_claims_and_settlements_share_round_trips(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    ledger = await worker()
    sizes = _count(monkeypatch, ledger)
    keys = [f"{n:032x}:act:0:reply" for n in range(1, 301)]
    await asyncio.gather(*(ledger.run(effect(desk.file, "hello", key=k)) for k in keys))
    assert sizes == [300]
    assert sorted(desk.calls) == sorted(keys)


async def test_two_workers_that_meet_on_the_same_keys_call_each_once(worker: Worker) -> None:
    desk = Desk()
    one, two = await worker(slot=0), await worker(slot=1)
    keys = [f"{n:032x}:act:0:reply" for n in range(1, 101)]
    results = await asyncio.gather(
        *(one.run(effect(desk.file, "hello", key=k)) for k in keys),
        *(two.run(effect(desk.file, "hello", key=k)) for k in reversed(keys)),
    )
    assert sorted(desk.calls) == sorted(keys)
    assert results[:100] == results[:99:-1]


async def test_effects_in_doubt_are_listed_and_so_are_calls_that_nobody_came_back_to(
    worker: Worker, settings: Settings
) -> None:
    desk = Desk()
    ledger = await worker()
    keys = [f"{n:032x}:act:0:reply" for n in range(1, 5)]
    await ledger.run(effect(desk.file, "done", key=keys[0]))
    await die_in_call(ledger, effect(desk.file, "repeatable", key=keys[1], idempotent=True))
    await die_in_call(ledger, effect(desk.file, "not repeatable", key=keys[2]))
    expire(settings)
    await die_in_call(ledger, effect(desk.file, "running", key=keys[3]))
    with connect(settings) as conn:
        assert [e.key for e in list_effects(conn, in_doubt=True)] == [keys[2]]
        assert {e.key for e in list_effects(conn)} == set(keys)
        assert len(list_effects(conn, limit=2)) == 2
        [done] = [e for e in list_effects(conn) if e.status == "done"]
    assert done.result == {"number": 1, "lines": ["done", "\0 kept as it is"]}
