"""The control: Faust agents over channels that librdkafka feeds, and nothing more.

Batches in order, one transaction per batch, JSON only: no schema, no headers, no retries, no
rebalance handling. It bounds what handoff could reach and is the divisor of every ratio.
Run with the arguments `worker -l warn --without-web`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import faust
import orjson
from confluent_kafka import Consumer, Producer

from infra.bench.peers import setting
from infra.bench.peers.bare_loop import next_offsets


def faust_session() -> dict[str, Any]:
    # Faust joins a consumer group of its own even when no agent reads a topic; after a kill a
    # restart waits for that group's dead member.
    if not setting.SESSION_MS:
        return {}
    seconds = setting.SESSION_MS / 1000
    return {"broker_session_timeout": seconds, "broker_heartbeat_interval": seconds / 4}


app = faust.App(
    f"{setting.PREFIX}control",
    broker=f"kafka://{setting.BOOTSTRAP}",
    web_enabled=False,
    store="memory://",
    datadir=setting.STATE_DIR,
    **faust_session(),
)


def group_protocol() -> dict[str, Any]:
    """The newer protocol is faster; after a kill only the classic one has a short session."""
    if not setting.SESSION_MS:
        return {"group.protocol": "consumer"}
    return {
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        **setting.short_session(),
    }


async def wait_for_model(job: setting.Job) -> setting.Job:
    await asyncio.sleep(setting.SLEEP_S)
    return job


def pump(consumer: Any, channel: Any, loop: asyncio.AbstractEventLoop) -> None:
    """The polling thread: one batch at a time into the channel, which holds one."""
    while True:
        messages = []
        for message in consumer.consume(setting.BATCH, 0.02):
            if message.error():
                sys.stderr.write(f"{message.error()}\n")
            else:
                messages.append(message)
        if messages:
            batch = (messages, consumer.consumer_group_metadata())
            asyncio.run_coroutine_threadsafe(channel.put(batch), loop).result()


def declare(stage: str) -> None:
    """One agent: a batch from the channel, one transaction for its states, hand-offs, offsets."""
    channel = app.channel(maxsize=1)
    group = setting.topic(stage)
    onward = setting.topic(setting.HOPS[stage])
    consumer = Consumer(setting.consumer_options(group) | group_protocol())
    producer = Producer(setting.producer_options(f"{group}-0"))
    producer.init_transactions()
    consumer.subscribe([setting.topic(stage)])

    def commit(messages: Any, membership: Any) -> None:
        producer.send_offsets_to_transaction(next_offsets(messages), membership)
        producer.commit_transaction()

    async def work(stream: Any) -> None:
        loop = asyncio.get_running_loop()
        async for messages, membership in stream:
            producer.begin_transaction()
            jobs = [orjson.loads(m.value()) for m in messages]
            if setting.SLEEP_S:
                jobs = await asyncio.gather(*map(wait_for_model, jobs))
            for message, job in zip(messages, jobs, strict=True):
                value = setting.step(job, stage)
                producer.produce(setting.JOB_STATE, key=message.key(), value=value)
                producer.produce(onward, key=message.key(), value=value)
            await loop.run_in_executor(None, commit, messages, membership)

    async def start() -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=pump, args=(consumer, channel, loop), daemon=True).start()

    app.agent(channel, name=stage)(work)
    app.task(start)


for each in setting.HOPS:
    declare(each)
if __name__ == "__main__":
    app.main()
