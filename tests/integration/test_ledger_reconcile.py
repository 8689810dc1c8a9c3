"""`reconcile=`: the target is asked what an attempt of unknown outcome did, and believed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streams.config import Settings
from streams.context import DidNotHappen, EffectCall, Unknown
from streams.errors import BadSetup, BadWorld, EffectNotDone, EffectParked
from tests.support.ledger import (
    KEY,
    PostOffice,
    Worker,
    die_in_call,
    effect,
    expire,
    row,
    sql,
    workers,
)

pytestmark = pytest.mark.services


@pytest.fixture
async def worker(settings: Settings) -> AsyncIterator[Worker]:
    async with workers(settings) as start:
        yield start


async def test_what_a_dead_attempt_did_is_settled_with_what_the_target_says(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    await die_in_call(await worker(), effect(post))
    post.log.append((KEY, "hello"))
    assert await (await worker()).run(effect(post)) == 1
    assert (len(post.log), post.questions) == (1, 1)
    found = row(settings)
    assert (found["status"], found["result"], found["calls"], found["fence"]) == ("done", 1, 1, 2)
    assert found["settled_fence"] is None
    assert await (await worker(slot=1)).run(effect(post)) == 1
    assert post.questions == 1


async def test_what_a_dead_attempt_did_not_do_is_done(worker: Worker, settings: Settings) -> None:
    post = PostOffice()
    await die_in_call(await worker(), effect(post))
    assert await (await worker()).run(effect(post)) == 1
    assert (post.log, post.questions) == ([(KEY, "hello")], 1)
    found = row(settings)
    assert (found["status"], found["calls"], found["fence"], found["note"]) == ("done", 2, 2, None)
    assert (found["settled_fence"], found["past_unknown"]) == (2, False)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Unknown("the log was rotated"), "the target cannot tell: the log was rotated"),
        (ValueError("no such page"), "the reconcile function raised ValueError: no such page"),
        (True, "the reconcile function returned bool"),
        (Unknown("half a pair: \ud800, and a NUL: \0"), "half a pair: [?], and a NUL: "),
    ],
)
async def test_a_target_that_cannot_tell_leaves_the_effect_in_doubt(
    worker: Worker, settings: Settings, answer: Any, said: str
) -> None:
    post = PostOffice()
    post.answers = [answer]
    await die_in_call(await worker(slot=2), effect(post))
    expire(settings)
    before = row(settings)
    with pytest.raises(EffectParked, match=said) as e:
        await (await worker()).run(effect(post))
    assert e.value.kind == "in_doubt"
    found = row(settings)
    assert found["status"] == "in_doubt"
    # The call is still described as it was made: when, and by whom.
    assert re.search(said, found["note"])
    assert found["note"].endswith("attempt 1 of slot 2 ended without an answer")
    assert (found["claimed_at"], found["calls"]) == (before["claimed_at"], 1)
    assert post.log == []
    # A redrive asks again: by now the target may know.
    assert await (await worker()).run(effect(post)) == 1
    assert len(post.log) == 1


async def test_a_target_that_is_away_is_asked_again_later_and_nothing_is_called(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    post.answers = [BadWorld("no route"), BadWorld("no route")]
    await die_in_call(await worker(), effect(post))
    post.log.append((KEY, "hello"))
    again = await worker()
    for _ in range(2):
        with pytest.raises(BadWorld, match="no route"):
            await again.run(effect(post))
        found = row(settings)
        assert (found["status"], found["over"]) == ("claimed", True)
    assert await again.run(effect(post)) == 1
    assert (len(post.log), post.questions) == (1, 3)


async def test_a_call_whose_answer_was_lost_is_settled_at_once_by_what_the_target_knows(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    post.lost_answers = [TimeoutError()]
    assert await (await worker()).run(effect(post)) == 1
    assert (len(post.log), post.questions) == (1, 1)
    found = row(settings)
    assert (found["status"], found["result"], found["settled_fence"]) == ("done", 1, 1)


@pytest.mark.parametrize("error", [BadWorld("gone"), TimeoutError(), ValueError("a bug")])
async def test_a_call_that_the_target_does_not_know_of_is_left_to_the_retry_policy(
    worker: Worker, settings: Settings, error: Exception
) -> None:
    post = PostOffice()
    post.call_errors = [error]
    ledger = await worker()
    with pytest.raises(type(error)) as e:
        await ledger.run(effect(post))
    assert e.value is error
    assert row(settings)["status"] == "released"
    assert await ledger.run(effect(post)) == 1
    assert (len(post.log), post.questions) == (1, 1)


async def test_a_lost_answer_and_a_target_that_cannot_tell_park_the_job(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    post.lost_answers, post.answers = [TimeoutError()], [Unknown("no log")]
    said = "raised TimeoutError, and the target cannot tell: no log"
    with pytest.raises(EffectParked, match=said):
        await (await worker()).run(effect(post))
    assert row(settings)["note"] == "the target cannot tell: no log; before that: TimeoutError"
    assert len(post.log) == 1


async def test_a_call_that_certainly_did_nothing_asks_nobody(worker: Worker) -> None:
    post = PostOffice()
    post.call_errors = [EffectNotDone("429")]
    ledger = await worker()
    with pytest.raises(EffectNotDone):
        await ledger.run(effect(post))
    assert await ledger.run(effect(post)) == 1
    assert post.questions == 0


async def test_not_done_after_the_target_said_no_releases_the_effect(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    await die_in_call(await worker(), effect(post))
    post.call_errors = [EffectNotDone("429")]
    with pytest.raises(EffectNotDone):
        await (await worker()).run(effect(post))
    assert row(settings)["status"] == "released"


async def test_an_idempotent_effect_is_repeated_and_asks_nobody(worker: Worker) -> None:
    post = PostOffice()
    post.call_errors = [TimeoutError()]
    ledger = await worker()
    with pytest.raises(TimeoutError):
        await ledger.run(effect(post, idempotent=True))
    await die_in_call(await worker(), effect(post, idempotent=True))
    assert await (await worker()).run(effect(post, idempotent=True)) == 1
    assert post.questions == 0


async def test_a_later_release_that_calls_it_idempotent_still_asks_about_the_earlier_call(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    await die_in_call(await worker(), effect(post, ask=False))
    post.log.append((KEY, "hello"))
    post.answers = [BadWorld("no route")]
    for _ in range(2):
        # The first question has no answer: that must not make the call repeatable.
        try:
            assert await (await worker()).run(effect(post, idempotent=True)) == 1
        except BadWorld:
            assert not row(settings)["idempotent"]
    assert (len(post.log), post.questions) == (1, 2)


@pytest.mark.parametrize("calling", [True, False])
async def test_a_cancelled_call_or_question_is_asked_about_by_the_next_run(
    worker: Worker, settings: Settings, calling: bool
) -> None:
    post = PostOffice()
    ledger = await worker()
    gate, seen = post.question_gate, post.asked
    if calling:
        gate, seen = post.call_gate, post.called
    else:
        await die_in_call(await worker(), effect(post))
        post.log.append((KEY, "hello"))
    gate.clear()
    running = asyncio.create_task(ledger.run(effect(post)))
    await seen.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate.set()
    assert await ledger.run(effect(post)) == 1
    assert len(post.log) == 1
    assert post.questions == (1 if calling else 2)


async def test_a_reconcile_function_that_cannot_be_called_is_refused_before_the_claim(
    worker: Worker, settings: Settings
) -> None:
    async def look(*, idempotency_key: str) -> DidNotHappen:
        return DidNotHappen()

    post = PostOffice()
    call = EffectCall(KEY, "mail", "", "", "", post.send, ("hello",), {}, False, look)
    with pytest.raises(BadSetup, match=r"cannot call .*look.*: too many positional arguments"):
        await (await worker()).run(call)
    assert sql(settings, "SELECT key FROM effects") == []
