"""`python -m infra.bench`: run the peers and handoff interleaved, print tables, write JSON."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from infra.bench.measure import Plan
from infra.bench.report import goal_lines, goals, section, sound
from infra.bench.roster import CONTROL, OWN_PEERS, PEERS, Workload
from infra.bench.rounds import Results, as_json, note, run_round, warm_broker
from infra.bench.trial import Site
from infra.services import ServiceFailed, services

#: `--quick`: does it all work? Its figures mean little.
_QUICK = Plan(jobs=8_000, io_jobs=2_000, seconds=5.0, crash_jobs=20_000, limit_s=90.0)
#: A ratio needs a median; the other workloads are here for a verdict.
_ROUNDS = {Workload.THROUGHPUT: 3, Workload.TRACING: 5}
_DEFAULT = (Workload.THROUGHPUT, Workload.IO)


def chosen_peers(text: str | None) -> list[str]:
    """Names in a comma-separated list; the control is always among them: it is the divisor."""
    if text is None:
        return [name for name, peer in PEERS.items() if peer.by_default]
    names = [n.strip() for n in text.split(",") if n.strip()]
    unknown = sorted(set(names) - PEERS.keys())
    if unknown:
        raise typer.BadParameter(f"There is no peer {unknown[0]}; there are {', '.join(PEERS)}.")
    return list(dict.fromkeys([CONTROL, *names]))


def main(
    workload: Annotated[
        list[Workload] | None, typer.Option(help="Repeat for several; throughput and io if none.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=500, help="Jobs of a backlog or burst.")] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds; if none 3 of throughput, 5 of tracing, 1 of others."),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(help=f"Some of {', '.join(PEERS)}; all but the + ones if none."),
    ] = None,
    kills: Annotated[int, typer.Option(min=1, help="Kills of the crash workload.")] = 3,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write all figures and settings here.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Small sizes, one round: does it work?")] = False,
) -> None:
    """Measure handoff and its peers in turn on the same broker.

    Exit code 0 says that every peer could be measured and that handoff lost and doubled nothing,
    1 that it is not so, 3 that the services did not start. Goals of speed are printed, not
    enforced, since they hang on the machine.
    """
    plan = replace(_QUICK if quick else Plan(), kills=kills)
    if jobs is not None:
        plan = replace(plan, jobs=jobs, io_jobs=jobs, crash_jobs=jobs)
    names, results = chosen_peers(peers), Results()
    try:
        with services() as at:
            directory = Path(tempfile.mkdtemp(prefix="handoff-bench-"))
            note(f"Logs of the peers are kept in {directory}.")
            site = Site(at.kafka_bootstrap_servers, at.database_url, directory, at.pids)
            run(site, workload or _DEFAULT, plan, rounds or (1 if quick else None), names, results)
            if json_path is not None:
                json_path.write_text(as_json(site, plan, results))
    except ServiceFailed as e:
        note(e.message)
        raise typer.Exit(3) from None
    for which, peer, turn, reason in results.failures:
        note(f"Not measured: {which}, round {turn + 1}, {peer}: {reason}")
    raise typer.Exit(0 if sound(results.measurements, results.failures) else 1)


def run(
    site: Site,
    workloads: Iterable[Workload],
    plan: Plan,
    rounds: int | None,
    peers: Sequence[str],
    results: Results,
) -> None:
    """Measure, and print each workload's table as soon as it is complete."""
    warm_broker(site)
    for each in workloads:
        for turn in range(rounds or _ROUNDS.get(each, 1)):
            run_round(site, each, plan, turn, OWN_PEERS.get(each, peers), results)
        print(section(each, results.measurements), flush=True)
    print(goal_lines(goals(results.measurements)), flush=True)


if __name__ == "__main__":
    typer.run(main)
