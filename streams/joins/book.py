"""What records of the join topic do to the joins of their jobs: the rules, in memory. Pure.

A set of branches is an integer, a bit for each: what comes twice, or in another order, gives the
same set. The record that completes a join (or fails it, or reopens it) is written down with it, so
it is known again when it comes again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from schemas.state import Status
from streams.joins.joined import JoinRef
from streams.joins.wire import Arrival, Cancel, Deadline, Expected, JoinRecord, Reopen

#: Branches that a message names.
_NAMED: Final = 5

#: Partition and offset of a record of the join topic.
Place = tuple[int, int]


class Cancelled(NamedTuple):
    """A job is cancelled: itself or with its ancestor `job`. `why` is for people."""

    job: str
    why: str


class Incoming(NamedTuple):
    """One record of the join topic; `parent` is its key, `at_us` (epoch) when it was written.
    `cancelled` if the record says that the parent is, as a `Cancel` does, and the end of a branch
    that was cancelled with it: it then closes what it finds open."""

    parent: str
    place: Place
    record: JoinRecord
    at_us: int = 0
    cancelled: Cancelled | None = None


class Turn(NamedTuple):
    """The record at `place` writes its parent's step `seq`: `outcome` joined, failed, cancelled, or
    open when it reopened a join that is still not complete."""

    place: Place
    seq: int
    outcome: str
    stage: str
    reason: str
    ref: JoinRef
    born_us: int
    keys_of: str | None
    shielded: str | None = None

    @property
    def parent(self) -> str:
        return self.ref.parent


@dataclass(slots=True)
class Join:
    """One join as it is kept; see the table `joins`. `closed` and `reopened` are places of records
    in the topic as it is now; None also for one in an earlier topic of that name."""

    parent: str
    seq: int
    stage: str
    first: int
    expected: int
    rule: str
    has_deadline: bool
    born_us: int
    keys_of: str | None
    step: int
    status: str = "open"
    done: int = 0
    failed: int = 0
    reason: str = ""
    closed: Place | None = None
    reopened: Place | None = None
    shielded: str | None = None
    changed: bool = False

    def holds(self, branch: int) -> bool:
        return self.first <= branch < self.first + self.expected

    def take(self, branch: int, status: Status) -> bool:
        """A branch has come. One that is done stays so. False if that changes nothing."""
        bit = 1 << (branch - self.first)
        if status is Status.DONE:
            done, failed = self.done | bit, self.failed & ~bit
        elif not self.done & bit:
            done, failed = self.done, self.failed | bit
        else:
            return False
        if (done, failed) == (self.done, self.failed):
            return False
        self.done, self.failed, self.changed = done, failed, True
        return True

    def settle(self, place: Place) -> None:
        """Close it by the record at `place` if nothing is missing any more, or too much."""
        if self.status != "open":
            return
        done, failed = self.done.bit_count(), self.failed.bit_count()
        if done == self.expected or (self.rule == "errors" and done + failed == self.expected):
            self._close("joined", place)
        elif failed and self.rule == "fail":
            self._close("failed", place, self._why("when one failed"))

    def time_is_up(self, place: Place) -> None:
        if self.status == "open" and self.has_deadline:
            if self.rule == "errors":
                self._close("joined", place)
            else:
                self._close("failed", place, self._why("when the time was up"))

    def cancel(self, place: Place, by: Cancelled) -> None:
        """Its job is cancelled, unless only an ancestor is from which it is shielded."""
        if self.status == "open" and (self.shielded is None or len(by.job) >= len(self.shielded)):
            self._close("cancelled", place, by.why)

    def reopen(self, place: Place, failed_step: int) -> None:
        """An operator brought the job back: it waits for whatever is missing."""
        if self.status != "failed" or self.step + 1 != failed_step:
            return
        self.status, self.rule, self.has_deadline, self.reason = "open", "wait", False, ""
        self.step, self.closed, self.reopened, self.changed = failed_step, None, place, True
        self.settle(place)
        if self.status == "open":
            # That it waits again is a step of the job.
            self.step += 1

    def _close(self, status: str, place: Place, reason: str = "") -> None:
        self.status, self.closed, self.reason, self.changed = status, place, reason, True

    def _why(self, when: str) -> str:
        done, failed = self.done.bit_count(), self.failed.bit_count()
        open_ = self.expected - done - failed
        missing = [n for n in range(self.expected) if not self.done >> n & 1]
        named = ", ".join(
            f"/{self.first + n} {'failed' if self.failed >> n & 1 else 'has not come'}"
            for n in missing[:_NAMED]
        )
        rest = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
        return (
            f"Of {self.expected:,} branches {done:,} were done, {failed:,} failed and {open_:,} "
            f"had not come {when}: {named}{rest}. Redrive the branches' dead letters, then this "
            "one: the join then waits for all."
        )

    def turns(self) -> Iterator[Turn]:
        """Of the record that closed it, and of another that had reopened it."""
        ref = JoinRef(
            parent=self.parent,
            seq=self.seq,
            first=self.first,
            expected=self.expected,
            done=self.done.bit_count(),
            failed=self.failed.bit_count(),
        )
        more = ref, self.born_us, self.keys_of, self.shielded
        if self.closed is not None:
            yield Turn(self.closed, self.step + 1, self.status, self.stage, self.reason, *more)
        if self.reopened is not None and self.reopened != self.closed:
            yield Turn(self.reopened, self.step, "open", self.stage, "", *more)


class Late(NamedTuple):
    """An arrival to be kept; `late`: its join had handed the results on already."""

    parent: str
    arrival: Arrival
    late: bool


class Book:
    """The joins of the jobs that a batch is about.

    Those in `new` are first heard of in this batch. Nothing is decided about them before the record
    that says so: were one closed by an earlier record, which another agent has committed already
    without knowing, nobody would ever hand it on.
    """

    def __init__(self, joins: Iterable[Join], new: Collection[tuple[str, int]] = ()) -> None:
        self._joins: defaultdict[str, list[Join]] = defaultdict(list)
        self._new: dict[tuple[str, int], Join] = {}
        for join in joins:
            if (join.parent, join.seq) in new:
                self._new[join.parent, join.seq] = join
            else:
                self._joins[join.parent].append(join)
        self._early: defaultdict[str, list[tuple[int, Status]]] = defaultdict(list)
        #: By parent and branch.
        self._kept: defaultdict[str, dict[int, Late]] = defaultdict(dict)

    def early(self, parent: str, branch: int, status: Status) -> None:
        """A branch that came, in an earlier batch, before its fork's expectation."""
        self._early[parent].append((branch, status))

    def write(self, incoming: Incoming) -> None:
        """Take one record, in the order of offsets."""
        parent, place, record, _, cancelled = incoming
        joins = self._joins[parent]
        match record:
            case Arrival():
                self._arrive(parent, place, record, cancelled)
            case Expected(seq=seq):
                self._open(parent, seq)
                for join in joins:
                    if join.seq == seq:
                        join.settle(place)
            case Deadline(seq=seq):
                for join in joins:
                    if join.seq == seq:
                        join.time_is_up(place)
            case Reopen(seq=seq):
                for join in joins:
                    join.reopen(place, seq)
            case Cancel(seq=seq):
                # The wait that it names, no other: who reads this again must close nothing by
                # it that it did not close before. Without an open join nothing waits here.
                for join in joins:
                    if cancelled is not None and join.step == seq:
                        join.cancel(place, cancelled)

    def _open(self, parent: str, seq: int) -> None:
        """A new join, with those of its branches that came before it."""
        join = self._new.pop((parent, seq), None)
        if join is None:
            return
        for branch, status in self._early.get(parent, ()):
            if join.holds(branch):
                join.take(branch, status)
        for branch, kept in self._kept[parent].items():
            if join.holds(branch):
                join.take(branch, kept.arrival.status)
        self._joins[parent].append(join)

    def _arrive(
        self, parent: str, place: Place, arrival: Arrival, cancelled: Cancelled | None
    ) -> None:
        late = False
        for join in self._joins[parent]:
            if join.holds(arrival.number):
                late = join.status in ("joined", "cancelled")
                if not late:
                    # Once only: by one that comes again nothing may be closed that was open then.
                    if join.take(arrival.number, arrival.status) and cancelled is not None:
                        join.cancel(place, cancelled)
                    join.settle(place)
        kept = self._kept[parent]
        known = kept.get(arrival.number)
        # A branch that comes twice in a batch: its later step counts, unless it is too late.
        if known is None or (arrival.seq > known.arrival.seq and not late):
            kept[arrival.number] = Late(parent, arrival, late)

    @property
    def arrivals(self) -> list[Late]:
        """What is to be kept, each branch once."""
        return [late for kept in self._kept.values() for late in kept.values()]

    @property
    def changed(self) -> list[Join]:
        return [join for joins in self._joins.values() for join in joins if join.changed]

    def turns(self, places: set[Place]) -> list[Turn]:
        """Whose turn it is, of the records at `places`."""
        return [
            turn
            for joins in self._joins.values()
            for join in joins
            if join.closed in places or join.reopened in places
            for turn in join.turns()
            if turn.place in places
        ]
