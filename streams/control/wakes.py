"""From a waiting job to the record that makes its hop look. Pure.

A job that waits has no delivery. The record goes where its next step is done: to its stage's topic,
or to its flow's join topic if it waits for branches. It claims that step, as a redrive does, so it
is done once, whatever else comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas import headers as h
from schemas.ids import traceparent
from schemas.state import JOIN
from streams.control.order import Order
from streams.control.sender import Outgoing
from streams.names import Names


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits with its step `seq` at `stage`, for branches if `for_branches`. `ordered` is
    the job whose order it falls under: itself or an ancestor."""

    ordered: str
    job: str
    flow: str
    stage: str
    seq: int
    for_branches: bool
    born_us: int


def wake(waiting: Waiting, order: Order, names: Names) -> Outgoing:
    """The record for one that waits, under `order`."""
    stage = JOIN if waiting.for_branches else waiting.stage
    headers = [
        (h.CANCEL, waiting.ordered.encode()),
        (h.SEQ, b"%d" % waiting.seq),
        (h.FLOW, waiting.flow.encode()),
        (h.BORN, b"%d" % waiting.born_us),
        (h.TRACEPARENT, traceparent(waiting.job, waiting.seq).encode()),
    ]
    topic = names.stage_topic(waiting.flow, stage)
    return Outgoing(topic, waiting.job.encode(), order.value, headers)
