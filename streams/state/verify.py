"""Does `jobs` equal the fold of the log? Promise P6, checked beside running workers."""

from __future__ import annotations

from streams.config import Settings
from streams.kafka import admin_client
from streams.postgres import connect_alone
from streams.state.shadow import Progress, Shadow, Tally, Tell, state_topic

_TABLE = "jobs_verify"


async def verify(settings: Settings, tell: Tell, progress: Progress) -> Tally:
    """Fold job-state up to where the projection stands, into a temporary table, and tell each
    difference. Changes nothing that others see; memory does not grow with the number of jobs.

    Most of the topic is read before the snapshot, so that the snapshot is held for a short time.

    Raises `BadWorld` when Kafka or Postgres does not serve or the projection went back meanwhile,
    `BadSetup` when there is nothing to verify.
    """
    with admin_client(settings) as admin:
        topic = state_topic(settings, admin)
        async with connect_alone(settings) as conn:
            shadow = Shadow(settings, admin, conn, topic, _TABLE, tell=tell, progress=progress)
            await shadow.create(temporary=True)
            await shadow.read_to(await shadow.positions())
            async with shadow.snapshot():
                return await shadow.compare()
