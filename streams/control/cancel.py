"""Cancel: the order is written, then those that wait are woken. What the hops make of it is theirs.

1 read what is ordered already → 2 write the orders that are new → 3 wake what waits, itself or a
descendant, by the projection.

Killed between 2 and 3, the order stands: hops that have a delivery meet it, and `ControlKeeper`
wakes the others within a minute. Safe to repeat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from schemas.state import JOIN, Status
from streams.config import Settings
from streams.control.order import Kind, Order
from streams.control.reader import look
from streams.control.sender import Outgoing, send
from streams.control.wakes import Waiting, wake
from streams.crashpoints import reach
from streams.postgres import SyncConn, load_queries

SQL: Final = load_queries("streams.control")
#: Ids of one statement.
_SLICE: Final = 1_000


class Did(StrEnum):
    """What the command did about a job."""

    #: It waited, and its hop was told to look.
    WOKEN = "woken"
    #: It runs, is queued or has yet to come: its hop will see the order.
    ASKED = "asked"
    #: Nothing: it was over.
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Answer:
    """A job as it stood, and what was done. `status` is None for one that the projection does not
    know (yet). `order` is the one that stands, perhaps an earlier one."""

    job: str
    did: Did
    status: Status | None
    stage: str
    since: datetime | None
    order: Order | None = None


class Canceller:
    """Belongs to one thread. Raises `BadWorld` when Kafka or Postgres fails: do it again."""

    def __init__(self, settings: Settings, conn: SyncConn) -> None:
        self._settings, self._conn = settings, conn
        self._orders: dict[str, Order] = {}
        #: Job and step that were woken.
        self._woken: set[tuple[str, int]] = set()

    def cancel(self, ids: Sequence[str], *, by: str, reason: str) -> list[Answer]:
        """Cancel the jobs `ids` (whole ids), and with them all that they forked."""
        known = {row["id"]: row for row in self._rows("standings", ids)}
        open_ = [x for x in ids if not _over(known[x])]
        self._order(open_, by, reason)
        reach("cancel.ordered")
        woken = self.wake(open_)
        return [_answer(known[x], x in woken, self._orders.get(x)) for x in ids]

    def wake(self, ids: Sequence[str]) -> set[str]:
        """Wake what waits under the orders for `ids` and was not woken before; those of `ids` that
        waited themselves."""
        ordered = [x for x in ids if x in self._orders]
        found = [waiting_of(row) for row in self._rows("waiting", ordered)]
        new = [w for w in found if (w.job, w.seq) not in self._woken]
        names = self._settings.names
        send(self._settings, [wake(w, self._orders[w.ordered], names) for w in new])
        self._woken.update((w.job, w.seq) for w in new)
        reach("cancel.woken")
        return {w.job for w in found if w.job == w.ordered}

    def unfinished(self, ids: Sequence[str]) -> list[str]:
        """Those that are not over, or forked what is not."""
        return [row["id"] for row in self._rows("unfinished", ids)]

    def _order(self, ids: Sequence[str], by: str, reason: str) -> None:
        standing = look(self._settings).cancelled
        now = datetime.now(UTC)
        topic = self._settings.names.control_topic
        orders = {x: standing.get(x) or Order(Kind.CANCEL, x, by, now, reason) for x in ids}
        new = [o for x, o in orders.items() if x not in standing]
        send(self._settings, [Outgoing(topic, o.key, o.value, []) for o in new])
        self._orders |= orders

    def _rows(self, query: str, ids: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        for n in range(0, len(ids), _SLICE):
            yield from self._conn.execute(SQL[query], {"ids": list(ids[n : n + _SLICE])})


def waiting_of(row: Mapping[str, Any]) -> Waiting:
    """A row of the statement `waiting`."""
    return Waiting(
        ordered=row["ordered"],
        job=row["trace_id"],
        flow=row["flow"],
        stage=row["stage"],
        seq=row["seq"],
        for_branches=tuple(row["handed_to"]) == (JOIN,),
        born_us=row["born_us"] or 0,
    )


def _over(row: Mapping[str, Any]) -> bool:
    return row["known"] and Status(row["status"]).terminal


def _answer(row: Mapping[str, Any], woken: bool, order: Order | None) -> Answer:
    did = Did.OVER if _over(row) else Did.WOKEN if woken else Did.ASKED
    status = Status(row["status"]) if row["known"] else None
    return Answer(row["id"], did, status, row["stage"] or "", row["updated_at"], order)
