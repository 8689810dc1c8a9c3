"""Jobs of the bench: about 300 bytes of JSON, keyed by a random 32-hex traceId, no headers."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from confluent_kafka import Producer

#: Key of each job sent, and when (epoch seconds).
Sent = dict[bytes, float]


def make_job(number: int) -> tuple[bytes, bytes, float]:
    """Key, value and time of one job."""
    trace_id, now = uuid.uuid4().hex, time.time()
    job = {"traceId": trace_id, "i": number, "text": "x" * 200, "t0": now}
    return trace_id.encode(), json.dumps(job).encode(), now


class Loader:
    """Writes jobs into the first stage's topic, acknowledged by all replicas, none twice.

    Make it early: connecting takes time that belongs to no measurement.
    """

    def __init__(self, bootstrap: str, topic: str, *, linger_ms: int) -> None:
        self._topic = topic
        self._refused: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": linger_ms,
                "queue.buffering.max.messages": 1_000_000,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
            }
        )

    def burst(self, jobs: int) -> Sent:
        """Write `jobs` at once. Returns when the broker has them; raises if it refused one."""
        sent: Sent = {}
        for number in range(jobs):
            self._produce(number, sent)
            if number % 1000 == 0:
                self._producer.poll(0)
        self._finish()
        return sent

    def feed(self, rate: float, seconds: float, sent: Sent) -> None:
        """Write at `rate` jobs/s on an even beat, into `sent` just before each is written."""
        start = time.monotonic()
        for number in range(int(rate * seconds)):
            ahead = start + number / rate - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            self._produce(number, sent)
            self._producer.poll(0)
        self._finish()

    def _produce(self, number: int, sent: Sent) -> None:
        key, value, now = make_job(number)
        sent[key] = now
        self._producer.produce(self._topic, key=key, value=value, on_delivery=self._delivered)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._refused.append(str(error))

    def _finish(self) -> None:
        waiting = self._producer.flush(60)
        if waiting or self._refused:
            reason = self._refused[0] if self._refused else f"{waiting} unacknowledged after 60 s"
            raise RuntimeError(f"The broker did not take all jobs of {self._topic}: {reason}.")
