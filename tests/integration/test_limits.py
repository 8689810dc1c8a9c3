"""A rate holds over all workers by the handlers' own record of their starts, whatever happens."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from streams.config import Settings
from tests.integration.test_flow_postgres_away import postgres_away
from tests.support.limiting import APP, PER, STARTS_VARIABLE, Call, flow, most_within, starts
from tests.support.rig import Rig

pytestmark = pytest.mark.services

RATE = 20
WAIT_S = 3.4
AWAY = "no handler that is limited starts until Postgres can be asked"


def test_no_second_sees_more_starts_than_the_rate_whatever_happens_to_two_workers(
    settings: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "starts"
    folder.mkdir()

    def count(key: str) -> int:
        return len(starts(folder).get(key, ()))

    quick = {"database_timeout_s": 2.0, "session_timeout_ms": 3_000, "worker_lost_s": 3.0}
    with Rig(settings, tmp_path, flow, **quick) as rig:
        rig.variables[STARTS_VARIABLE] = str(folder)
        workers = [rig.worker(slot=slot, app=APP) for slot in range(2)]
        # More than may wait in memory, and 64 of them in work at a time.
        ids = rig.submit([Call(n=n, model="busy", wait_s=WAIT_S) for n in range(240)])
        rig.wait(lambda: all("assigned" in w.log for w in workers), "both have partitions")
        rig.wait(lambda: count("busy") >= 60, "the busy model is busy")

        ids += rig.submit([Call(n=n, model="quiet" if n % 2 else "") for n in range(300, 380)])
        rig.wait(lambda: count("quiet") == 40, "the other model's calls have started")
        quiet, busy = starts(folder)["quiet"], starts(folder)["busy"]
        meanwhile = sum(quiet[0] <= at <= quiet[-1] for at in busy)
        assert meanwhile < 100, "they did not wait for the 180 that came before them"

        with postgres_away(rig.settings):
            rig.wait(lambda: all(AWAY in w.log for w in workers), "both say that they wait")
            before = count("busy")
            asked = [w.log.count(AWAY) for w in workers]
            rig.wait(
                lambda: all(w.log.count(AWAY) > n for w, n in zip(workers, asked, strict=True)),
                "both go on saying so",
            )
            assert count("busy") - before <= RATE, "no more than had been given out"

        rig.wait(lambda: count("busy") >= 120, "the busy model goes on")
        workers[1].kill()
        rig.wait_results(320)
        rig.wait_drained()
        found = starts(folder)
        assert most_within(found["busy"], timedelta(seconds=WAIT_S)) > 40, "so many were in work"
        assert most_within(found["busy"], PER) <= RATE
        assert most_within(found["quiet"], PER) <= RATE
        assert most_within(found[""], PER) > RATE, "what has no key is not limited"
        assert sorted(r.job for r in rig.records("done")) == sorted(ids)
        away = [s for s in rig.states() if s.error is not None]
        assert {(s.status, s.error and s.error.kind, s.attempts) for s in away} == {
            ("waiting", "limited", 0)
        }
        assert "journal_on" in workers[0].log, "what starts is written down after a death"
        assert workers[0].stop() == 0
