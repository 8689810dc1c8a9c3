"""What surrounds one run of a handler: what comes before it (1) and what it leads to (4, 5)."""

from __future__ import annotations

import random
from typing import Any

import structlog
from pydantic import ValidationError

from schemas.state import Status, job_error
from streams.config import Settings
from streams.context import Context, EffectRunner
from streams.control import CANCELLED, Standing, error_of, job_key
from streams.crashpoints import reach
from streams.flow import Stage
from streams.joins import BranchSource, Joined
from streams.outcome import Begin, Fork, Retry, Wait
from streams.runtime.budget import Budget
from streams.runtime.delivery import Delivery
from streams.runtime.judge import GiveUp, RetryAsked, WorldIsBad, judge, not_valid, unusable
from streams.runtime.pause import Pause
from streams.runtime.records import RecordWriter, now_us

_WAITS = (Fork, Wait, Begin)

log = structlog.get_logger(__name__)


class Runs:
    """Prepares deliveries of one stage for their runs and gives them their results.

    Belongs to the event loop. Nothing here raises for what a record or a handler did.
    """

    def __init__(
        self,
        flow_name: str,
        stage: Stage[Any, Any],
        settings: Settings,
        writer: RecordWriter,
        effects: EffectRunner,
        pause: Pause,
        rng: random.Random,
        budget: Budget | None = None,
        branches: BranchSource | None = None,
        control: Standing | None = None,
    ) -> None:
        self._flow_name, self._stage = flow_name, stage
        self._writer, self._effects, self._pause, self._rng = writer, effects, pause, rng
        self._budget = budget
        self._control = control or Standing()
        self._joined, self._branches = stage.joined, branches
        self._max_payload_bytes = settings.max_payload_bytes
        self._validate = stage.input.__pydantic_validator__.validate_json

    def prepare(self, d: Delivery) -> bool:
        """Validate. False when the record's fate is decided: a tombstone, a dead letter, or its job
        is cancelled."""
        value = d.message.value()
        if value is None or (self._control.cancelled and self.cancelled(d)):
            return False
        if d.fault is None and len(value) > self._max_payload_bytes:
            d.fault = f"it has {len(value)} bytes; the limit is {self._max_payload_bytes}"
        if d.fault is not None:
            self.give_up(d, unusable(d.place, d.fault))
            return False
        try:
            d.model = self._validate(value)
            if self._joined is not None and self._branches is not None:
                d.model = Joined(d.model, self._joined, self._branches)
        except ValidationError as e:
            self.give_up(d, not_valid(d.place, e, self._stage.input))
            return False
        reach("stage.decoded")
        return True

    def conclude(self, d: Delivery, outcome: Any) -> None:
        """Make `outcome` the result of `d` (5). Raises what `judge` is then to be asked about."""
        if isinstance(outcome, Retry):
            raise RetryAsked(outcome.after.total_seconds(), outcome.reason)
        if self._control.cancelled and isinstance(outcome, _WAITS) and self.cancelled(d):
            # It would wait, and its children would be cancelled one by one.
            return
        self._writer.conclude(d, outcome, now_us())
        d.model = None
        if d.held_bytes and self._budget is not None:
            self._budget.hold(d)

    def cancelled(self, d: Delivery) -> bool:
        """True, and `cancelled` the result of `d`, when its job is: itself, or with an ancestor. A
        record that only brings the order is believed before the order itself has come."""
        if d.result is not None and d.result.status is Status.CANCELLED:
            return True
        if d.cancelled_with is not None:
            error = error_of(job_key(d.cancelled_with), d.message.value(), d.job_id)
            ordered = d.cancelled_with
        else:
            order = self._control.cancels(d.job_id, d.shielded)
            if order is None:
                return False
            error, ordered = order.error_of(d.job_id), order.target
        self._writer.cancel(d, job_error(CANCELLED, error.message), ordered, now_us())
        d.model = None
        return True

    def judge(self, d: Delivery, error: BaseException) -> float | None:
        """Seconds until the next run of `d` in place, or None once its result is final."""
        if self.cancelled(d):
            # Nothing runs again for it, and there is nothing to mend.
            self._pause.dropped(d)
            return None
        stage = self._stage
        fate = judge(error, stage=stage.name, attempt=d.attempt, policy=stage.retry, rng=self._rng)
        if isinstance(fate, WorldIsBad):
            d.attempt -= 1
            return self._pause.failed(d, fate.reason, fate.after_s)
        if isinstance(fate, GiveUp):
            self.give_up(d, fate)
            return None
        log.info(
            "retry",
            stage=stage.name,
            job=d.job_id,
            attempt=d.attempt,
            wait_s=round(fate.wait_s, 3),
            in_place=fate.in_place,
            error=type(error).__name__,
        )
        d.why = fate.error
        if fate.in_place:
            return fate.wait_s
        self.wait_for_timer(d, fate.wait_s)
        return None

    def give_up(self, d: Delivery, fate: GiveUp) -> None:
        """A dead letter is the result of `d`."""
        self._writer.fail(d, fate.error, now_us(), fate.status)

    def wait_for_timer(self, d: Delivery, wait_s: float) -> None:
        """A step of its own: nothing is held in memory, and no restart forgets the attempts."""
        if self.cancelled(d):
            return
        assert d.why is not None, "what has spent an attempt says why"
        now = now_us()
        self._writer.wait(d, d.why, now + round(max(wait_s, 0.0) * 1e6), now)
        d.model = None

    def begin(self, d: Delivery) -> Context:
        """Count the attempt, start the clock; the context of this run."""
        d.attempt += 1
        d.started_us = now_us()
        return Context(
            d.job_id,
            self._flow_name,
            self._stage.name,
            d.seq,
            d.attempt,
            self._effects,
            d.keys_of,
            d.signal,
            d,
            self._control,
            d.shielded,
        )
