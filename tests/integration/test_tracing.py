"""A mail's journey arrives as one trace at a collector, whoever is killed on the way."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from infra.demo.desk import Desk
from schemas import headers as h
from schemas.ids import span_id, traceparent
from schemas.mail import Mail
from streams.config import Settings
from tests.support import patient
from tests.support.commands import Command
from tests.support.health import Probe
from tests.support.loop_thread import LoopThread
from tests.support.otlp import Receiver
from tests.support.rig import Rig, job_id
from tests.support.traced_mail import GATE, SCOPE, flow
from tests.support.worker import environment
from tests.unit.agents.mails import sample

pytestmark = pytest.mark.services

APP = "tests.support.traced_mail:flow"
MAILS = 150
FOREIGN_TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def desk_url() -> Iterator[str]:
    thread, desk = LoopThread("desk"), Desk()
    thread.start()
    yield thread.run(desk.start())
    thread.run(desk.stop())
    thread.end()


def history(rig: Rig) -> dict[tuple[str, str], dict[str, Any]]:
    """Committed hops by the ids that their spans must have."""
    rows = rig.sql("SELECT trace_id, seq, stage, handed_to FROM job_history ORDER BY trace_id, seq")
    return {(r["trace_id"], span_id(r["trace_id"], r["seq"])): r for r in rows}


def test_a_mails_journey_is_one_trace_whoever_is_killed_on_the_way(
    settings: Settings, tmp_path: Path, receiver: Receiver, desk_url: str
) -> None:
    mails = [Mail.model_validate(row) for row in sample()[:MAILS]]
    ids = [job_id(n) for n in range(MAILS)]
    with Rig(settings, tmp_path, flow) as rig:
        rig.variables = {**receiver.variables, "HANDOFF_DESK_URL": desk_url}
        stages = ("classify", "enrich", "act", "projector")
        worker = rig.worker(*stages, app=APP)
        # The tracer dies between the collector's taking and its own knowing it.
        receiver.takes_but_fails = True
        tracer = rig.worker("tracer", slot=1, app=APP)
        rig.submit(mails, ids)  # type: ignore[arg-type]
        rig.wait(lambda: len(receiver.hops()) >= 1, "spans arrive")
        rig.wait(lambda: rig.target.waiting(GATE) > 0, "mails are in the hands of enrich")
        tracer.kill()
        worker.kill()
        receiver.takes_but_fails = False
        rig.target.open(GATE)
        rig.worker(*stages, app=APP)
        rig.worker("tracer", slot=1, app=APP)
        ended = "SELECT count(*) AS n FROM jobs WHERE status IN ('done', 'failed')"
        rig.wait(lambda: rig.sql(ended)[0]["n"] == MAILS, "every mail has ended")
        hops = history(rig)
        rig.wait(lambda: len(receiver.hops()) >= len(hops), "every hop has its span")
        acts = {place for place, hop in hops.items() if hop["stage"] == "act"}

        def own(stage: str) -> list[Any]:
            return [r.span for r in receiver.of_scope(SCOPE) if r.span.name == f"own {stage}"]

        rig.wait(lambda: len(own("act")) >= len(acts), "the handlers' own spans arrive")

        assert {r.place for r in receiver.hops()} == set(hops), "one span per committed hop"
        assert receiver.repeated > 0, "the tracer sent nothing again, so nothing was tried"
        assert receiver.differing == []
        for span in (*own("classify"), *own("enrich"), *own("act")):
            parent = (span.trace_id.hex(), span.parent_span_id.hex())
            assert f"own {hops[parent]['stage']}" == span.name
        assert Counter((s.trace_id.hex(), s.parent_span_id.hex()) for s in own("act")) == Counter(
            acts
        )
        assert set(receiver.traces()) == set(ids)
        for spans in receiver.traces().values():
            _check_journey([r.span for r in spans if r.scope == "handoff"], settings)


def _check_journey(spans: list[Any], settings: Settings) -> None:
    topics = [settings.names.stage_topic("mail", s) for s in ("classify", "enrich", "act")]
    by_id = {s.span_id: s for s in spans}
    step = next(s for s in spans if s.name == f"process {topics[-1]}")
    told = [step.name]
    while step.parent_span_id:
        step = by_id[step.parent_span_id]
        told.append(step.name)
    assert told == [*(f"process {t}" for t in reversed(topics)), f"send {topics[0]}"]
    assert len(spans) == len(told)


def watch(rig: Rig, prefix: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "streams.cli", "trace", prefix, "--watch"],
        env=environment(rig.settings),
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check_watched(watching: subprocess.Popen[str], job: str) -> None:
    """It ended with the job, having said each step, and drew the whole."""
    out, said = watching.communicate(timeout=60)
    assert watching.returncode == 0, said
    assert "step 1: ask waiting" in said
    for text in (job, "timer due", "dead letter", "4 attempts", "failed"):
        assert text in out


def test_waits_dead_letters_and_redrives_stay_in_the_jobs_trace(
    settings: Settings, tmp_path: Path, receiver: Receiver
) -> None:
    foreign = f"00-{FOREIGN_TRACE}-b7ad6b7169203331-01"
    job = job_id(0)
    # Every wait is a timer's, and the last attempt is a dead letter; redriven, all of it again.
    never = patient.Ask(n=0, good_at=99, wait_ms=600)
    with Rig(settings, tmp_path, patient.flow) as rig:
        rig.variables = receiver.variables
        rig.put(
            "ask",
            job.encode(),
            never.model_dump_json().encode(),
            [(h.TRACEPARENT, foreign.encode())],
        )
        rig.flush()
        rig.worker(app=patient.APP)
        handoff = Command(settings, tmp_path)
        rig.wait(lambda: rig.sql("SELECT 1 FROM jobs"), "the job is known")
        watching = watch(rig, job[:20])
        failed = "SELECT count(*) AS n FROM job_history WHERE status = 'failed'"
        rig.wait(lambda: rig.sql(failed)[0]["n"] == 1, "the job is a dead letter")
        check_watched(watching, job)
        assert handoff("dlq", "redrive", job).returncode == 0
        rig.wait(lambda: rig.sql(failed)[0]["n"] == 2, "the redriven job is one again")
        hops = history(rig)
        assert len(hops) == 2 * patient.ATTEMPTS
        rig.wait(lambda: len(receiver.hops()) >= len(hops), "every hop has its span")

        drawn = handoff("trace", job).stdout
        assert drawn.count("until its timer had returned it") == 2 * (patient.ATTEMPTS - 1)
        assert drawn.count("until it was redriven") == 1
        url = handoff("trace", job, "--open", HANDOFF_TRACE_URL="jaeger=http://traces").stdout
        assert url == f"http://traces/trace/{job}\n"

        (spans,) = receiver.traces().values()
        assert len(spans) == len(hops) + 1
        by_id = {r.place: r.span for r in receiver.hops()}
        assert set(by_id) == set(hops)
        for (_, span), row in hops.items():
            assert by_id[job, span].parent_span_id.hex() == span_id(job, row["seq"] - 1)
        links = [x.trace_id.hex() for s in by_id.values() for x in s.links]
        assert links == [FOREIGN_TRACE], "of the step that took the submission"

        returned = rig.records("ask")[1:]
        assert len(returned) == len(hops) - 1
        for record, row in zip(returned, hops.values(), strict=False):
            found = [v for n, v in record.headers if n == h.TRACEPARENT]
            assert found == [traceparent(job, row["seq"]).encode()]
            assert record.header(h.LINK) == foreign.encode()


def test_metrics_are_served_and_sent_and_agree_with_what_was_committed(
    settings: Settings, tmp_path: Path, receiver: Receiver
) -> None:
    asks = [*(patient.Ask(n=n) for n in range(20)), patient.Ask(n=20, good_at=99, how="raise")]
    probe = Probe()
    with Rig(settings, tmp_path, patient.flow) as rig:
        rig.variables = receiver.variables
        rig.worker("ask", "projector", app=patient.APP, health_port=probe.port)
        rig.submit(asks)  # type: ignore[arg-type]
        rig.wait(lambda: len(rig.sql("SELECT 1 FROM job_history")) == len(asks), "all have ended")
        steps, letters = "messaging_client_consumed_messages_total", "handoff_dead_letters_total"

        def figures() -> dict[str, float]:
            """By metric, added up over its labels."""
            found: dict[str, float] = defaultdict(float)
            rig.wait(lambda: probe("livez").status == 200, "it answers")
            with urlopen(f"http://127.0.0.1:{probe.port}/metrics") as answer:
                for line in answer.read().decode().splitlines():
                    if not line.startswith("#"):
                        found[line.partition("{")[0].split(" ")[0]] += float(line.split(" ")[-1])
            return found

        rig.wait(lambda: figures()[steps] == len(asks), "every step is counted")
        rig.wait(lambda: figures()["handoff_lag_records"] == 0, "nothing is left to read")
        found = figures()
        assert found[letters] == 1
        assert found["handoff_attempts_sum"] == 20 + patient.ATTEMPTS
        for name in ("messaging_process_duration_seconds", "handoff_projection_delay_seconds"):
            assert found[f"{name}_count"] == len(asks)
        assert "handoff_effects_in_doubt" in found
        sent = {"messaging.client.consumed.messages", "handoff.lag.records", "handoff.lag.time"}
        rig.wait(lambda: receiver.metrics >= sent, "the collector has them, too")
