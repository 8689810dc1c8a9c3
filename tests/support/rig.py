"""A flow on the real services, with worker processes that a test starts, kills and judges.

    with Rig(settings, tmp_path) as rig:
        worker = rig.worker()
        ids = rig.submit([Job(n=n) for n in range(300)])
        rig.wait_results(300)
        assert_all_done_once(rig, ids)

Facts come from topics, group offsets and Postgres, never from what a worker says of itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import psycopg
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from psycopg.rows import DictRow, dict_row

from schemas import headers as h
from schemas.state import JobState
from streams import Flow, topics
from streams.client import Client
from streams.config import Settings
from tests.support import flows
from tests.support.flows import Job
from tests.support.target import SOCKET_VARIABLE, Target
from tests.support.topics import Record, TopicLog
from tests.support.worker import Worker

#: Generous: a fact that does not come within this time does not come.
PATIENCE_S = 90.0
_LOOK_EVERY_S = 0.03

Header = tuple[str, bytes | None]


def job_id(n: int) -> str:
    return f"{n + 1:032x}"


class Rig:
    """Topics of a flow, its effect target, worker processes and readers; all end with the block."""

    def __init__(
        self, settings: Settings, folder: Path, flow: Flow = flows.flow, **changes: Any
    ) -> None:
        self.settings = settings.model_copy(update=changes)
        self.flow = flow
        self._folder = folder
        self._stack = ExitStack()
        self.workers: list[Worker] = []
        #: Of the environment of workers that are started from now on.
        self.variables: dict[str, str] = {}
        self._logs: dict[tuple[str, bool], TopicLog] = {}

    def __enter__(self) -> Self:
        topics.apply(self.flow, self.settings)
        self.target = self._stack.enter_context(Target(self._folder / "target"))
        servers = {"bootstrap.servers": self.settings.kafka_bootstrap_servers}
        self.admin = AdminClient({**servers, "reconnect.backoff.ms": 20})
        self._producer = Producer(
            {
                "bootstrap.servers": self.settings.kafka_bootstrap_servers,
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "message.max.bytes": 4 * 2**20,
                "linger.ms": 5,
            }
        )
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self.workers:
            worker.clean_up()
        for log in self._logs.values():
            log.close()
        self._stack.close()

    # -- workers -------------------------------------------------------------------------------

    def worker(
        self, *stages: str, slot: int = 0, app: str = "tests.support.flows:flow", **changes: Any
    ) -> Worker:
        """Start a worker for `stages` (all and the projector if none); `changes` are settings."""
        worker = Worker(
            self.settings.model_copy(update={"slot": slot, **changes}),
            self._folder / f"worker-{len(self.workers)}.log",
            *stages,
            app=app,
            variables={SOCKET_VARIABLE: str(self.target.socket), **self.variables},
        )
        self.workers.append(worker)
        return worker

    def wait(self, fact: Callable[[], object], what: str) -> None:
        """Wait until `fact` holds. Fails early when a worker ends that should not."""
        deadline = time.monotonic() + PATIENCE_S
        while not fact():
            for worker in self.workers:
                if worker.expected_to_run and not worker.running:
                    code = worker.process.returncode
                    raise AssertionError(
                        f"slot {worker.slot} ended with {code} before {what}:\n{worker.log[-6000:]}"
                    )
            if time.monotonic() > deadline:
                logs = "\n".join(f"-- slot {w.slot}\n{w.log[-3000:]}" for w in self.workers[-2:])
                raise AssertionError(f"did not come: {what}\n{logs}")
            time.sleep(_LOOK_EVERY_S)

    def wait_results(self, count: int) -> None:
        """Wait until `count` results lie on the sink."""
        self.wait(lambda: self.finished() >= count, f"{count} results lie on the sink")

    # -- writing -------------------------------------------------------------------------------

    def submit(
        self, jobs: Sequence[Any], ids: Sequence[str] | None = None, stage: str | None = None
    ) -> list[str]:
        """Submit through the client, as any program does; the ids."""
        wanted = list(ids) if ids is not None else [job_id(j.n) for j in jobs]

        async def send() -> None:
            items = [(i, j.model_dump_json().encode()) for i, j in zip(wanted, jobs, strict=True)]
            async with Client(self.settings) as client:
                async for _ in client.submit_many(self.flow, items, stage):
                    pass

        asyncio.run(send())
        return wanted

    def hand_off(self, stage: str, steps: Iterable[tuple[str, int, Job]]) -> None:
        """Put (job id, writing step, job) into a stage, as if the stage before it had."""
        for key, seq, job in steps:
            hop = b"%d;1700000000000000;%b" % (seq, self.flow.name.encode())
            headers: list[Header] = [(h.HOP, hop)]
            self.put(stage, key.encode(), job.model_dump_json().encode(), headers)
        self.flush()

    def put(
        self,
        stage: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        partition: int = -1,
    ) -> None:
        """Any record at all; `flush` sends it."""
        self.put_to(self.topic(stage), key, value, headers, partition)

    def put_to(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        partition: int = -1,
    ) -> None:
        """The same into any topic."""
        self._producer.produce(
            topic,
            value,
            key,
            partition=partition,
            headers=list(headers),
            on_delivery=_must_arrive,
        )
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0

    # -- reading -------------------------------------------------------------------------------

    def topic(self, stage: str) -> str:
        return self.settings.names.stage_topic(self.flow.name, stage)

    def log(self, topic: str, *, committed: bool = True) -> list[Record]:
        """All records of a topic until now."""
        wanted = (topic, committed)
        if wanted not in self._logs:
            servers = self.settings.kafka_bootstrap_servers
            self._logs[wanted] = TopicLog(servers, topic, committed=committed)
        self._logs[wanted].advance()
        return self._logs[wanted].records

    def records(self, stage: str) -> list[Record]:
        return self.log(self.topic(stage))

    def dead_letters(self, stage: str) -> list[Record]:
        return self.log(self.settings.names.dead_letter_topic(self.flow.name, stage))

    def states(self) -> list[JobState]:
        found = self.log(self.settings.names.job_state_topic)
        return [JobState.model_validate_json(r.value or b"") for r in found]

    def finished(self) -> int:
        """How many results lie on `done`."""
        return len(self.records("done"))

    def sql(self, query: str, *values: object) -> list[DictRow]:
        with psycopg.connect(
            self.settings.database_url, autocommit=True, row_factory=dict_row
        ) as conn:
            cursor = conn.execute(query.encode(), values)
            return cursor.fetchall() if cursor.description else []

    # -- group offsets -------------------------------------------------------------------------

    def group(self, stage: str) -> str:
        return self.settings.names.stage_group(self.flow.name, stage)

    def committed(self, stage: str) -> dict[int, tuple[int, str]]:
        """Committed (offset, metadata) of each partition of a stage's group, as of now: what an
        open transaction holds does not count."""
        request = ConsumerGroupTopicPartitions(self.group(stage))
        futures = self.admin.list_consumer_group_offsets([request])
        found = futures[self.group(stage)].result(30).topic_partitions
        return {tp.partition: (tp.offset, tp.metadata or "") for tp in found if tp.offset >= 0}

    def set_committed(self, stage: str, offsets: Mapping[int, tuple[int, str]]) -> None:
        """Move a group as a tool does. Waits until the group has no member: a static member stays
        one until its session has expired."""
        parts = [
            TopicPartition(self.topic(stage), p, offset, metadata=metadata)
            for p, (offset, metadata) in offsets.items()
        ]
        self.wait(lambda: self.is_empty(stage), f"group {stage} is empty")
        asked = [ConsumerGroupTopicPartitions(self.group(stage), parts)]
        futures = self.admin.alter_consumer_group_offsets(asked)
        for tp in futures[self.group(stage)].result(30).topic_partitions:
            assert tp.error is None, tp.error

    def is_empty(self, stage: str) -> bool:
        """Whether a stage's group has no member."""
        futures = self.admin.describe_consumer_groups([self.group(stage)])
        return not futures[self.group(stage)].result(30).members

    def drained(self, *stages: str) -> bool:
        """Whether everything in the stages' topics is committed as consumed."""
        for stage in stages or self.flow.inputs:
            committed = self.committed(stage)
            for record in self.records(stage):
                if record.offset >= committed[record.partition][0]:
                    return False
        return True

    def wait_drained(self, *stages: str) -> None:
        """Wait until nothing is left to do, so that nothing can be doubled any more either."""
        self.wait(lambda: self.drained(*stages), f"{stages or 'all stages'} have consumed all")


def _must_arrive(error: object, _: object) -> None:
    assert error is None, error
