"""The mail flow that ships, run once for several tests: real mails, a real desk, a real worker that
has stopped; and what a replay must leave as it was."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

from agents import flow
from agents.training.corpus import Row
from infra.demo.desk import Desk
from schemas.mail import Mail
from streams.config import Settings
from tests.support.loop_thread import LoopThread
from tests.support.rig import Rig, job_id
from tests.support.standing import standing
from tests.support.worker import Worker
from tests.unit.agents.mails import sample

#: `REPLAY_MAILS=5000` makes more of them.
MAILS = int(os.environ.get("REPLAY_MAILS", "300"))
#: The rig's patience is for so many, not for thousands.
_FEW = 300
APP = "agents:flow"
#: Not JSON at all: dead-lettered by `classify`.
BROKEN = job_id(900_000)


class MailTown:
    """`with MailTown(settings, folder) as town`: all jobs are over, no worker runs, the desk does.

    `rows` by job id; besides there is one record that is broken, one that was submitted twice, one
    tombstone.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self._folder = settings, folder
        self.rig = Rig(settings, folder, flow)
        self.desk = Desk()
        self._thread = LoopThread("desk")
        rows = sample()
        # All kinds of mail: the sample begins with one.
        self.rows: dict[str, Row] = {job_id(n): rows[9 * n % len(rows)] for n in range(MAILS)}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._thread.start()
            stack.callback(self._thread.end)
            self.url = self._thread.run(self.desk.start())
            stack.callback(lambda: self._thread.run(self.desk.stop()))
            stack.enter_context(self.rig)
            self._run_all()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _run_all(self) -> None:
        worker = Worker(
            self.settings,
            self._folder / "town.log",
            app=APP,
            variables={"HANDOFF_DESK_URL": self.url},
        )
        self.rig.workers.append(worker)
        mails: Any = [Mail(**row) for row in self.rows.values()]
        self.rig.submit(mails, list(self.rows))
        self.rig.submit(mails[:1], list(self.rows)[:1])
        self.rig.put("classify", BROKEN.encode(), b"no mail")
        self.rig.put("classify", job_id(900_001).encode(), None)
        self.rig.flush()
        for done in range(_FEW, MAILS, _FEW):
            self.rig.wait(partial(self._are_done, done), f"{done} mails are done")
        self.rig.wait(self._over, "all mails are over, and projected")
        self.rig.wait_drained()
        assert worker.stop() == 0

    def _are_done(self, wanted: int) -> bool:
        (row,) = self.rig.sql("SELECT count(*) AS done FROM jobs WHERE status = 'done'")
        return bool(row["done"] >= wanted)

    def _over(self) -> bool:
        (row,) = self.rig.sql(
            "SELECT count(*) FILTER (WHERE status = 'done') AS done,"
            " count(*) FILTER (WHERE status = 'failed') AS failed FROM jobs"
        )
        return (row["done"], row["failed"]) == (MAILS, 1)

    def stats(self) -> dict[str, int]:
        return self._thread.call(self.desk.stats)

    def standing(self) -> dict[str, Any]:
        """Everything that a replay must not move: watermarks, offsets of groups, every table."""
        return {"desk": self.stats(), **standing(self.rig)}
