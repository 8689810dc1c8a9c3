"""Public cases that the ledger answers, with a mail server that honours no keys.

Each names the report that it comes from. Cases 15 and 18 are in test_smtp and
test_ledger_reconcile_races.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from infra.postgres.server import Postgres
from infra.services import Services
from schemas.state import Status
from streams.config import Settings
from streams.errors import BadWorld
from streams.ledger.effects import Ledger
from streams.ledger.queries import list_effects
from streams.ledger.suspects import SuspectCheck
from streams.postgres import connect, open_pool
from streams.state.migrate import migrate
from tests.support.judge import doubles
from tests.support.ledger import PostOffice, effect, row
from tests.support.mail_flow import Letter, flow
from tests.support.rig import Rig, job_id
from tests.support.smtp import Behaviour, MailServer
from tests.support.worker import Worker

pytestmark = pytest.mark.services

_TOPIC = UUID(int=7)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    with MailServer(tmp_path / "mail.log") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    """A server of this test's own, to be killed and started again."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    with Services(kafka=False, fsync=False) as own:
        assert own.postgres is not None
        yield own.postgres


@pytest.fixture
def own(settings: Settings, postgres: Postgres) -> Settings:
    own = settings.model_copy(
        update={"database_url": postgres.database_url, "database_timeout_s": 2.0}
    )
    migrate(own)
    return own


def start(rig: Rig, slot: int = 0, **changes: Any) -> Worker:
    return rig.worker("send", slot=slot, app="tests.support.mail_flow:flow", **changes)


def submit(rig: Rig, *letters: Letter) -> list[str]:
    return rig.submit(letters)  # type: ignore[arg-type]


def ended(rig: Rig, status: Status) -> list[str]:
    return sorted(s.trace_id for s in rig.states() if s.status is status)


def in_doubt(rig: Rig) -> list[str]:
    with connect(rig.settings) as conn:
        return sorted(e.trace_id for e in list_effects(conn, in_doubt=True))


def assert_one_mail_each(server: MailServer, count: int) -> None:
    """By the server's own record."""
    subjects = Counter(subject for _, subject in server.accepted)
    assert subjects == {f"letter {n}": 1 for n in range(count)}


def assert_no_step_twice(rig: Rig) -> None:
    assert doubles((s.trace_id, s.seq) for s in rig.states()) == {}


def test_effects_happen_once_when_scaling_repeats_work(
    settings: Settings, tmp_path: Path, server: MailServer
) -> None:
    """Public case 5 (faust-streaming/faust#502): 1 → 3 → 1 workers, with work in flight."""
    with Rig(settings, tmp_path, flow, grace_s=0.0) as rig:
        ids = submit(rig, *(Letter(n=n, gate_after="stay") for n in range(40)))
        workers = [start(rig)]
        rig.wait(lambda: rig.target.waiting("stay") == 40, "the mails are sent, the jobs not done")
        assert_one_mail_each(server, 40)
        for slot in (1, 2):
            workers.append(start(rig, slot))
            pid = workers[-1].process.pid
            rig.wait(lambda pid=pid: rig.target.waiting("stay", pid) > 0, f"{slot} repeats work")
        for worker in workers[1:]:
            assert worker.stop() == 0
        first = workers[0].process.pid
        rig.wait(lambda: rig.target.waiting("stay", first) == 40, "slot 0 has it all again")
        rig.target.open("stay")
        rig.wait(lambda: ended(rig, Status.DONE) == ids, "all jobs are done")
        assert_one_mail_each(server, 40)
        assert_no_step_twice(rig)
        assert in_doubt(rig) == []


def test_a_database_restart_during_recovery_strands_no_job(
    own: Settings, postgres: Postgres, tmp_path: Path, server: MailServer
) -> None:
    """Public case 17 (dbos-transact-py#716)."""
    with Rig(own, tmp_path, flow) as rig:
        settled = [Letter(n=n, gate_after="stay") for n in range(10)]
        ids = submit(rig, *settled)
        worker = start(rig)
        rig.wait(lambda: rig.target.waiting("stay") == 10, "ten mails are settled")
        server.behaviours = [Behaviour.HOLD]
        ids += submit(
            rig,
            *(Letter(n=n, ask=True, look_gate="look") for n in range(10, 20)),
            *(Letter(n=n) for n in range(20, 30)),
        )
        rig.wait(lambda: server.held == 20, "twenty are sent and not settled")
        worker.kill()
        worker = start(rig)
        rig.wait(lambda: rig.target.waiting("look") == 10, "recovery is in the middle")
        postgres.kill()
        # What the recovery learns now cannot be written.
        rig.target.open("look")
        rig.target.open("stay")
        rig.wait(lambda: "stage_paused" in worker.log, "the worker sees that Postgres is away")
        postgres.start()
        rig.wait(lambda: ended(rig, Status.DONE) == ids[:20], "what is known to have happened")
        rig.wait(lambda: ended(rig, Status.WAITING) == ids[20:], "what nobody can tell is parked")
        assert in_doubt(rig) == ids[20:]
        assert_one_mail_each(server, 30)
        assert_no_step_twice(rig)
        rig.wait_drained("send")
        assert worker.stop() == 0


async def test_connections_that_a_restart_killed_heal_and_no_call_waits_for_ever(
    own: Settings, postgres: Postgres
) -> None:
    """Public case 19 (psycopg#701 #1371); one that hangs instead is in test_ledger_failures."""
    post = PostOffice()
    keys = [f"{job_id(n)}:act:0:mail" for n in range(8)]
    async with open_pool(own) as pool:
        # The pool has long given up when the server comes back.
        pool.reconnect_timeout = 0.2
        ledger = Ledger(pool, own)
        await ledger.open()
        check = SuspectCheck(pool, own, "f", "act")

        async def all_at_once(keys: list[str]) -> list[Any]:
            """Every answer comes, well or not: generous, against the ten seconds of the bound."""
            async with asyncio.timeout(60):
                return await asyncio.gather(
                    *(ledger.run(effect(post, key=k)) for k in keys),
                    check.projected_offsets(_TOPIC),
                    return_exceptions=True,
                )

        assert await all_at_once(keys[:4]) == [1, 2, 3, 4, {}]
        postgres.kill()
        for _ in range(2):
            for answer in await all_at_once(keys[4:]):
                assert isinstance(answer, BadWorld)
        assert len(post.log) == 4, "nothing is called that cannot be claimed"
        postgres.start()
        async with asyncio.timeout(120):
            while any(isinstance(a, BadWorld) for a in await all_at_once(keys)):
                await asyncio.sleep(0.05)
        assert len(post.log) == 8
        assert row(own, keys[7])["status"] == "done"
        await ledger.close()


def test_finished_work_of_a_fenced_worker_is_committed_and_its_work_in_doubt_not_repeated(
    settings: Settings, tmp_path: Path, server: MailServer
) -> None:
    """Public case 20 (PostHog/posthog#80897): fenced before it has drained."""
    with Rig(settings, tmp_path, flow, effect_lease_s=3.0) as rig:
        first = start(rig)
        ids = submit(rig, *(Letter(n=n) for n in range(10)))
        rig.wait(lambda: ended(rig, Status.DONE) == ids, "ten are finished and committed")
        ids += submit(rig, *(Letter(n=n, gate_after="stay") for n in range(10, 20)))
        rig.wait(lambda: rig.target.waiting("stay") == 10, "ten have done their effect")
        server.behaviours = [Behaviour.HOLD]
        ids += submit(rig, *(Letter(n=n) for n in range(20, 30)))
        rig.wait(lambda: server.held == 10, "ten are in the middle of it")
        # Past its session and its leases; it knows of nothing.
        first.signal(signal.SIGSTOP)
        try:
            second = start(rig, slot=1)
            pid = second.process.pid
            rig.wait(lambda: rig.target.waiting("stay", pid) == 10, "the effects are not repeated")
            rig.wait(lambda: ended(rig, Status.WAITING) == ids[20:], "what is in doubt is parked")
            assert in_doubt(rig) == ids[20:]
            rig.target.open("stay")
            rig.wait(lambda: ended(rig, Status.DONE) == ids[:20], "what was done is committed")
        finally:
            first.signal(signal.SIGCONT)
        rig.wait(lambda: "lost" in first.log, "the fenced one has heard of it")
        server.open()
        # Nor does bringing the jobs back repeat what nobody has decided.
        late = [(i, 1, Letter(n=n)) for n, i in enumerate(ids) if n >= 20]
        rig.hand_off("send", late)  # type: ignore[arg-type]
        parked = sorted(ids[20:] * 2)
        rig.wait(lambda: ended(rig, Status.WAITING) == parked, "they are parked again")
        assert in_doubt(rig) == ids[20:]
        assert_one_mail_each(server, 30)
        assert_no_step_twice(rig)
        assert ended(rig, Status.DONE) == ids[:20]
