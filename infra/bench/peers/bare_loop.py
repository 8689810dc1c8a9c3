"""A bare transactional consume-transform-produce loop: the practical limit in Python.

One thread, one consumer and one producer per stage; one transaction per batch, in order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
from confluent_kafka import Consumer, Producer, TopicPartition

from infra.bench.peers import setting


def next_offsets(messages: Iterable[Any]) -> list[TopicPartition]:
    """The offsets to commit once all of `messages`, in order of their offsets, are done."""
    ends = {(m.topic(), m.partition()): m.offset() + 1 for m in messages}
    return [TopicPartition(t, p, offset) for (t, p), offset in ends.items()]


def run(stage: str) -> None:
    """Work on one stage until the process is killed; a crash repeats nothing and loses nothing."""
    group = setting.topic(stage)
    consumer = Consumer(setting.consumer_options(group) | setting.short_session())
    producer = Producer(setting.producer_options(f"{group}-0"))
    producer.init_transactions()
    consumer.subscribe([setting.topic(stage)])
    pool = ThreadPoolExecutor(1000) if setting.SLEEP_S else None
    onward = setting.topic(setting.HOPS[stage])
    while True:
        messages: list[Any] = [m for m in consumer.consume(setting.BATCH, 0.02) if not m.error()]
        if not messages:
            continue
        producer.begin_transaction()
        if pool:
            list(pool.map(lambda _: time.sleep(setting.SLEEP_S), messages))
        for message in messages:
            value = setting.step(orjson.loads(message.value()), stage)
            producer.produce(setting.JOB_STATE, value, message.key())
            producer.produce(onward, value, message.key())
        producer.send_offsets_to_transaction(
            next_offsets(messages), consumer.consumer_group_metadata()
        )
        producer.commit_transaction()


def main() -> None:
    threads = [threading.Thread(target=run, args=(stage,)) for stage in setting.HOPS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
