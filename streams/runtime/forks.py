"""What a fork is made of, and its records: one hand-off for each child, one for the join, a timer.

All of them are written in the transaction that commits the step which forked: a fork is there whole
or not at all. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel

from schemas import headers as h
from schemas.ids import MAX_CHILDREN, MAX_DEPTH, traceparent
from schemas.state import Status
from streams.errors import BadRecord, BadSetup
from streams.flow import Stage
from streams.joins.wire import Expectation, deadline_headers, encode_expectation
from streams.outcome import MAX_FORK_BYTES, Emit, Fork, OnMissing
from streams.runtime.delivery import Delivery, OutRecord, Target
from streams.timers.record import MAX_DUE_MS, AnyHeaders, Timer, encode

_DIGEST_BYTES = 8


class Child(NamedTuple):
    """One child: where it starts, and its payload."""

    target: Target
    ce_type: bytes
    data: bytes


class Split(NamedTuple):
    """A fork as it will be written. `due_us` (epoch) is its deadline.

    Without a `rule` it is an earlier fork, whose branches the job goes on waiting for.
    """

    join: str
    first: int
    expected: int
    children: tuple[Child, ...] = ()
    rule: OnMissing | None = None
    due_us: int | None = None
    #: Bytes of all payloads: they stay in memory until the step is committed.
    size: int = 0

    def state(self) -> bytes:
        """The field `fork` of the step's state (`schemas.state.Forked`)."""
        digest = blake2b(digest_size=_DIGEST_BYTES)
        for child in self.children:
            digest.update(b"%b\0%d\0%b" % (child.target.names, len(child.data), child.data))
        return orjson.dumps(
            {
                "join": self.join,
                "first": self.first,
                "expected": self.expected,
                "digest": digest.hexdigest(),
            }
        )


def split(
    stage: Stage[Any, Any],
    d: Delivery,
    fork: Fork,
    child: Callable[[BaseModel | Emit], Child],
    finished_us: int,
) -> Split:
    """The fork that `d` at `stage` leads to; `child` makes each of its children.

    Raises `BadSetup` for a join that the stage did not declare, `BadRecord` for one that is too
    large, too deep, or has more children than a job may have.
    """
    if fork.join not in stage.joins:
        declared = ", ".join(stage.joins) or "nothing"
        raise BadSetup(
            f"Stage {stage.name} forked job {d.job_id} to be joined by {fork.join}, but its "
            f"`joins` declares {declared}."
        )
    if d.children + len(fork.children) > MAX_CHILDREN or d.key.count(b"/") >= MAX_DEPTH:
        raise BadRecord(
            f"Job {d.job_id} would have more than {MAX_CHILDREN:,} children, or be forked more "
            f"than {MAX_DEPTH} times over."
        )
    children: list[Child] = []
    size = 0
    for each in fork.children:
        children.append(child(each))
        size += len(children[-1].data)
        if size > MAX_FORK_BYTES:
            raise BadRecord(
                f"The first {len(children):,} of {len(fork.children):,} children of job "
                f"{d.job_id} have more than {MAX_FORK_BYTES:,} bytes, the limit of one fork. "
                "Hand them references, or fork into groups whose stage forks again."
            )
    due_us = None
    if fork.timeout is not None:
        due_us = finished_us + round(fork.timeout.total_seconds() * 1e6)
    return Split(
        fork.join,
        d.children,
        len(children),
        tuple(children),
        fork.on_missing,
        None if due_us is None else min(due_us, MAX_DUE_MS * 1000),
        size,
    )


class ForkWriter:
    """Writes the records of one stage's forks."""

    def __init__(
        self, flow: str, stage: str, join_topic: str, timers_topic: str, static: h.Headers
    ) -> None:
        self._flow, self._stage = flow.encode(), stage
        self._join_topic, self._timers_topic, self._static = join_topic, timers_topic, static

    def records(self, d: Delivery, split: Split, time: bytes) -> Iterator[OutRecord]:
        """The records of `split` beside the state; `time` is when the handler ended, ISO 8601."""
        if split.rule is None:
            return
        yield self._expectation(d, split, split.rule, time)
        yield from self.children(
            d,
            (
                (n, c.target.topic, c.ce_type, c.data)
                for n, c in enumerate(split.children, split.first)
            ),
            time,
        )
        if split.due_us is not None:
            yield self.timer(d, split.due_us, deadline_headers(self._flow, d.key, d.seq, d.born_us))

    def children(
        self, d: Delivery, children: Iterable[tuple[int, str, bytes, bytes]], time: bytes
    ) -> Iterator[OutRecord]:
        """First records of children, each its number, topic, payload's type and payload."""
        fork = b"%d" % d.seq
        hop = b"0;%d;%b" % (d.born_us, self._flow)
        # The forking hop is the parent span of each child's first hop.
        context = traceparent(d.job_id, d.seq).encode()
        for n, topic, ce_type, data in children:
            key = b"%b/%d" % (d.key, n)
            headers = [
                (h.FORK, fork),
                (h.HOP, hop),
                (h.TRACEPARENT, context),
                (h.CE_ID, b"%b:0" % key),
                (h.CE_TYPE, ce_type),
                (h.CE_TIME, time),
                *self._static,
            ]
            if d.keys_of is not None:
                # A rerun's children stand for those of the original, which have the same numbers.
                headers.insert(0, (h.KEYS_OF, b"%b/%d" % (d.keys_of.encode(), n)))
            yield topic, key, data, headers

    def timer(self, d: Delivery, due_us: int, headers: AnyHeaders) -> OutRecord:
        """The record that comes back to the join topic, with `headers`, at `due_us`."""
        # Whole milliseconds, rounded up: never before its time.
        timer = Timer(-(-due_us // 1000), self._join_topic, d.job_id, b"{}", headers)
        return encode(timer, self._timers_topic)

    def _expectation(self, d: Delivery, split: Split, rule: OnMissing, time: bytes) -> OutRecord:
        expectation = Expectation(
            stage=split.join,
            forked_by=self._stage,
            first=split.first,
            expected=split.expected,
            rule=rule,
            deadline_ms=None if split.due_us is None else split.due_us // 1000,
            keys_of=d.keys_of,
        )
        headers = [
            (h.HOP, b"%d;%d;%b" % (d.seq, d.born_us, self._flow)),
            (h.TRACEPARENT, traceparent(d.job_id, d.seq).encode()),
            (h.CE_ID, b"%b:%d" % (d.key, d.seq)),
            (h.CE_TYPE, b"handoff.fork"),
            (h.CE_TIME, time),
            *self._static,
        ]
        return self._join_topic, d.key, encode_expectation(expectation), headers

    def arrival(self, d: Delivery, status: Status, value: bytes, time: bytes) -> OutRecord:
        """A child is over: what its parent's join is told, with the child's result or error."""
        parent, _, n = d.key.rpartition(b"/")
        headers = [
            (h.ARRIVAL, b"%b;%b;%d" % (n, status.value.encode(), d.seq)),
            (h.FLOW, self._flow),
            (h.TRACEPARENT, traceparent(d.job_id, d.seq).encode()),
            (h.CE_ID, b"%b:%d" % (d.key, d.seq)),
            (h.CE_TYPE, b"handoff.arrival"),
            (h.CE_TIME, time),
            *self._static,
        ]
        return self._join_topic, parent, value, headers
