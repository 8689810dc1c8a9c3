"""`reconcile=` with several workers, late words and lost ones: one asks, and one calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streams.config import Settings
from streams.context import DidNotHappen, Happened, Unknown
from streams.errors import BadWorld, EffectParked
from tests.support.ledger import (
    KEY,
    PostOffice,
    Worker,
    actions,
    die_in_call,
    effect,
    expire,
    row,
    workers,
)

pytestmark = pytest.mark.services


@pytest.fixture
async def worker(settings: Settings) -> AsyncIterator[Worker]:
    async with workers(settings) as start:
        yield start


async def test_of_two_workers_that_find_a_dead_attempt_one_asks_and_calls(
    worker: Worker, settings: Settings
) -> None:
    """Public case 18 (dbos-transact-py#742): the claim is conditional, the second is refused."""
    post = PostOffice()
    await die_in_call(await worker(slot=0), effect(post))
    expire(settings)
    one, two = await worker(slot=1), await worker(slot=2)
    post.question_gate.clear()
    # Both have read the row as dead before either takes it.
    both = asyncio.Barrier(2)
    for ledger in (one, two):
        ledger._rows._read = _meet(ledger._rows._read, both)  # type: ignore[method-assign]
    runs = [asyncio.create_task(each.run(effect(post))) for each in (one, two)]
    await post.asked.wait()
    post.question_gate.set()
    assert await asyncio.gather(*runs) == [1, 1]
    assert (len(post.log), post.questions) == (1, 1)
    assert row(settings)["fence"] == 2


def _meet(read: Any, both: asyncio.Barrier) -> Any:
    first = True

    async def met(conn: Any, keys: Any) -> Any:
        nonlocal first
        found = await read(conn, keys)
        if first:
            first = False
            await both.wait()
        return found

    return met


async def test_a_worker_that_asks_for_longer_than_its_lease_keeps_its_claim(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    await die_in_call(await worker(slot=1), effect(post))
    expire(settings)
    post.question_gate.clear()
    asking = asyncio.create_task((await worker(slot=0, effect_lease_s=0.6)).run(effect(post)))
    await post.asked.wait()
    first = row(settings)["leased_until"]
    while (row(settings)["leased_until"] - first).total_seconds() < 1.2:
        assert not row(settings)["over"]
        await asyncio.sleep(0.05)
    post.question_gate.set()
    assert await asking == 1


async def test_an_asker_that_was_fenced_meanwhile_does_not_call(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    await die_in_call(await worker(slot=2), effect(post))
    expire(settings)
    slow_post = PostOffice()
    slow_post.log = post.log
    slow_post.question_gate.clear()
    slow = asyncio.create_task((await worker(slot=0)).run(effect(slow_post)))
    await slow_post.asked.wait()
    slow_post.answers = [DidNotHappen()]
    # Stopped past its lease, as by SIGSTOP: another asks, and sends the mail.
    expire(settings)
    assert await (await worker(slot=1)).run(effect(post)) == 1
    slow_post.question_gate.set()
    assert await slow == 1
    assert post.log == [(KEY, "hello")]
    assert actions(settings) == []


@pytest.mark.parametrize("ask", [True, False])
async def test_a_worker_that_was_stopped_between_claim_and_call_asks_whether_it_still_holds_it(
    worker: Worker, settings: Settings, monkeypatch: pytest.MonkeyPatch, ask: bool
) -> None:
    post = PostOffice()
    slow = await worker(slot=0, effect_lease_s=0.2)
    work = slow._claims._work

    async def answer_late(asks: Any) -> Any:
        monkeypatch.setattr(slow._claims, "_work", work)
        claims = await work(asks)
        # Its lease runs out while the answer is on its way, and another worker finds it dead.
        while not row(settings)["over"]:
            await asyncio.sleep(0.02)
        other = await worker(slot=1)
        if ask:
            assert await other.run(effect(post)) == 1
        else:
            with pytest.raises(EffectParked):
                await other.run(effect(post, ask=False))
        return claims

    monkeypatch.setattr(slow._claims, "_work", answer_late)
    # Either the other has sent it; or it is in doubt there, where the slow one knows better.
    assert await slow.run(effect(post, ask=ask)) == 1
    assert post.log == [(KEY, "hello")]
    assert row(settings)["status"] == "done"


async def test_a_question_whose_claim_was_lost_does_not_release_what_may_have_happened(
    worker: Worker, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = PostOffice()
    await die_in_call(await worker(), effect(post))
    post.log.append((KEY, "hello"))
    ledger = await worker()
    work = ledger._claims._work

    async def lose_the_answer(asks: Any) -> Any:
        monkeypatch.setattr(ledger._claims, "_work", work)
        await work(asks)
        raise BadWorld("The connection broke after the commit.")

    monkeypatch.setattr(ledger._claims, "_work", lose_the_answer)
    with pytest.raises(BadWorld):
        await ledger.run(effect(post))
    assert await ledger.run(effect(post)) == 1
    assert (len(post.log), post.questions) == (1, 1)


async def test_two_calls_that_were_both_done_are_recorded_and_keep_the_first_result(
    worker: Worker, settings: Settings
) -> None:
    """A target that says "no" while a call is under way: nothing here can prevent the second."""
    post = PostOffice()
    post.call_gate.clear()
    slow = asyncio.create_task((await worker(slot=0)).run(effect(post)))
    await post.called.wait()
    expire(settings)
    quick = PostOffice()
    quick.log = post.log
    assert await (await worker(slot=1)).run(effect(quick)) == 1
    post.call_gate.set()
    assert await slow == 1
    assert len(post.log) == 2
    found = row(settings)
    assert (found["result"], found["note"]) == (1, "happened twice: by attempts 2 and 1")
    assert actions(settings) == ["happened_twice"]


async def test_a_late_word_of_the_call_that_the_target_told_of_is_no_second_one(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    post.call_gate.clear()
    slow = asyncio.create_task((await worker(slot=0)).run(effect(post)))
    await post.called.wait()
    expire(settings)
    knows = PostOffice()
    knows.answers = [Happened(1)]
    assert await (await worker(slot=1)).run(effect(knows)) == 1
    post.call_gate.set()
    assert await slow == 1
    assert actions(settings) == ["settled_late"]
    assert row(settings)["note"] == "confirmed late, by attempt 1"


async def test_a_doubt_that_comes_after_a_late_settlement_gets_its_result(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    post.call_gate.clear()
    slow = asyncio.create_task((await worker(slot=0)).run(effect(post)))
    await post.called.wait()
    expire(settings)
    asker = PostOffice()
    asker.answers = [Unknown("no log")]
    asker.question_gate.clear()
    asking = asyncio.create_task((await worker(slot=1)).run(effect(asker)))
    await asker.asked.wait()
    post.call_gate.set()
    assert await slow == 1
    asker.question_gate.set()
    assert await asking == 1
    assert len(post.log) == 1


@pytest.mark.parametrize("known", [True, False])
async def test_a_settlement_whose_answer_was_lost_is_told_again_and_is_no_second_one(
    worker: Worker, settings: Settings, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    post = PostOffice()
    if known:
        await die_in_call(await worker(), effect(post))
        post.log.append((KEY, "hello"))
    ledger = await worker()
    work = ledger._debts._batches._work

    async def lose_the_answer(endings: Any) -> Any:
        monkeypatch.setattr(ledger._debts._batches, "_work", work)
        await ledger._rows.end(endings)
        raise BadWorld("The connection broke after the commit.")

    monkeypatch.setattr(ledger._debts._batches, "_work", lose_the_answer)
    with pytest.raises(BadWorld):
        await ledger.run(effect(post))
    assert row(settings)["status"] == "done"
    assert await ledger.run(effect(post)) == 1
    assert len(post.log) == 1
    assert actions(settings) == []
    assert row(settings)["note"] is None
