"""A second `jobs`, folded from the topic by the projector's own statements, beside running workers.

Memory is bounded: rows are in Postgres, records pass through in batches.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from schemas.ids import is_job_id
from streams.config import Settings
from streams.errors import BadSetup, BadWorld
from streams.kafka import (
    AdminClient,
    Place,
    Reading,
    TopicFacts,
    describe_topics,
    end_offsets,
    high_watermarks,
    low_watermarks,
)
from streams.postgres import Conn, for_table, load_queries
from streams.state.difference import Difference, compare
from streams.state.fold import Folded, fold
from streams.state.projector import (
    keep_rejects,
    projection_positions,
    stage_steps,
    state_record,
)
from streams.state.views import job_of

_SQL: Final = load_queries("streams.state")
_OF_TABLE: Final = (
    "create_temporary_shadow",
    "create_shadow",
    "drop_shadow",
    "upsert_jobs",
    "find_unseen",
    "differing_ids",
    "jobs_of",
    "analyze",
    "count_jobs",
    "carry_excused",
    "rename_shadow",
)
_JOBS_OF: Final = for_table(_SQL, "jobs", only=["jobs_of"])["jobs_of"]
_COMPARED_ROWS: Final = 1_000
#: So many rejected records are named.
_NAMED_REJECTS: Final = 20

#: Told what is done, how far, of how much.
Progress = Callable[[str, int, int], None]
Tell = Callable[[Difference], None]


@dataclass(slots=True)
class Tally:
    """What was read and found so far. Jobs are counted once, steps of the history each."""

    records: int = 0
    #: Of the log.
    jobs: int = 0
    #: Jobs that only the log has, only Postgres has, or that both have and differ.
    missing: int = 0
    extra: int = 0
    altered: int = 0
    #: Steps of the topic that `job_history` lacks.
    history: int = 0
    #: Jobs whose state compaction has taken, as it may.
    excused: int = 0
    tombstones: int = 0
    rejected: int = 0
    #: Place and reason of the first ones.
    rejects: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return not (self.missing or self.extra or self.altered or self.history)


def state_topic(settings: Settings, admin: AdminClient) -> TopicFacts:
    """The job-state topic that exists now. Raises `BadSetup` when there is none."""
    name = settings.names.job_state_topic
    topic = describe_topics(settings, admin, [name]).get(name)
    if topic is None:
        raise BadSetup(
            f"There is no topic {name} at {settings.kafka_bootstrap_servers}. Run `handoff topics "
            "apply`, or set HANDOFF_PREFIX."
        )
    return topic


class Shadow:
    """The fold of `topic` up to `at` (next offset by partition), in `table` of Postgres.

    `mend_history` adds steps that `job_history` lacks; without it nothing is changed that others
    see. Differences are told to `tell`, one by one.
    """

    def __init__(
        self,
        settings: Settings,
        admin: AdminClient,
        conn: Conn,
        topic: TopicFacts,
        *table: str,
        tell: Tell,
        progress: Progress,
        mend_history: bool = False,
    ) -> None:
        self._settings, self._admin, self._conn, self.topic = settings, admin, conn, topic
        self._tell, self._progress, self._mend = tell, progress, mend_history
        #: Statements on the table, for those who go on with it.
        self.sql = for_table(_SQL, *table, only=_OF_TABLE)
        self._positions = projection_positions(topic.name, topic.topic_id)
        self.at = low_watermarks(settings, admin, topic)
        self._held: dict[int, int] = {}
        self.tally = Tally()

    async def create(self, *, temporary: bool) -> None:
        """Make the table; one that a killed run left behind is dropped."""
        if temporary:
            await self._conn.execute(self.sql["create_temporary_shadow"])
        else:
            await self._conn.execute(self.sql["drop_shadow"])
            await self._conn.execute(self.sql["create_shadow"])
        await self._conn.execute(_SQL["create_key_tables"])

    async def positions(self) -> dict[int, int]:
        """Where the projection stands now, of the partitions that it has begun.

        Raises `BadSetup` when it has not begun with this topic, or knows more of it than there is;
        `BadWorld` when it went back since the last call.
        """
        held = await self._positions.read(self._conn)
        if not held:
            raise BadSetup(
                f"The projection has applied nothing of {self.topic.name} "
                f"({self.topic.topic_id}) yet: `handoff worker projector` does, from the first "
                "record on."
            )
        for p, before in self._held.items():
            if held.get(p, 0) < before:
                raise BadWorld(
                    f"The projection of {self.topic.name}[{p}] went back from {before} to "
                    f"{held.get(p, 0)} meanwhile: somebody has reset it. Wait until the projector "
                    "has caught up, then run this again."
                )
        if not self._held:
            self._check_ends(held)
        self._held = held
        return held

    def _check_ends(self, held: Mapping[int, int]) -> None:
        for p, end in high_watermarks(self._settings, self._admin, self.topic).items():
            if held.get(p, 0) > end:
                raise BadSetup(
                    f"{self.topic.name}[{p}] ends at {end}, and the projection has applied records "
                    f"up to {held[p]}: Kafka has lost what lay between. The rows in Postgres are "
                    "all that is left of it; nothing was compared or changed."
                )

    async def read_to(self, positions: Mapping[int, int]) -> None:
        """Fold what lies between `at` and `positions`; a transaction for each batch, unless one is
        open. Raises `BadWorld` when Kafka or Postgres does not serve."""
        reading = self._reading({p: positions.get(p, 0) for p in self.at})
        for batch in reading.batches():
            folded = fold(state_record(self.topic, message) for message in batch)
            async with self._conn.transaction():
                await self._take(folded)
            self._count(folded, len(batch))
            self._progress("job-state", reading.done, reading.total)
        self.at = {p: max(at, reading.at[self.topic.name, p]) for p, at in self.at.items()}

    def _reading(self, ends: Mapping[int, int]) -> Reading:
        name = self.topic.name
        starts: dict[Place, int] = {(name, p): at for p, at in self.at.items()}
        return Reading(
            self._settings,
            self._admin,
            [self.topic],
            starts,
            {(name, p): n for p, n in ends.items()},
        )

    async def _take(self, folded: Folded) -> None:
        conn = self._conn
        keys = [*folded.bare, *(r.record.key for r in folded.rejected)]
        if ids := _ids(keys):
            await conn.execute(_SQL["keep_keys"], {"keys": ids})
        if self._mend:
            await keep_rejects(conn, folded.rejected)
        if not folded.steps:
            return
        await stage_steps(conn, folded)
        for row in await (await conn.execute(_SQL["unwritten_history"])).fetchall():
            place = f"{self.topic.name}[{row['partition']}]@{row['offset']}"
            self.tally.history += 1
            self._tell(Difference(row["trace_id"], "history", f"step {row['seq']}, {place}", None))
        if self._mend:
            await conn.execute(_SQL["append_history"])
        await conn.execute(self.sql["upsert_jobs"])
        await conn.execute(_SQL["empty_staging"])

    def _count(self, folded: Folded, records: int) -> None:
        tally = self.tally
        tally.records += records
        tally.tombstones += folded.tombstones
        tally.rejected += len(folded.rejected)
        room = _NAMED_REJECTS - len(tally.rejects)
        tally.rejects += [f"{r.record.place}: {r.reason}" for r in folded.rejected[:room]]

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        """Within the block positions and rows are of one moment, and the shadow stands there.

        Raises `BadWorld` when the projection went back meanwhile.
        """
        async with self._conn.transaction():
            await self._conn.execute(_SQL["begin_snapshot"])
            await self.read_to(await self.positions())
            yield

    async def compare(self) -> Tally:
        """Tell every difference of `jobs`; call it within `snapshot`."""
        self._progress("comparing", 0, 1)
        await self._conn.execute(self.sql["analyze"])
        await self._excuse()
        async with self._conn.cursor("differing") as cursor:
            await cursor.execute(self.sql["differing_ids"])
            while rows := await cursor.fetchmany(_COMPARED_ROWS):
                await self._compare([row["trace_id"] for row in rows])
        row = await (await self._conn.execute(self.sql["count_jobs"])).fetchone()
        assert row is not None, "an aggregate has one row"
        self.tally.jobs = row["jobs"]
        self._progress("comparing", 1, 1)
        return self.tally

    async def _excuse(self) -> None:
        """Find the jobs whose state the topic lacks because compaction took it, as it may: a
        tombstone, an unreadable record or one that is yet to be applied has taken its place."""
        conn, topic_id = self._conn, {"topic_id": self.topic.topic_id}
        found = await conn.execute(self.sql["find_unseen"])
        if not found.rowcount:
            return
        await conn.execute(_SQL["excuse_stateless"], topic_id)
        rest = self._reading(end_offsets(self._settings, self._admin, self.topic))
        for batch in rest.batches():
            keys = {"keys": _ids(message.key() for message in batch)}
            await conn.execute(_SQL["excuse_superseded"], keys | topic_id)
        row = await (await conn.execute(_SQL["count_unseen"])).fetchone()
        assert row is not None, "an aggregate has one row"
        self.tally.excused = row["excused"]

    async def _compare(self, ids: Sequence[str]) -> None:
        sides = []
        for query in (self.sql["jobs_of"], _JOBS_OF):
            rows = await (await self._conn.execute(query, {"ids": ids})).fetchall()
            sides.append({row["trace_id"]: job_of(row) for row in rows})
        for trace_id in ids:
            in_log, held = sides[0].get(trace_id), sides[1].get(trace_id)
            found = list(compare(in_log, held))
            if found:
                self.tally.missing += held is None
                self.tally.extra += in_log is None
                self.tally.altered += held is not None and in_log is not None
            for difference in found:
                self._tell(difference)


def _ids(keys: Iterable[bytes | None]) -> list[str]:
    """Those of `keys` that can be a job's."""
    texts = {key.decode(errors="replace") for key in keys if key is not None}
    return sorted(text for text in texts if is_job_id(text))
