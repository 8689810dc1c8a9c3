"""What is ordered now: the fold of the control topic, in memory."""

from __future__ import annotations

import structlog

from schemas.ids import parent_of
from streams.control.order import Kind, Order, decode, target_of

log = structlog.get_logger(__name__)


class Standing:
    """Written by one thread, read by any. Equal for all workers that have read equally far."""

    def __init__(self) -> None:
        #: By job id.
        self.cancelled: dict[str, Order] = {}
        #: By `<flow>.<stage>`.
        self.paused: dict[str, Order] = {}

    def apply(self, key: bytes | None, value: bytes | None) -> Kind | None:
        """Take one record, in the order of offsets; what it was about, None if it is no order."""
        about = target_of(key)
        if about is None:
            log.error("unreadable_order", key=repr(key)[:100])
            return None
        kind, target = about
        held = self.cancelled if kind is Kind.CANCEL else self.paused
        if value is None:
            held.pop(target, None)
            return kind
        order = decode(key, value)
        if order is None:
            log.error("unreadable_order", key=repr(key)[:100])
            return None
        # Who asks again changes nothing: the first one has cancelled it.
        if kind is Kind.PAUSE or target not in held:
            held[target] = order
        return kind

    def cancels(self, job_id: str, shielded: str | None = None) -> Order | None:
        """The order that cancels the job: its own, or that of its nearest ancestor. Those above the
        job `shielded` do not count."""
        cancelled = self.cancelled
        if not cancelled:
            return None
        job: str | None = job_id
        while job is not None:
            order = cancelled.get(job)
            if order is not None:
                return order
            job = None if job == shielded else parent_of(job)
        return None

    def pauses(self, flow: str, stage: str) -> Order | None:
        return self.paused.get(f"{flow}.{stage}")
