"""`handoff jobs tail`: what is committed while it follows, and nothing else."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from schemas.state import HopTiming, JobError, JobState, Status
from streams.cli.prepare import environment
from streams.config import Settings
from tests.support.commands import Command
from tests.support.rig import Rig, job_id

pytestmark = pytest.mark.services

_TIMEOUT_S = 60.0


def state(n: int, **changes: Any) -> JobState:
    fields: dict[str, Any] = {
        "trace_id": job_id(n),
        "flow": "run",
        "stage": "take",
        "status": Status.RUNNING,
        "seq": 1,
        "attempts": 1,
        "updated_at": datetime.now(UTC),
        "to": ("work",),
        "timing": HopTiming(
            born_us=1_000, produced_us=1_000, polled_us=2_000, started_us=3_000, finished_us=15_500
        ),
    }
    return JobState(**fields | changes)


def write(settings: Settings, *states: JobState, commit: bool = True) -> None:
    """Append `states` in one transaction, as a worker does."""
    producer = Producer(
        {
            "bootstrap.servers": settings.kafka_bootstrap_servers,
            "partitioner": "murmur2_random",
            "transactional.id": f"{settings.prefix}test",
        }
    )
    producer.init_transactions(_TIMEOUT_S)
    producer.begin_transaction()
    for each in states:
        value = each.model_dump_json(by_alias=True)
        producer.produce(settings.names.job_state_topic, value, each.trace_id)
    assert producer.flush(_TIMEOUT_S) == 0
    if commit:
        producer.commit_transaction(_TIMEOUT_S)
    else:
        producer.abort_transaction(_TIMEOUT_S)


@contextmanager
def tailing(settings: Settings, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`handoff jobs tail`, once it follows."""
    process = subprocess.Popen(
        [sys.executable, "-m", "streams.cli", "jobs", "tail", *options],
        env=environment(settings),
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Following ")
        yield process
    finally:
        process.kill()
        process.communicate()


def test_steps_are_told_as_they_are_committed_until_ctrl_c(
    settings: Settings, tmp_path: Path
) -> None:
    with Rig(settings, tmp_path):
        write(settings, state(0))
        with tailing(settings) as process:
            assert process.stdout is not None
            write(settings, state(1), commit=False)
            error = JobError(kind="rejected", message="not\nwanted \x1b[31m")
            write(settings, state(2), state(2, seq=2, status=Status.FAILED, to=(), error=error))
            handed, failed = process.stdout.readline(), process.stdout.readline()
            assert (
                handed.split("Z  ")[1]
                == f"{job_id(2)[:12]}  run  take  running → work  #1  12.5 ms\n"
            )
            assert "failed  #2  12.5 ms  rejected: not wanted" in failed
            assert "\x1b" not in failed
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=_TIMEOUT_S) == ("", "")
            assert process.returncode == 0


def test_filters_choose_and_a_count_ends_it(settings: Settings, tmp_path: Path) -> None:
    with Rig(settings, tmp_path) as rig:
        wanted = (
            "--flow",
            "run",
            "--stage",
            "work",
            "--status",
            "done",
            "--job",
            job_id(5).upper(),
        )
        with tailing(settings, *wanted, "-n", "2", "-o", "json") as process:
            right = {"stage": "work", "status": Status.DONE, "to": ()}
            write(
                settings,
                state(5, **right | {"flow": "other"}),
                state(5, **right | {"stage": "take"}, seq=2),
                state(5, **right | {"status": Status.WAITING}, seq=3),
                state(6, **right),
                state(5, **right, seq=4),
                state(5, **right, seq=5),
                state(5, **right, seq=6),
            )
            out, err = process.communicate(timeout=_TIMEOUT_S)
            assert (process.returncode, err) == (0, "")
            first, second = map(json.loads, out.splitlines())
            assert (first["seq"], second["seq"]) == (4, 5)
            assert (first["job"], first["working_us"], first["queued_us"]) == (
                job_id(5),
                12_500,
                2_000,
            )

        rig.admin.delete_topics([settings.names.job_state_topic])[
            settings.names.job_state_topic
        ].result(30)
        gone = Command(settings, tmp_path)("jobs", "tail")
        assert (gone.returncode, gone.stdout) == (2, "")
        assert "does not exist. Run `handoff topics apply` first." in gone.stderr
