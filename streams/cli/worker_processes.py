"""`handoff worker --processes N`: as many workers as the machine has cores to give."""

from __future__ import annotations

from collections.abc import Sequence

from streams.cli.output import BAD_SETUP, FENCED, say
from streams.cli.prepare import worker_spec
from streams.cli.supervise import ChildSpec, Supervisor, stop_on_signals
from streams.config import Settings

_TICK_S = 0.2


def specs(processes: int, stages: Sequence[str], app: str, settings: Settings) -> list[ChildSpec]:
    """One worker per process. Slot S of N processes stands for the slots S*N to S*N+N-1, so that
    replicas that are numbered (a StatefulSet's ordinal) do not meet; health ports follow on."""
    found = []
    for n in range(processes):
        slot = settings.slot * processes + n
        port = ("--health-port", str(settings.health_port + n)) if settings.health_port else ()
        found.append(worker_spec(f"worker {slot}", app, {}, *stages, *port, slot=slot))
    return found


def run(children: Sequence[ChildSpec], settings: Settings) -> int:
    """Until SIGTERM or SIGINT; an exit code. A process that dies is started again, with back-off;
    what no start can mend, a wrong set-up or a slot that is taken, ends them all with its code."""
    supervisor = Supervisor(say, fatal=(BAD_SETUP, FENCED))
    with stop_on_signals() as request:
        try:
            for each in children:
                supervisor.start(each)
            while supervisor.fault is None and not request.stop.wait(_TICK_S):
                supervisor.tick()
        finally:
            supervisor.stop(settings.stop_s, request.hurry)
    return supervisor.fault or 0
