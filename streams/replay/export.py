"""From a job to the content of a bundle."""

from __future__ import annotations

from collections.abc import Sequence

from streams.config import Settings
from streams.flow import Flow
from streams.replay.bundle import bundle_of, write_bundle
from streams.replay.forks import Forks
from streams.replay.lookup import lookup
from streams.replay.paths import Path
from streams.replay.selection import OfTrace
from streams.replay.sources import PlacesSource
from streams.state.queries import find_job


def export_job(
    settings: Settings, flow: Flow, id_prefix: str, hide: Sequence[Path] = ()
) -> tuple[bytes, list[str]]:
    """The file's content, and a sentence for each step whose record is gone.

    Raises `NoSuchJob`, or `BadWorld` when Kafka or Postgres does not answer.
    """
    with lookup(settings, flow) as found:
        job = find_job(found.conn, id_prefix).trace_id
        source = PlacesSource(settings, found, OfTrace(job, children=False), flow).source()
        forks = Forks(settings, found.conn)
        cases = [case for batch in source.batches() for case in forks.complete(batch)]
    gone = [
        f"The record of step {case.step.seq if case.step else '?'} at stage {case.stage} "
        f"({case.place}) is not in the file: {case.because}."
        for case in cases
        if case.record is None and not case.skip
    ]
    return write_bundle(bundle_of(job, flow, cases, settings, hide)), gone
