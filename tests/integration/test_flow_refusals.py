"""A worker that must not go on says why in a sentence, and its exit code tells the blame."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka.admin import AdminClient

from streams import topics
from streams.config import Settings
from streams.kafka import admin_client, describe_topics
from streams.offsets import encode_map
from tests.support.flows import Job, flow
from tests.support.judge import assert_all_done_once
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

SETUP, FENCED = 2, 4


def _topic_id(rig: Rig) -> UUID:
    name = rig.topic("work")
    return describe_topics(rig.settings, admin_client(rig.settings), [name])[name].topic_id


def test_metadata_that_is_no_offset_map_stops_the_worker(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        rig.set_committed("work", {1: (0, "somebody else's note")})
        worker = rig.worker("work")
        assert worker.ended() == SETUP
        assert "The offset map of group" in worker.log
        assert "is unreadable" in worker.log


def test_an_offset_that_was_moved_under_its_map_stops_the_worker(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        rig.hand_off("work", [(job_id(n), 1, Job(n=n)) for n in range(40)])
        rig.set_committed("work", {0: (1, encode_map(_topic_id(rig), 5, []))})
        worker = rig.worker("work")
        assert worker.ended() == SETUP
        assert "its map was written for 5" in worker.log


def test_a_topic_that_was_deleted_and_made_again_stops_the_worker_until_reseeded(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path) as rig:
        old = _topic_id(rig)
        name = rig.topic("work")
        admin = AdminClient({"bootstrap.servers": settings.kafka_bootstrap_servers})
        offsets = rig.committed("work")
        admin.delete_topics([name])[name].result(30)
        rig.wait(lambda: name not in admin.list_topics(timeout=10).topics, "the topic is gone")
        topics.apply(flow, rig.settings)
        assert _topic_id(rig) != old
        # The broker forgets offsets with the topic; a restored backup, say, brings them back.
        rig.set_committed("work", offsets)
        worker = rig.worker("work")
        assert worker.ended() == SETUP
        assert "it was deleted and made again" in worker.log
        topics.apply(flow, rig.settings, reseed=True)
        rig.hand_off("work", [(job_id(1), 1, Job(n=1))])
        rig.worker("work")
        rig.wait_drained("work")
        assert len(rig.records("finish")) == 1


def test_a_group_without_offsets_stops_the_worker(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path) as rig:
        rig.admin.delete_consumer_groups([rig.group("work")])[rig.group("work")].result(30)
        worker = rig.worker("work")
        assert worker.ended() == SETUP
        assert "Run `handoff topics apply` first." in worker.log, worker.log


def test_missing_topics_stop_the_worker(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path) as rig:
        worker = rig.worker("work", prefix=f"{settings.prefix}other.")
        assert worker.ended() == SETUP
        assert "Run `handoff topics apply` first." in worker.log, worker.log


def test_of_two_workers_with_one_slot_the_older_is_fenced_and_exits(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path, max_in_flight_records=64) as rig:
        older = rig.worker()
        ids = rig.submit([Job(n=n, wait_ms=5 + n % 40) for n in range(600)])
        rig.wait(lambda: rig.finished() > 50, "the stream runs")
        older.expected_to_run = False
        rig.worker()
        assert rig.finished() < 600, "work was in flight when the twin came"
        assert older.ended() == FENCED
        assert "slot" in older.log
        rig.wait_results(600)
        assert_all_done_once(rig, ids)
