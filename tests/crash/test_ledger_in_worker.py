"""A worker is SIGKILLed at each point of the ledger, under load, with a mail server as the target.

The server honours no keys; its log can be asked. Each job ends done, by one mail.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from schemas.state import Status
from streams.config import Settings
from tests.support.judge import doubles
from tests.support.mail_flow import Letter, flow
from tests.support.rig import Rig
from tests.support.smtp import MailServer

pytestmark = pytest.mark.services

JOBS = 60


@pytest.mark.parametrize(
    "points",
    [
        ("ledger.claimed:20",),
        ("ledger.called:20",),
        ("ledger.settled:20",),
        ("ledger.called:20", "ledger.reconciled:1", "ledger.claimed:1"),
    ],
)
def test_a_worker_killed_in_the_ledger_sends_each_mail_once(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: tuple[str, ...]
) -> None:
    with MailServer(tmp_path / "mail.log") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        with Rig(settings, tmp_path, flow) as rig:
            letters = [Letter(n=n, ask=True) for n in range(JOBS)]
            ids = rig.submit(letters)  # type: ignore[arg-type]
            app = "tests.support.mail_flow:flow"
            for point in points:
                killed = rig.worker("send", app=app, crash_point=point)
                assert killed.ended() == -signal.SIGKILL, killed.log[-4000:]
            assert len(_done(rig)) < JOBS, "work was in flight at the kill"
            rig.worker("send", app=app)
            rig.wait(lambda: _done(rig) == ids, "all jobs are done")
            rig.wait_drained("send")
            mails = Counter(subject for _, subject in server.accepted)
            assert mails == {f"letter {n}": 1 for n in range(JOBS)}
            assert doubles((s.trace_id, s.seq) for s in rig.states()) == {}
            assert {s.status for s in rig.states()} == {Status.DONE}


def _done(rig: Rig) -> list[str]:
    return sorted(s.trace_id for s in rig.states() if s.status is Status.DONE)
