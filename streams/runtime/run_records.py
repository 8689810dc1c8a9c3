"""Records of runs (decision 16): what begins one, its calls and its timers. All of a step's are
written in the transaction that commits the step. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import orjson

from schemas import headers as h
from schemas.ids import traceparent
from streams.names import Names
from streams.orchestration.journal import Asked, RunTurn
from streams.orchestration.run import CALL
from streams.orchestration.wire import Beginning, encode_beginning, timer_headers
from streams.runtime.delivery import Delivery, OutRecord
from streams.runtime.forks import ForkWriter

_DIGEST_BYTES = 8


class Advance(NamedTuple):
    """What a step does of a run: `beginning` begins one, over the payload `input`; `asked` are the
    commands that it issues. `state` is the field `run` of the step's state, JSON."""

    state: bytes
    run: int
    beginning: Beginning | None = None
    input: bytes = b""
    asked: Sequence[Asked] = ()

    @property
    def size(self) -> int:
        """Bytes of all payloads."""
        return len(self.input) + sum(len(each.value) for each in self.asked)


def beginning(d: Delivery, what: Beginning, payload: bytes) -> Advance:
    """`d` begins a run, or a wait, of its stage."""
    waits = [] if what.signal is None else [f"signal {what.signal}"]
    state = {"stage": what.stage, "first": what.first_child, "waits": waits}
    return Advance(orjson.dumps(state), d.seq, what, payload)


def advance(turn: RunTurn) -> Advance:
    """What a record of the join topic led to."""
    calls = [a for a in turn.asked if a.kind == CALL]
    state: dict[str, object] = {
        "stage": turn.stage,
        "first": turn.children - len(calls),
        "calls": [a.name for a in calls],
        "waits": turn.waits,
        "ended": turn.end is not None,
    }
    if calls:
        digest = blake2b(digest_size=_DIGEST_BYTES)
        for each in calls:
            digest.update(b"%b\0%d\0%b" % (each.name.encode(), len(each.value), each.value))
        state["digest"] = digest.hexdigest()
    return Advance(orjson.dumps(state), turn.run, asked=turn.asked)


class RunWriter:
    """Writes the records of the runs that one stage, or the join agent, moves on."""

    def __init__(self, flow: str, names: Names, forks: ForkWriter, static: h.Headers) -> None:
        self._flow, self._names, self._forks, self._static = flow, names, forks, static
        self._join_topic = names.join_topic(flow)

    def records(self, d: Delivery, advance: Advance, time: bytes) -> Iterator[OutRecord]:
        """Those beside the state; `time` is when the handler ended, ISO 8601."""
        if advance.beginning is not None:
            yield self._beginning(d, advance.beginning, advance.input, time)
        calls = (
            (a.child or 0, self._names.stage_topic(self._flow, a.name), a.ce_type.encode(), a.value)
            for a in advance.asked
            if a.kind == CALL
        )
        yield from self._forks.children(d, calls, time)
        flow = self._flow.encode()
        for each in advance.asked:
            if each.due_us is not None:
                due = timer_headers(flow, d.key, advance.run, each.n, d.born_us)
                yield self._forks.timer(d, each.due_us, due)

    def _beginning(self, d: Delivery, what: Beginning, payload: bytes, time: bytes) -> OutRecord:
        headers = [
            (h.HOP, b"%d;%d;%b" % (d.seq, d.born_us, self._flow.encode())),
            (h.RUN, what.stage.encode()),
            (h.TRACEPARENT, traceparent(d.job_id, d.seq).encode()),
            (h.CE_ID, b"%b:%d" % (d.key, d.seq)),
            (h.CE_TYPE, b"handoff.run"),
            (h.CE_TIME, time),
            *self._static,
        ]
        return self._join_topic, d.key, encode_beginning(what, payload), headers
