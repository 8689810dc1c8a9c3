"""`job-state` written by the test itself and projected in this process: no worker is started."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from schemas.state import JobState
from streams.kafka import Reading, admin_client
from streams.postgres import open_pool
from streams.state.fold import StateRecord
from streams.state.projector import Projection, moves_of, state_record
from streams.state.shadow import state_topic
from tests.support.rig import Rig


def write_states(
    rig: Rig, states: Iterable[JobState | tuple[str, bytes | None]], partition: int = 0
) -> None:
    """States, or (key, raw value), into one partition of job-state."""
    for each in states:
        key, value = (
            (each.trace_id, each.model_dump_json(by_alias=True).encode())
            if isinstance(each, JobState)
            else each
        )
        rig.put_to(rig.settings.names.job_state_topic, key.encode(), value, partition=partition)
    rig.flush()


def read_states(rig: Rig, starts: dict[int, int] | None = None) -> list[StateRecord]:
    """The records of job-state from `starts`, or the first, to its present end."""
    with admin_client(rig.settings) as admin:
        topic = state_topic(rig.settings, admin)
        at = {(topic.name, p): (starts or {}).get(p, 0) for p in range(topic.partitions)}
        batches = Reading(rig.settings, admin, [topic], at).batches()
        return [state_record(topic, message) for batch in batches for message in batch]


def project(rig: Rig) -> None:
    """What a projector does until it has caught up."""

    async def apply() -> None:
        with admin_client(rig.settings) as admin:
            topic = state_topic(rig.settings, admin)
        async with open_pool(rig.settings) as pool:
            projection = Projection(pool, rig.settings, topic=topic.name, topic_id=topic.topic_id)
            positions = await projection.positions()
            records = read_states(rig, positions)
            await projection.apply(records, moves_of(records, positions))

    asyncio.run(apply())
