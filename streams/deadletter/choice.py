"""Which letters are meant: by stage, error, time or cluster. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from streams.deadletter.clusters import cluster_key
from streams.deadletter.letters import Letter


@dataclass(frozen=True, slots=True)
class Choice:
    """Conditions on a letter, joined by "and"; what is None says nothing."""

    flow: str | None = None
    stage: str | None = None
    #: The kind of error, or a part of its message; upper and lower case are one.
    error: str | None = None
    #: Epoch milliseconds: written at or after, and before.
    since_ms: int | None = None
    before_ms: int | None = None
    cluster: str | None = None

    @property
    def empty(self) -> bool:
        return self == Choice()

    def takes(self, letter: Letter) -> bool:
        return (
            self.flow in (None, letter.flow)
            and self.stage in (None, letter.stage)
            and (self.error is None or _speaks_of(letter, self.error.casefold()))
            and (self.since_ms is None or letter.at_ms >= self.since_ms)
            and (self.before_ms is None or letter.at_ms < self.before_ms)
            and (self.cluster is None or cluster_key(letter) == self.cluster)
        )


def _speaks_of(letter: Letter, error: str) -> bool:
    return error == letter.kind.casefold() or error in letter.message.casefold()
