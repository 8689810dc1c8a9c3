"""`resolve`: a person says what happened to an effect in doubt; late words are not lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from streams.config import Settings
from streams.context import DidNotHappen, Happened
from streams.errors import BadRecord, BadSetup, EffectNotDone, EffectParked
from streams.ledger.doubt import Found, effect_actions, happened_twice, resolve
from streams.ledger.queries import list_effects
from streams.postgres import connect
from tests.support.ledger import (
    JOB,
    KEY,
    PostOffice,
    Worker,
    actions,
    die_in_call,
    doubt,
    effect,
    expire,
    row,
    slow_doubt,
    sql,
    workers,
)

pytestmark = pytest.mark.services

Answer = Happened[str] | DidNotHappen


@pytest.fixture
async def worker(settings: Settings) -> AsyncIterator[Worker]:
    async with workers(settings) as start:
        yield start


def say(settings: Settings, answer: Answer, reason: str = "seen in its log") -> Found:
    with connect(settings) as conn:
        return resolve(conn, KEY, answer, actor="ada", reason=reason)


async def test_what_happened_is_never_called_again_and_has_the_result_that_was_said(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    await doubt(worker, settings, post)
    before = say(settings, Happened("41"))
    assert (before.status, before.trace_id, before.fence) == ("in_doubt", JOB, 1)
    assert await (await worker()).run(effect(post, ask=False)) == 41
    assert post.log == []
    found = row(settings)
    assert (found["status"], found["fence"], found["settled_fence"]) == ("done", 2, None)
    assert found["note"] == "resolved by ada: happened (seen in its log)"
    with connect(settings) as conn:
        [action] = effect_actions(conn, KEY)
        assert effect_actions(conn, "another") == []
        assert list_effects(conn, in_doubt=True) == []
    assert (action.action, action.actor, action.reason) == ("happened", "ada", "seen in its log")
    assert (action.was, action.fence, action.result) == ("in_doubt", 1, 41)
    assert action.was_note == "attempt 1 of slot 1 ended without an answer"


async def test_what_did_not_happen_is_called_once_more(worker: Worker, settings: Settings) -> None:
    post = PostOffice()
    await doubt(worker, settings, post)
    say(settings, DidNotHappen(), reason="not in its log, byte \udcff")
    assert row(settings)["status"] == "released"
    assert await (await worker()).run(effect(post, ask=False)) == 1
    assert post.log == [(KEY, "hello")]
    assert actions(settings) == ["did_not_happen"]


async def test_a_claim_of_a_dead_attempt_that_nobody_came_back_to_can_be_resolved(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    await die_in_call(await worker(), effect(post))
    expire(settings)
    say(settings, Happened("1"))
    assert await (await worker()).run(effect(post)) == 1
    assert (post.log, post.questions) == ([], 0)


@pytest.mark.parametrize("answer", [Happened("7"), DidNotHappen()])
async def test_what_is_not_in_doubt_is_refused_and_stays_as_it_is(
    worker: Worker, settings: Settings, answer: Answer
) -> None:
    post = PostOffice()
    with pytest.raises(BadRecord, match="has no effect"):
        say(settings, answer)
    ledger = await worker(slot=3)
    post.call_errors = [EffectNotDone("429")]
    with pytest.raises(EffectNotDone):
        await ledger.run(effect(post))
    _refused(settings, answer, "is known not to have happened")
    await ledger.run(effect(post))
    _refused(settings, answer, "is done and its result stored")
    sql(settings, "DELETE FROM effects")
    await die_in_call(ledger, effect(post))
    _refused(settings, answer, "is being called by slot 3")
    sql(settings, "DELETE FROM effects")
    await die_in_call(ledger, effect(post, idempotent=True))
    expire(settings)
    _refused(settings, answer, "is repeated under its key")
    assert actions(settings) == []


def _refused(settings: Settings, answer: Answer, what: str) -> None:
    before = row(settings)
    with pytest.raises(BadRecord, match=f"is not in doubt: it {what}"):
        say(settings, answer)
    assert row(settings) == before


@pytest.mark.parametrize("result", ["T-1", "{'number': 1}", "NaN", ""])
async def test_a_result_that_is_no_json_is_refused(
    worker: Worker, settings: Settings, result: str
) -> None:
    await doubt(worker, settings, PostOffice())
    with pytest.raises(BadSetup, match="The result is not JSON"):
        say(settings, Happened(result))
    with pytest.raises(BadSetup, match="needs a reason"):
        say(settings, DidNotHappen(), reason=" ")
    assert row(settings)["status"] == "in_doubt"


async def test_a_result_that_does_not_fit_parks_the_job_and_can_be_corrected(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    await doubt(worker, settings, post)
    say(settings, Happened('"forty-one"'))
    with pytest.raises(EffectParked) as e:
        await (await worker()).run(effect(post, ask=False))
    assert e.value.kind == "result_unreadable"
    with pytest.raises(BadRecord, match="is done"):
        say(settings, DidNotHappen())
    say(settings, Happened("41"))
    assert await (await worker()).run(effect(post, ask=False)) == 41
    assert actions(settings) == ["happened", "happened"]


async def test_a_settlement_after_did_not_happen_is_the_answer_if_it_comes_before_the_next_call(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    slow = await slow_doubt(worker, settings, post)
    say(settings, DidNotHappen())
    post.call_gate.set()
    assert await slow == 1
    assert await (await worker()).run(effect(post, ask=False)) == 1
    assert len(post.log) == 1
    assert actions(settings) == ["did_not_happen", "settled_late"]
    note = str(row(settings)["note"])
    assert note.startswith("settled late, by attempt 1 of 2; before that: resolved by ada: did not")


async def test_a_settlement_after_did_not_happen_and_the_next_call_is_recorded_as_a_second_one(
    worker: Worker, settings: Settings
) -> None:
    post, again = PostOffice(), PostOffice()
    again.log = post.log
    slow = await slow_doubt(worker, settings, post)
    say(settings, DidNotHappen())
    assert await (await worker()).run(effect(again, ask=False)) == 1
    post.call_gate.set()
    # Everybody gets the first answer; that there were two is not hidden.
    assert await slow == 1
    assert len(post.log) == 2
    assert actions(settings) == ["did_not_happen", "happened_twice"]
    assert row(settings)["note"] == "happened twice: by attempts 3 and 1"
    with connect(settings) as conn:
        assert happened_twice(conn) == 1
        assert effect_actions(conn)[0].actor.startswith("slot 1 (")


async def test_a_second_call_that_ends_after_the_late_settlement_is_recorded_too(
    worker: Worker, settings: Settings
) -> None:
    post, again = PostOffice(), PostOffice()
    slow = await slow_doubt(worker, settings, post)
    say(settings, DidNotHappen())
    again.call_gate.clear()
    second = asyncio.create_task((await worker()).run(effect(again, ask=False)))
    await again.called.wait()
    post.call_gate.set()
    assert await slow == 1
    again.call_gate.set()
    assert await second == 1
    assert actions(settings) == ["did_not_happen", "settled_late", "happened_twice"]


async def test_a_settlement_with_other_arguments_than_the_call_after_it_is_recorded(
    worker: Worker, settings: Settings
) -> None:
    post, other = PostOffice(), PostOffice()
    slow = await slow_doubt(worker, settings, post)
    say(settings, DidNotHappen())
    assert await (await worker()).run(effect(other, ask=False, subject="good-bye")) == 1
    post.call_gate.set()
    with pytest.raises(EffectParked):
        await slow
    assert actions(settings) == ["did_not_happen", "happened_twice"]
    with connect(settings) as conn:
        assert effect_actions(conn)[0].reason.endswith("with other arguments")


async def test_a_settlement_after_happened_confirms_it_and_changes_no_result(
    worker: Worker, settings: Settings
) -> None:
    post = PostOffice()
    slow = await slow_doubt(worker, settings, post)
    say(settings, Happened("41"))
    post.call_gate.set()
    assert await slow == 41
    found = row(settings)
    assert (found["result"], found["settled_fence"]) == (41, 1)
    assert str(found["note"]).endswith("; confirmed late, by attempt 1")
    assert actions(settings) == ["happened", "settled_late"]


@pytest.mark.parametrize("answer", [Happened("41"), DidNotHappen()])
@pytest.mark.parametrize("error", [EffectNotDone("429"), TimeoutError()])
async def test_a_resolved_attempt_can_neither_release_nor_doubt(
    worker: Worker, settings: Settings, answer: Answer, error: Exception
) -> None:
    post = PostOffice()
    post.lost_answers = [error]
    slow = await slow_doubt(worker, settings, post)
    say(settings, answer)
    before = row(settings)
    post.call_gate.set()
    if isinstance(answer, Happened) and isinstance(error, TimeoutError):
        assert await slow == 41, "what was in doubt here is known by now"
    else:
        with pytest.raises((EffectNotDone, EffectParked)):
            await slow
    assert row(settings) == before


async def test_a_resolution_and_a_settlement_come_one_after_the_other(
    worker: Worker, settings: Settings
) -> None:
    await doubt(worker, settings, PostOffice())
    with (
        ThreadPoolExecutor(1) as threads,
        psycopg.connect(settings.database_url) as settling,
    ):
        settling.execute("UPDATE effects SET status = 'done', result = '1'")
        resolving = threads.submit(say, settings, DidNotHappen())
        while not sql(
            settings,
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock'",
        ):
            assert not resolving.done()
        settling.commit()
        with pytest.raises(BadRecord, match="is done"):
            resolving.result()
    assert row(settings)["status"] == "done"
