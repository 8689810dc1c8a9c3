"""A rebalance that is broken off between its two rounds leaves partitions to nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.config import Settings
from streams.kafka import admin_client, describe_group
from tests.support.flows import Job
from tests.support.judge import assert_no_step_twice
from tests.support.rig import Rig, job_id
from tests.support.worker import killed

pytestmark = pytest.mark.services

JOBS, PARTITIONS = 40, 4


def _owned(rig: Rig) -> set[int] | None:
    """The partitions of `work` that have an owner; None while they are being dealt."""
    group = rig.group("work")
    with admin_client(rig.settings) as admin:
        facts = describe_group(rig.settings, admin, group, group)
    return set(facts.owners) if facts.settled and facts.members else None


def test_partitions_that_a_killed_member_had_just_let_go_find_an_owner(
    settings: Settings, tmp_path: Path
) -> None:
    """It comes back within its session: for the group, nothing has happened."""
    with Rig(settings, tmp_path, session_timeout_ms=8_000) as rig:
        doomed = rig.worker("work", crash_point="poll.revoked")
        rig.wait(lambda: len(_owned(rig) or ()) == PARTITIONS, "slot 0 owns all partitions")
        rig.worker("work", slot=1)
        doomed.expected_to_run = False
        killed(doomed)
        back = rig.worker("work")
        rig.wait(lambda: " assigned " in back.log, "slot 0 is back")
        assert len(_owned(rig) or ()) < PARTITIONS, "without anybody who mends it, this is it"
        rig.wait(lambda: len(_owned(rig) or ()) == PARTITIONS, "all are somebody's again")
        rig.hand_off("work", [(job_id(n), 1, Job(n=n)) for n in range(JOBS)])
        rig.wait_drained("work")
        assert_no_step_twice(rig)
        assert len(rig.records("finish")) == JOBS
