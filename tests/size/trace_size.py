"""Whether every committed hop of so many jobs has its span once, and how fast the tracer exports.

    python -m tests.size.trace_size --jobs 100000 --kills 3

Runs three-stage jobs through real workers and a tracer, kills workers and tracer with SIGKILL on
the way, and compares what a collector received with `job_history`. Then the tracer exports the
whole of `job-state` once more, into a collector that only counts. Needs KAFKA_BOOTSTRAP_SERVERS and
DATABASE_URL. The exit code is 0 if it adds up.
"""

from __future__ import annotations

import argparse
import sys
import time

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from infra.otel.span_counter import SpanCounter
from schemas.ids import span_id
from streams import Flow
from tests.support import flows
from tests.support.flows import Job
from tests.support.installation import rigged
from tests.support.otlp import Receiver
from tests.support.rig import Rig
from tests.support.traced_mail import spanned

flow = Flow(flows.flow.name, tuple(spanned(s) for s in flows.flow.stages), flows.flow.sinks)
APP = "tests.size.trace_size:flow"
STAGES = (*(s.name for s in flow.stages), "projector")
TRACER_SLOT = 1

Place = bytes


class Ids(Receiver):
    """Keeps of each span what the comparison needs: its ids, its parent, and a hash of it."""

    def __init__(self) -> None:
        super().__init__()
        #: By trace id and span id: the parent, and a hash that tells whether a repeat is equal.
        self.hop_spans: dict[Place, tuple[bytes, int]] = {}
        self.roots: set[Place] = set()
        #: Trace and parent of each span of a handler.
        self.own: list[Place] = []
        self.changed = 0

    def _keep(self, sent: ExportTraceServiceRequest) -> None:
        for of_scope in (s for r in sent.resource_spans for s in r.scope_spans):
            for span in of_scope.spans:
                place = span.trace_id + span.span_id
                if of_scope.scope.name != "handoff":
                    self.own.append(span.trace_id + span.parent_span_id)
                elif span.name.startswith("send "):
                    self.roots.add(place)
                else:
                    seen = (span.parent_span_id, hash(span.SerializeToString(deterministic=True)))
                    before = self.hop_spans.setdefault(place, seen)
                    self.repeated += before is not seen
                    self.changed += before != seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=3)
    arguments = parser.parse_args()
    with rigged(flow) as rig:
        faults = run(rig, arguments.jobs, arguments.kills)
        export_again(rig, arguments.jobs)
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


def run(rig: Rig, jobs: int, kills: int) -> list[str]:
    """The jobs through the flow with `kills` SIGKILLs of worker and tracer; what is wrong."""
    with Ids() as received:
        rig.variables = received.variables
        victims = [rig.worker(*STAGES, app=APP), rig.worker("tracer", slot=TRACER_SLOT, app=APP)]
        rig.submit([Job(n=n) for n in range(jobs)])
        began = time.monotonic()
        for kill in range(1, kills + 1):
            due = jobs * len(flow.stages) * kill // (kills + 1)
            wait_long(rig, lambda: len(received.hop_spans), due, "spans, and the next kill")
            for victim in victims:
                victim.kill()
            print(f"SIGKILL {kill} of worker and tracer at {len(received.hop_spans):,} spans")
            victims = [
                rig.worker(*STAGES, app=APP),
                rig.worker("tracer", slot=TRACER_SLOT, app=APP),
            ]
        ended = "SELECT count(*) AS n FROM jobs WHERE status = 'done'"
        wait_long(rig, lambda: rig.sql(ended)[0]["n"], jobs, "jobs are done")
        rows = rig.sql("SELECT trace_id, seq FROM job_history")
        wait_long(rig, lambda: len(received.hop_spans), len(rows), "hops have spans")
        print(f"{jobs:,} jobs in {time.monotonic() - began:.0f} s, {len(rows):,} hops")
        for victim in victims:
            victim.stop()
        return compared(received, [(r["trace_id"], r["seq"]) for r in rows], jobs)


def wait_long(rig: Rig, count: object, wanted: int, what: str) -> None:
    """As `Rig.wait`, for as long as it goes on."""
    assert callable(count)
    while (seen := count()) < wanted:
        rig.wait(lambda seen=seen: count() > seen, f"{seen:,} of {wanted:,} {what}")  # type: ignore[misc]


def compared(received: Ids, hops: list[tuple[str, int]], jobs: int) -> list[str]:
    """What the collector has against what was committed."""
    expected = {_place(job, seq): bytes.fromhex(span_id(job, seq - 1)) for job, seq in hops}
    found = {place: parent for place, (parent, _) in received.hop_spans.items()}
    strangers = sum(parent not in expected for parent in received.own)
    print(
        f"{len(found):,} hop spans of {len({p[:16] for p in found}):,} traces, "
        f"{received.repeated:,} came again; {len(received.own):,} spans of handlers"
    )
    checks = {
        "hops without a span": len(expected.keys() - found.keys()),
        "spans without a hop": len(found.keys() - expected.keys()),
        "spans with another parent": sum(
            found[p] != expected[p] for p in found.keys() & expected.keys()
        ),
        "spans that came again and differed": received.changed,
        "jobs without exactly one trace": abs(jobs - len({p[:16] for p in found})),
        "jobs without a submission span": abs(jobs - len(received.roots)),
        "spans of handlers without their hop": strangers,
        "spans of handlers that came, were there none": not received.own,
    }
    return [f"{count:,} {what}" for what, count in checks.items() if count]


def export_again(rig: Rig, jobs: int) -> None:
    """The tracer, alone, over all of `job-state`; prints spans per second."""
    rig.sql("DELETE FROM tracer_offsets")
    # Each step's span, and each job's submission.
    wanted = jobs * (len(flow.stages) + 1)
    with SpanCounter() as received:
        rig.variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint}
        tracer = rig.worker("tracer", slot=TRACER_SLOT, app=APP)
        wait_long(rig, lambda: received.spans, wanted, "spans")
        tracer.stop()
    rate = received.rate or 0.0
    print(f"{received.since_first:,} spans after the first request: {rate:,.0f} spans/s")


def _place(job: str, seq: int) -> Place:
    return bytes.fromhex(job) + bytes.fromhex(span_id(job, seq))


if __name__ == "__main__":
    sys.exit(main())
