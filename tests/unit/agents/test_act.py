"""`act`: what it decides, what it asks of the desk, and what it makes of the desk's answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from agents import act, flow
from agents.act import plan_action
from agents.desk_client import DeskAnswer, DeskRefusedNow
from agents.settings import approval_settings
from infra.demo.desk import Desk, Trouble
from schemas.mail import Action, Filed, Label, Priority, Topic
from streams import BadRecord, BadSetup, BadWorld, Context, Done, EffectNotDone, Signal, Wait
from streams.testing import RecordedEffects, job_context
from tests.unit.agents.mails import enriched

SPAM = {"label": Label.SPAM, "spam_score": 0.99}


@pytest.mark.parametrize(
    ("over", "action", "queue"),
    [
        ({**SPAM, "topic": Topic.SHOPPING}, Action.ARCHIVED, None),
        ({**SPAM, "topic": Topic.SCAM}, Action.TICKET, "abuse"),
        ({**SPAM, "topic": Topic.SCAM, "spam_score": 0.6}, Action.TICKET, "review"),
        ({**SPAM, "priority": Priority.HIGH, "asks": True}, Action.ARCHIVED, None),
        ({"priority": Priority.HIGH}, Action.REPLY, "linux"),
        ({"priority": Priority.NORMAL, "asks": True}, Action.REPLY, "linux"),
        ({"priority": Priority.NORMAL}, Action.TICKET, "linux"),
        ({"priority": Priority.LOW, "asks": True}, Action.TICKET, "linux"),
    ],
)
def test_what_to_do_is_read_off_the_mail(
    over: dict[str, object], action: Action, queue: str | None
) -> None:
    plan = plan_action(enriched(**over))
    assert (plan.action, plan.queue) == (action, queue)


@pytest.fixture
def above(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Replies to mails of more than 6 points wait for approval."""
    monkeypatch.setenv("HANDOFF_APPROVAL_ABOVE", "6")
    approval_settings.cache_clear()
    yield monkeypatch
    approval_settings.cache_clear()


ASKED = {"priority": Priority.HIGH, "priority_points": 7}


def signalled(value: object, by: str = "ann", **more: Any) -> Context:
    """`act` runs again: the signal has come."""
    answers = {"reply": DeskAnswer(number="R-1"), "ticket": DeskAnswer(number="T-1")}
    signal = Signal("approval", value, by, **more)
    return job_context("mail", "act", effects=RecordedEffects(results=answers), signal=signal)


async def end(over: dict[str, object], job: Context) -> tuple[Action, str]:
    outcome = await act(enriched(**over), job)
    assert isinstance(outcome, Done)
    assert isinstance(outcome.result, Filed)
    return outcome.result.action, outcome.result.reason


async def test_a_reply_above_the_threshold_waits_and_the_desk_is_not_called(
    above: pytest.MonkeyPatch,
) -> None:
    effects = RecordedEffects()
    outcome = await act(enriched(**ASKED), job_context(effects=effects))
    assert outcome == Wait("approval", timeout=timedelta(days=3))
    assert effects.calls == []
    above.setenv("HANDOFF_APPROVAL_TIMEOUT_S", "60")
    approval_settings.cache_clear()
    assert await act(enriched(**ASKED), job_context()) == Wait("approval", timedelta(minutes=1))


@pytest.mark.parametrize(
    "over",
    [
        {**ASKED, "priority_points": 6},
        {**SPAM, "topic": Topic.SCAM, "priority_points": 9},
        {**SPAM, "priority_points": 9},
    ],
)
async def test_nothing_else_waits(above: pytest.MonkeyPatch, over: dict[str, object]) -> None:
    answers = {"reply": DeskAnswer(number="R-1"), "ticket": DeskAnswer(number="T-1")}
    job = job_context(effects=RecordedEffects(results=answers))
    assert isinstance(await act(enriched(**over), job), Done)


async def test_without_the_setting_no_reply_waits() -> None:
    job = job_context(effects=RecordedEffects(results={"reply": DeskAnswer(number="R-1")}))
    assert (await end(ASKED, job))[0] is Action.REPLY


@pytest.mark.parametrize(
    ("value", "action", "reason"),
    [
        ({"approved": True}, Action.REPLY, "of high priority; approved by ann"),
        (True, Action.REPLY, "of high priority; approved by ann"),
        (False, Action.TICKET, "of high priority; refused by ann"),
        (
            {"approved": False, "reason": "call him"},
            Action.TICKET,
            "of high priority; refused by ann: call him",
        ),
    ],
)
async def test_a_person_decides_and_the_ticket_says_who(
    above: pytest.MonkeyPatch, value: object, action: Action, reason: str
) -> None:
    job = signalled(value)
    assert await end(ASKED, job) == (action, reason)
    (call,) = job._effects.calls  # type: ignore[attr-defined]
    assert (call.name, call.args[0]["reason"]) == (action.value, reason)


async def test_what_a_person_said_counts_although_the_setting_has_gone() -> None:
    assert await end(ASKED, signalled(False)) == (
        Action.TICKET,
        "of high priority; refused by ann",
    )


async def test_what_nobody_approved_in_time_becomes_a_ticket(above: pytest.MonkeyPatch) -> None:
    assert await end(ASKED, signalled(None, timed_out=True)) == (
        Action.TICKET,
        "of high priority; nobody approved the reply in time",
    )


@pytest.mark.parametrize("value", [None, "yes", 1, {}, {"approved": "true"}, {"reason": "x" * 81}])
async def test_what_is_no_approval_counts_for_nothing(
    above: pytest.MonkeyPatch, value: object
) -> None:
    job = signalled(value)
    assert isinstance(await act(enriched(**ASKED), job), Wait)
    assert job._effects.calls == []  # type: ignore[attr-defined]


async def test_long_words_of_a_person_still_fit_the_result(above: pytest.MonkeyPatch) -> None:
    job = signalled({"approved": False, "reason": "x" * 80}, by="y" * 400)
    assert len((await end(ASKED, job))[1]) <= 200


def test_a_threshold_that_is_none_is_named_before_the_first_record(
    above: pytest.MonkeyPatch,
) -> None:
    above.setenv("HANDOFF_APPROVAL_ABOVE", "high")
    assert act.prepare is not None
    with pytest.raises(BadSetup, match="HANDOFF_APPROVAL_ABOVE"):
        act.prepare()


async def test_archived_spam_never_reaches_the_desk() -> None:
    effects = RecordedEffects()
    outcome = await act(enriched(**SPAM), job_context(effects=effects))
    assert outcome == Done(
        Filed(
            action=Action.ARCHIVED,
            reason="spam about linux",
            label=Label.SPAM,
            topic=Topic.LINUX,
            priority=Priority.LOW,
            thread="00" * 8,
        )
    )
    assert effects.calls == []


async def test_a_ticket_is_one_repeatable_effect_and_its_number_is_in_the_result() -> None:
    effects = RecordedEffects(results={"ticket": DeskAnswer(number="T-7")})
    job = job_context("mail", "act", effects=effects)
    outcome = await act(enriched(body="y" * 9_000), job)
    (call,) = effects.calls
    assert (call.name, call.idempotent, call.key) == ("ticket", True, job.effect_key("ticket"))
    assert call.args[0]["job"] == job.trace_id
    assert call.args[0]["excerpt"] == "y" * 500
    assert outcome.result is not None
    assert outcome.result.model_dump(include={"action", "number", "queue"}) == {
        "action": Action.TICKET,
        "number": "T-7",
        "queue": "linux",
    }


async def test_a_repeat_asks_for_the_same_effect_with_the_same_arguments() -> None:
    effects = RecordedEffects(results={"reply": DeskAnswer(number="R-1")})
    mail = enriched(priority=Priority.HIGH)
    first = await act(mail, job_context(effects=effects))
    again = await act(mail, job_context(effects=effects, attempt=2))
    one, two = effects.calls
    assert first == again
    assert (one.key, one.args, one.kwargs) == (two.key, two.args, two.kwargs)


async def test_an_error_of_the_effect_passes_through() -> None:
    effects = RecordedEffects(results={"ticket": BadWorld("The desk is closed.")})
    with pytest.raises(BadWorld, match=r"The desk is closed\."):
        await act(enriched(), job_context(effects=effects))


@pytest.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    desk = Desk()
    monkeypatch.setenv("HANDOFF_DESK_URL", await desk.start() + "/")
    yield desk
    await desk.stop()


async def test_the_desk_does_once_what_is_asked_twice(desk: Desk) -> None:
    first = await act(enriched(), job_context())
    again = await act(enriched(), job_context())
    assert first == again
    assert desk.stats()["effects"] == 1
    assert desk.stats()["replays"] == 1


async def test_a_key_with_other_content_is_a_bad_record(desk: Desk) -> None:
    await act(enriched(), job_context())
    with pytest.raises(BadRecord, match="422"):
        await act(enriched(subject="another"), job_context())
    assert desk.stats()["effects"] == 1


async def test_a_failing_desk_is_the_worlds_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(trouble=Trouble(fail_rate=1.0))
    monkeypatch.setenv("HANDOFF_DESK_URL", await desk.start())
    with pytest.raises(BadWorld, match="503") as caught:
        await act(enriched(), job_context())
    assert not isinstance(caught.value, EffectNotDone)
    await desk.stop()


async def test_a_desk_that_is_away_has_done_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    monkeypatch.setenv("HANDOFF_DESK_URL", await desk.start())
    await desk.stop()
    with pytest.raises(DeskRefusedNow, match="cannot be reached"):
        await act(enriched(), job_context())


async def test_a_desk_that_does_not_answer_in_time_may_have_done_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(trouble=Trouble(delay_ms=500))
    monkeypatch.setenv("HANDOFF_DESK_URL", await desk.start())
    monkeypatch.setenv("HANDOFF_DESK_TIMEOUT_S", "0.05")
    with pytest.raises(BadWorld, match="may have taken effect") as caught:
        await act(enriched(), job_context())
    assert not isinstance(caught.value, EffectNotDone)
    await desk.stop()


@pytest.mark.parametrize(
    ("status", "text", "error", "not_done"),
    [
        (429, "slow down", BadWorld, True),
        (409, "still running", BadWorld, False),
        (404, "no such queue", BadRecord, False),
        (302, "elsewhere", BadRecord, False),
        (201, "{}", BadWorld, False),
        (201, "not json", BadWorld, False),
    ],
)
async def test_an_answer_is_blamed_on_whom_it_concerns(
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    text: str,
    error: type[Exception],
    not_done: bool,
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_post("/tickets", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv("HANDOFF_DESK_URL", f"http://127.0.0.1:{runner.addresses[0][1]}")
    with pytest.raises(error) as caught:
        await act(enriched(), job_context())
    assert isinstance(caught.value, EffectNotDone) == not_done
    await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "value", "after_s"),
    [
        (429, "30", 30.0),
        (503, "30", 30.0),
        (429, None, None),
        (429, "soon", None),
        # Not said of this: a server error may have taken effect and is asked about again soon.
        (500, "30", None),
    ],
)
async def test_the_desk_says_how_long_it_wants_to_be_left_alone(
    monkeypatch: pytest.MonkeyPatch, status: int, value: str | None, after_s: float | None
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, headers={} if value is None else {"Retry-After": value})

    app = web.Application()
    app.router.add_post("/tickets", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv("HANDOFF_DESK_URL", f"http://127.0.0.1:{runner.addresses[0][1]}")
    with pytest.raises(BadWorld) as caught:
        await act(enriched(), job_context())
    assert caught.value.after_s == after_s
    await runner.cleanup()


async def test_a_desk_url_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDOFF_DESK_URL", "desk.example.org")
    with pytest.raises(BadSetup, match="HANDOFF_DESK_URL"):
        await act(enriched(), job_context())


def test_the_flow_is_the_three_stages_in_order() -> None:
    assert [(s.name, s.emits, s.is_async) for s in flow.stages] == [
        ("classify", ("enrich",), False),
        ("enrich", ("act",), False),
        ("act", (), True),
    ]
