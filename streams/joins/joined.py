"""`Joined`: what the handler of a join is given. Results are read when asked for, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from schemas.ids import child_id
from schemas.state import JobError, Status
from streams.errors import BadRecord

T = TypeVar("T", bound=BaseModel)

#: The value of a branch that ended with a bare `Done()`.
_NOTHING: Final = b"null"


class JoinRef(BaseModel):
    """The payload of a join's hand-off: which join, and how its branches stood when it closed.

    A record cannot hold 10,000 results; they stay in Postgres and do not change any more.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore"
    )

    CE_TYPE: ClassVar[str] = "handoff.join"

    #: The job that forked, and its step that did: their names make the join's id.
    parent: str
    seq: int = Field(ge=1)
    first: int = Field(ge=0)
    expected: int = Field(ge=0)
    done: int = Field(ge=0)
    failed: int = Field(ge=0)

    @property
    def id(self) -> str:
        return f"{self.parent}:{self.seq}"


class BranchRow(NamedTuple):
    """A branch that has come: its number (over all forks of the job), how it ended, and its result
    or error as JSON."""

    number: int
    status: Status
    value: bytes


class BranchSource(Protocol):
    """Where results are read: Postgres in production, a list in `streams.testing`."""

    def read(self, ref: JoinRef) -> AsyncIterator[BranchRow]:
        """The branches that had come when the join closed, in order. Raises `BadWorld`."""
        ...


@dataclass(frozen=True, slots=True)
class Branch(Generic[T]):
    """One branch of a join: the job `id`, with its `result` (None if it ended without one), or the
    `error` it failed with. One that had not come when the time was up is `missing`."""

    id: str
    #: Position among the children of the fork, from 0.
    number: int
    result: T | None = None
    error: JobError | None = None
    missing: bool = False


class Joined(Generic[T]):
    """The results of a fork, for the first parameter of a stage: `async def merge(results:
    Joined[Summary], job: Context)`.

    `async for result in results` gives those of the branches that ended with one, in the order of
    the children; `async for branch in results.branches()` gives every one. Both may be run again,
    and a retry, a redrive or a rerun of the stage reads the same.

    Raises, while reading, `BadRecord` for a result that is no `T` or is not kept any more, and
    `BadWorld` when Postgres does not answer; let both pass.
    """

    def __init__(self, ref: JoinRef, model: type[T], source: BranchSource) -> None:
        self.ref = ref
        self._source = source
        self._model: TypeAdapter[T] = TypeAdapter(model)

    @property
    def id(self) -> str:
        """`<traceId>:<step>` of the fork: what `handoff join` takes."""
        return self.ref.id

    @property
    def expected(self) -> int:
        return self.ref.expected

    @property
    def done(self) -> int:
        """Branches that have a result."""
        return self.ref.done

    @property
    def failed(self) -> int:
        return self.ref.failed

    @property
    def missing(self) -> int:
        """Branches that had not come when the time was up."""
        return self.ref.expected - self.ref.done - self.ref.failed

    async def __aiter__(self) -> AsyncIterator[T]:
        async for row in self._rows():
            if row.status is Status.DONE and (result := self._result(row)) is not None:
                yield result

    async def branches(self) -> AsyncIterator[Branch[T]]:
        """Every branch in order, also those that failed or did not come."""
        ref, number = self.ref, 0
        async for row in self._rows():
            while ref.first + number < row.number:
                yield Branch(child_id(ref.parent, ref.first + number), number, missing=True)
                number += 1
            job_id = child_id(ref.parent, row.number)
            if row.status is Status.DONE:
                yield Branch(job_id, number, result=self._result(row))
            else:
                yield Branch(job_id, number, error=_error(row))
            number += 1
        for n in range(number, ref.expected):
            yield Branch(child_id(ref.parent, ref.first + n), n, missing=True)

    async def _rows(self) -> AsyncIterator[BranchRow]:
        came = 0
        async for row in self._source.read(self.ref):
            came += 1
            yield row
        if came != self.ref.done + self.ref.failed:
            wanted = self.ref.done + self.ref.failed
            raise BadRecord(
                f"Join {self.id} had {wanted} branches when it closed, and {came} are kept. "
                "Results are kept as long as hand-offs (HANDOFF_RETENTION_MS)."
            )

    def _result(self, row: BranchRow) -> T | None:
        if row.value == _NOTHING:
            return None
        try:
            return self._model.validate_json(row.value)
        except ValidationError as e:
            faults = e.errors(include_input=False, include_url=False)
            fault = faults[0]
            where = ".".join(map(str, fault["loc"])) or "the whole"
            raise BadRecord(
                f"The result of {child_id(self.ref.parent, row.number)} does not fit join "
                f"{self.id}: {where}: {fault['msg']}."
            ) from None


def _error(row: BranchRow) -> JobError:
    try:
        return JobError.model_validate_json(row.value)
    except ValidationError:
        return JobError(kind="unreadable", message="what it failed with is no error of ours")
