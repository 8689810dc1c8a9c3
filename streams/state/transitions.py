"""The life of a job: every allowed transition, in one mapping. Pure.

`python -m streams.state.transitions` prints the diagram that the README shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from schemas.state import Status
from streams.errors import HandoffError


class Event(StrEnum):
    """What a committed step did to its job."""

    #: The step handed the job to another stage.
    HAND_ON = "hand on"
    #: The step was the last one: `Done`, or handed to a sink.
    FINISH = "finish"
    #: The step's record went to the dead-letter topic.
    FAIL = "fail"
    #: The job stands still until a signal, a timer or a person: a wait, or a parked effect.
    WAIT = "wait"
    #: An operator ended the job.
    CANCEL = "cancel"
    #: The same by a redrive: an operator brought the job back, and its stage did the next step.
    REDRIVE_HAND_ON = "redrive and hand on"
    REDRIVE_FINISH = "redrive and finish"
    REDRIVE_FAIL = "redrive and fail"
    REDRIVE_WAIT = "redrive and wait"

    @property
    def by_redrive(self) -> bool:
        return self.value.startswith("redrive")


class IllegalTransition(HandoffError):
    """An event came that the job's status does not allow; nothing was changed.

    Operator action: none on the job; `handoff trace` shows which step came twice or too late.
    """


#: What may happen to a job that is not at its end.
_OPEN: Final[Mapping[Event, Status]] = MappingProxyType(
    {
        Event.HAND_ON: Status.RUNNING,
        Event.WAIT: Status.WAITING,
        Event.FINISH: Status.DONE,
        Event.FAIL: Status.FAILED,
        Event.CANCEL: Status.CANCELLED,
    }
)

#: A redrive is no step of its own: what is committed is what the stage made of it.
_REDRIVEN: Final[Mapping[Event, Status]] = MappingProxyType(
    {
        Event.REDRIVE_HAND_ON: Status.RUNNING,
        Event.REDRIVE_WAIT: Status.WAITING,
        Event.REDRIVE_FINISH: Status.DONE,
        Event.REDRIVE_FAIL: Status.FAILED,
    }
)

#: None stands for a job that does not exist yet. What is not listed is illegal. `done` is final:
#: there is no dead letter that could bring it back. A job that waits for a person has one, too.
TRANSITIONS: Final[Mapping[Status | None, Mapping[Event, Status]]] = MappingProxyType(
    {
        None: _OPEN,
        Status.RUNNING: _OPEN,
        Status.WAITING: MappingProxyType({**_OPEN, **_REDRIVEN}),
        Status.DONE: MappingProxyType({}),
        Status.FAILED: _REDRIVEN,
        Status.CANCELLED: _REDRIVEN,
    }
)


def after(status: Status | None, event: Event) -> Status:
    """The status that `event` leads to. Raises `IllegalTransition` where the table has none."""
    try:
        return TRANSITIONS[status][event]
    except KeyError:
        allowed = ", ".join(TRANSITIONS[status]) or "nothing, ever"
        raise IllegalTransition(
            f"A job that is {status or 'not there yet'} cannot {event}; what may happen to it: "
            f"{allowed}.",
            status=status,
            event=event,
        ) from None


def may_follow(earlier: Status | None, later: Status) -> bool:
    """True when one step can lead from `earlier` to `later`."""
    return later in TRANSITIONS[earlier].values()


def diagram() -> str:
    """The table as a Mermaid state diagram; events that lead the same way share an arrow."""
    lines = ["stateDiagram-v2"]
    for status, row in TRANSITIONS.items():
        arrows: dict[Status, list[Event]] = {}
        for event, target in row.items():
            arrows.setdefault(target, []).append(event)
        lines += [f"    {status or '[*]'} --> {to}: {', '.join(e)}" for to, e in arrows.items()]
        if not row:
            lines.append(f"    {status} --> [*]")
    return "\n".join(lines)


if __name__ == "__main__":
    print(f"```mermaid\n{diagram()}\n```")
