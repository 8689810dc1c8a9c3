"""A target without idempotency keys: real SMTP. There is never a silent second mail."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.state import Status
from streams.config import Settings
from streams.context import EffectCall
from tests.support import ledger as support
from tests.support.commands import Command
from tests.support.ledger import row, workers
from tests.support.mail_flow import Letter, flow, look_for_mail, message_id, send_mail
from tests.support.rig import Rig, job_id
from tests.support.smtp import Behaviour, MailServer

pytestmark = pytest.mark.services

APP = "tests.support.mail_flow:flow"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    with MailServer(tmp_path / "mail.log") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def rig(settings: Settings, tmp_path: Path) -> Iterator[Rig]:
    with Rig(settings, tmp_path, flow) as rig:
        yield rig


def start(rig: Rig, **changes: Any) -> Any:
    return rig.worker("send", app=APP, **changes)


def submit(rig: Rig, *letters: Letter) -> list[str]:
    return rig.submit(letters)  # type: ignore[arg-type]


def redrive(rig: Rig, *letters: Letter) -> None:
    """As `handoff dlq redrive` brings a job back that was parked at its first step."""
    rig.hand_off("send", [(job_id(each.n), 1, each) for each in letters])  # type: ignore[misc]


def ended(rig: Rig, status: Status) -> list[str]:
    return sorted(s.trace_id for s in rig.states() if s.status is status)


def mails(server: MailServer) -> Counter[str]:
    return Counter(subject for _, subject in server.accepted)


def in_doubt(rig: Rig, handoff: Command) -> list[str]:
    return sorted(
        e["trace_id"]
        for e in json.loads(handoff("effects", "ls", "--in-doubt", "-o", "json").stdout)
    )


def test_a_worker_killed_after_the_server_took_the_mail_sends_no_second_one(
    rig: Rig, server: MailServer, tmp_path: Path
) -> None:
    handoff = Command(rig.settings, tmp_path)
    server.behaviours = [Behaviour.HOLD]
    letters = [Letter(n=n, ask=n >= 2) for n in range(4)]
    worker = start(rig)
    ids = submit(rig, *letters)
    rig.wait(lambda: server.held == 4, "the server has the mails, and has not said so")
    worker.kill()
    server.behaviours = [Behaviour.ACCEPT]
    start(rig)
    # Where the server's log can be asked, the jobs go on; the others wait for a person.
    rig.wait(lambda: ended(rig, Status.DONE) == ids[2:], "reconciled jobs are done")
    rig.wait(lambda: ended(rig, Status.WAITING) == ids[:2], "the others are parked")
    assert in_doubt(rig, handoff) == ids[:2]
    assert mails(server) == {f"letter {n}": 1 for n in range(4)}

    resolve = ("effects", "resolve", "--yes", "--reason", "looked into the log")
    keys = [f"{i}:send:0:mail" for i in ids]
    result = json.dumps({"message_id": message_id(keys[0])})
    assert handoff(*resolve, keys[0], "--happened", "--result", result).returncode == 0
    assert handoff(*resolve, keys[1], "--did-not-happen").returncode == 0
    redrive(rig, *letters[:2])
    rig.wait(lambda: ended(rig, Status.DONE) == ids, "all are done")
    # The second mail of letter 1 is a person's decision, and on record.
    assert mails(server) == {"letter 0": 1, "letter 1": 2, "letter 2": 1, "letter 3": 1}
    assert in_doubt(rig, handoff) == []
    decided = json.loads(handoff("effects", "actions", "-o", "json").stdout)
    assert {(a["key"], a["action"]) for a in decided} == {
        (keys[0], "happened"),
        (keys[1], "did_not_happen"),
    }


def test_a_connection_that_breaks_after_the_mail_leaves_it_in_doubt_or_asks_the_log(
    rig: Rig, server: MailServer, tmp_path: Path
) -> None:
    handoff = Command(rig.settings, tmp_path)
    server.behaviours = [Behaviour.HANG_UP]
    ids = submit(rig, Letter(n=0), Letter(n=1, ask=True))
    start(rig)
    rig.wait(lambda: ended(rig, Status.DONE) == ids[1:], "the log tells of the second")
    rig.wait(lambda: ended(rig, Status.WAITING) == ids[:1], "the first is parked")
    assert in_doubt(rig, handoff) == ids[:1]
    [parked] = [s for s in rig.states() if s.status is Status.WAITING]
    assert parked.error is not None
    assert parked.error.kind == "in_doubt"
    assert "SMTPServerDisconnected" in parked.error.message
    assert mails(server) == {"letter 0": 1, "letter 1": 1}
    assert server.sessions == 2, "nobody tried again"


def test_a_server_that_refuses_for_now_is_tried_again_and_nothing_is_in_doubt(
    rig: Rig, server: MailServer, tmp_path: Path
) -> None:
    handoff = Command(rig.settings, tmp_path)
    server.behaviours = [
        Behaviour.REFUSE_RECIPIENT,
        Behaviour.REFUSE_DATA,
        Behaviour.REFUSE_DATA,
        Behaviour.ACCEPT,
    ]
    ids = submit(rig, Letter(n=0))
    start(rig)
    rig.wait(lambda: ended(rig, Status.DONE) == ids, "the mail is sent at last")
    assert mails(server) == {"letter 0": 1}
    assert server.sessions == 4
    assert in_doubt(rig, handoff) == []
    assert [s.attempts for s in rig.states()] == [4]


async def test_a_job_longer_than_its_lease_keeps_it_and_sends_one_mail(
    settings: Settings, server: MailServer
) -> None:
    """Public case 15 (celery#5935 #3270, pretix#2058): the lease is renewed, and the claim of a
    second worker, which can even ask the server's log, is refused."""
    server.behaviours = [Behaviour.HOLD]
    call = _call("hello")
    async with workers(settings) as worker:
        one = await worker(slot=0, effect_lease_s=0.9)
        two = await worker(slot=1, effect_lease_s=0.9)
        first = asyncio.create_task(one.run(call))
        while server.held == 0:
            await asyncio.sleep(0.02)
        claimed = row(settings)
        second = asyncio.create_task(two.run(call))
        # Three whole leases, by Postgres' clock.
        while (row(settings)["leased_until"] - claimed["leased_until"]).total_seconds() < 2.7:
            assert not row(settings)["over"]
            assert not second.done()
            await asyncio.sleep(0.05)
        assert (row(settings)["slot"], row(settings)["fence"]) == (0, 1)
        server.open()
        assert await first == await second
    assert mails(server) == {"hello": 1}


async def test_a_worker_that_stops_renewing_is_asked_about_and_the_mail_not_repeated(
    settings: Settings, server: MailServer
) -> None:
    server.behaviours = [Behaviour.HOLD]
    async with workers(settings) as worker:
        first = asyncio.create_task((await worker(slot=0)).run(_call("hello")))
        while server.held == 0:
            await asyncio.sleep(0.02)
        support.expire(settings)
        assert await (await worker(slot=1)).run(_call("hello"))
        server.open()
        await first
    assert mails(server) == {"hello": 1}
    assert support.actions(settings) == ["settled_late"]


def _call(subject: str) -> EffectCall:
    return EffectCall(
        support.KEY,
        "mail",
        support.JOB,
        "mail",
        "act",
        send_mail,
        (subject,),
        {},
        False,
        look_for_mail,
    )
