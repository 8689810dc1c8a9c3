"""What a fork is made of, and its records: one hand-off for each child, one for the join, a timer.

All of them are written in the transaction that commits the step which forked: a fork is there whole
or not at all. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

import orjson

from schemas import headers as h
from schemas.ids import traceparent
from schemas.state import Status
from streams.joins.wire import Expectation, deadline_headers, encode_expectation
from streams.outcome import OnMissing
from streams.runtime.delivery import Delivery, OutRecord, Target
from streams.timers.record import Timer, encode

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

    @property
    def size(self) -> int:
        """Bytes of all payloads: they stay in memory until the step is committed."""
        return sum(len(child.data) for child in self.children)

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
        parent, seq = d.job_id, d.seq
        fork = b"%d" % seq
        hop = b"0;%d;%b" % (d.born_us, self._flow)
        # The forking hop is the parent span of each child's first hop.
        context = traceparent(parent, seq).encode()
        for n, child in enumerate(split.children, split.first):
            key = b"%b/%d" % (d.key, n)
            headers = [
                (h.FORK, fork),
                (h.HOP, hop),
                (h.TRACEPARENT, context),
                (h.CE_ID, b"%b:0" % key),
                (h.CE_TYPE, child.ce_type),
                (h.CE_TIME, time),
                *self._static,
            ]
            if d.keys_of is not None:
                # A rerun's children stand for those of the original, which have the same numbers.
                headers.insert(0, (h.KEYS_OF, b"%b/%d" % (d.keys_of.encode(), n)))
            yield child.target.topic, key, child.data, headers
        if split.due_us is not None:
            due = deadline_headers(self._flow, d.key, seq, d.born_us)
            due_ms = -(-split.due_us // 1000)
            timer = Timer(due_ms, self._join_topic, parent, b"{}", due)
            yield encode(timer, self._timers_topic)

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
