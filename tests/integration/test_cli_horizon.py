"""`handoff topics horizon` on a real broker: records are removed, then it is asked."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from streams import topics
from streams.config import Settings
from streams.kafka import change_topic_config
from tests.support.audits import truncate
from tests.support.commands import Command
from tests.support.flows import Job
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

APP = ("--app", "tests.support.flows:flow")


def test_what_was_removed_sets_the_horizon(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path, partitions=2) as rig:
        handoff = Command(rig.settings, tmp_path)

        def asked() -> dict[str, Any]:
            done = handoff("topics", "horizon", *APP, "-o", "json")
            assert done.returncode == 0, done.stderr
            found: dict[str, Any] = json.loads(done.stdout)
            return found

        fresh = asked()
        assert (fresh["whole_since"], fresh["limits"]) == (None, [])
        assert fresh["sentence"] == (
            "All jobs of flow run can be replayed whole: nothing was removed."
        )
        assert [(t["stage"], t["cleanup"]) for t in fresh["topics"]] == [
            ("take", ["delete"]),
            ("work", ["delete"]),
            ("finish", ["delete"]),
            (None, ["compact"]),
        ]
        week_s = timedelta(days=7).total_seconds()
        assert fresh["topics"][0]["retention_s"] == week_s
        assert fresh["topics"][3]["compaction_lag_s"] == week_s

        for n in range(3):
            rig.put("work", job_id(n).encode(), Job(n=n).model_dump_json().encode(), partition=1)
        rig.flush()
        third = rig.records("work")[2]
        truncate(rig, rig.topic("work"), 1, third.offset)
        cut = asked()
        at = datetime.fromisoformat(cut["whole_since"])
        [work] = [t for t in cut["topics"] if t["stage"] == "work"]
        assert (cut["limits"], work["removed"]) == ([rig.topic("work")], 2)
        assert work["partitions"][1] == {
            "partition": 1,
            "low": 2,
            "end": 3,
            "first": 2,
            "first_at": cut["whole_since"],
        }
        assert timedelta() <= datetime.now(UTC) - at < timedelta(minutes=5)
        found = topics.horizon(rig.flow, rig.settings)
        assert (found.whole_since, found.covers(at)) == (at, True)
        assert not found.covers(at - timedelta(milliseconds=1))

        truncate(rig, rig.topic("work"), 1, 3)
        gone = asked()
        assert gone["whole_since"] == gone["at"]

        states = rig.settings.names.job_state_topic
        change_topic_config(rig.settings, rig.admin, states, {"min.compaction.lag.ms": "0"})
        rig.put_to(states, job_id(0).encode(), b"{}", partition=0)
        rig.flush()
        text = handoff("topics", "horizon", *APP).stdout
        assert f"{states}, where older steps may be compacted" in text
        assert f"{rig.topic('work')}, whose first 3 offsets were removed" in text

        missing = handoff("topics", "horizon")
        assert (missing.returncode, missing.stdout) == (2, "")
        assert "Run `handoff topics apply` first." in missing.stderr
