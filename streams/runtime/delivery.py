"""One consumed record: which job and which step it is, before its payload is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from schemas import headers as h
from schemas.ids import id_from_coordinates, is_job_id, is_root_id
from schemas.state import JobError, Status
from streams.errors import BadRecord
from streams.kafka import Record
from streams.runtime.tracker import Tracker
from streams.signals import Signal
from streams.usage import Tally

if TYPE_CHECKING:
    from streams.runtime.forks import Split
    from streams.runtime.run_records import Advance

_FIRST_STEP: Final = 1
_MAX_SEQ: Final = 2**31 - 2
#: Of epoch microseconds, until the year 2286.
_BORN_DIGITS: Final = 16
_PLAIN_SEQ_DIGITS: Final = 9

#: A record to produce: topic, key, value, headers (`schemas.headers.Headers`, or None).
OutRecord = tuple[str, bytes | None, bytes | None, Any]


class Target(NamedTuple):
    """Where a hand-off goes: its topic, the job's status then, and `to` of the state as JSON."""

    topic: str
    status: Status
    names: bytes


class Result(NamedTuple):
    """What became of a delivery: handed on (`target`), forked (`split`), failed or parked
    (`error`), or done; `advance` is what it did of a run besides, `signal` (JSON) goes with the
    hand-off.

    `data` is the hop's output, JSON. With `wakes_us` (epoch) it waits for its timer instead of
    being a dead letter, and `error` says why.
    """

    status: Status
    data: bytes | None
    finished_us: int
    target: Target | None = None
    ce_type: bytes = b""
    error: JobError | None = None
    wakes_us: int | None = None
    split: Split | None = None
    advance: Advance | None = None
    signal: bytes | None = None


class Delivery:
    """A record on its way through a stage, and in the end the records that it leads to.

    `fault` says why it can never be processed, if so. `claimable`: a new job whose key is its id,
    a redrive, a cancel's wake, or what a timer brought back; there may be another record that does
    the same step.
    """

    # Class attributes are the usual values: a record that has nothing special sets five fields.
    attempt = 0
    #: Of `attempt`, what the record itself told: they survive a restart.
    attempts_told = 0
    seq = _FIRST_STEP
    job_id = ""
    key = b""
    started_us = 0
    is_new_job = False
    claimable = False
    fault: str | None = None
    link: str | None = None
    #: The job under whose keys its effects are done, if another than `job_id`.
    keys_of: str | None = None
    #: The job from which on cancels count, if not all ancestors' do.
    shielded: str | None = None
    #: The job that was cancelled, of a record that only says so.
    cancelled_with: str | None = None
    #: How many children its job has had, and of a child's first record its parent's step.
    children = 0
    forked_at: int | None = None
    #: What ended the wait that it comes from.
    signal: Signal | None = None
    #: Records that its result leads to, about, and bytes of payload that it holds meanwhile.
    weight = 1
    held_bytes = 0
    model: Any = None
    #: Of the run under way, and of the wait for the next one, which ends at `again_at` (loop time).
    task: Any = None
    timer: Any = None
    again_at = 0.0
    #: Its place before the limits of its stage (`streams.limits.gate`), if it has one.
    ticket: Any = None
    #: Why it waits for its next run.
    why: JobError | None = None
    #: For `streams.runtime.pause`: how often the stage had been reopened when this record last met
    #: a bad world, and how often others passed in between.
    world_seen = -1
    doubts = 0
    #: None for what needs no records: a tombstone, a skipped duplicate.
    result: Result | None = None
    #: What its runs have spent on models; None for nothing.
    usage: Tally | None = None

    def __init__(self, message: Record, tracker: Tracker, number: int, polled_us: int) -> None:
        self.message = message
        self.tracker = tracker
        self.number = number
        self.polled_us = polled_us
        self.produced_us = message.timestamp()[1] * 1000

    @property
    def offset(self) -> int:
        return self.message.offset()

    @property
    def place(self) -> str:
        return f"{self.tracker.place}@{self.offset}"

    def raw_headers(self) -> Sequence[tuple[str, bytes]]:
        """All headers as they came, not kept; none (and a fault) if their names are no UTF-8."""
        try:
            return self.message.headers() or ()
        except (UnicodeDecodeError, ValueError) as e:
            self.fault = f"its headers are unreadable ({e})"
            return ()

    def identify(self, flow: bytes) -> None:
        """Read key and headers: `job_id`, `seq`, `born_us`, `link`, `keys_of`; or `fault`, but
        nothing is raised."""
        headers = self.raw_headers()
        if not (
            headers and headers[0][0] == h.HOP and self._is_plain_hand_off(headers[0][1], flow)
        ):
            self._look_closely(headers, flow)

    def _is_plain_hand_off(self, hop: bytes, flow: bytes) -> bool:
        """The usual case, a hand-off as `RecordWriter` spells it: one header of ours, the first."""
        try:
            seq, born, its_flow = hop.split(b";")
            if (
                its_flow == flow
                and seq.isdigit()
                and len(seq) <= _PLAIN_SEQ_DIGITS
                and born.isdigit()
                and len(born) <= _BORN_DIGITS
                and is_root_id(key := self.message.key() or b"")
            ):
                self.job_id, self.key = key.decode(), key
                self.seq, self.born_us = int(seq) + 1, int(born)
                return self.seq > _FIRST_STEP
        except (ValueError, AttributeError):
            pass  # more or fewer parts, or a null value
        return False

    def _look_closely(self, headers: Sequence[tuple[str, bytes]], flow: bytes) -> None:
        found = h.spelled_out(headers)
        key = self.message.key()
        try:
            text = key.decode() if key else ""
        except UnicodeDecodeError:
            text = ""
        if h.KEYS_OF in found:
            self._read_keys_of(found[h.KEYS_OF] or b"")
        if h.SIGNAL in found:
            self._read_signal(found[h.SIGNAL] or b"")
        if h.SHIELDED in found:
            self._read_shielded(found[h.SHIELDED] or b"")
        if h.CHILDREN in found:
            self.children = self._count(h.CHILDREN, found[h.CHILDREN])
        self.born_us = _born(found.get(h.BORN), self.produced_us)
        if h.SEQ in found:
            self._hand_off(text, found, flow)
        else:
            self._new_job(text, found)

    def _hand_off(self, text: str, found: Mapping[str, bytes | None], flow: bytes) -> None:
        try:
            self.seq = int(found[h.SEQ] or b"") + 1
        except (TypeError, ValueError):
            self.fault = f"its header {h.SEQ} is no number"
        if h.FORK in found and "/" in text:
            self.forked_at = self._count(h.FORK, found[h.FORK])
        first = _FIRST_STEP if self.forked_at is None else _FIRST_STEP - 1
        if not first < self.seq <= _MAX_SEQ:
            self.seq = _FIRST_STEP
            self.fault = self.fault or f"its header {h.SEQ} is out of range"
        if found.get(h.FLOW) != flow:
            self.fault = f"its header {h.FLOW} names another flow"
        if h.TIMER in found:
            self._read_attempts(found.get(h.ATTEMPT) or b"")
        if h.CANCEL in found:
            self._read_cancel(text, found[h.CANCEL] or b"")
        if not is_job_id(text):
            self.fault = "it is a hand-off, but its key is no job id"
        if self.fault is None:
            self.job_id = text
            self.key = text.encode()
            # Commands and dispatchers may have run twice.
            copied = h.REDRIVE in found or h.TIMER in found or h.CANCEL in found
            self.claimable = copied and self.message.value() is not None
        else:
            self.stand_alone()

    def _read_attempts(self, spent: bytes) -> None:
        self.attempt = self.attempts_told = self._count(h.ATTEMPT, spent)

    def _read_cancel(self, job: str, raw: bytes) -> None:
        ordered = raw.decode(errors="replace")
        if ordered and f"{job}/".startswith(f"{ordered}/"):
            self.cancelled_with = ordered
        else:
            self.fault = f"its header {h.CANCEL} names neither its job nor an ancestor"

    def _count(self, name: str, raw: bytes | None) -> int:
        if raw is not None and raw.isdigit() and len(raw) <= _PLAIN_SEQ_DIGITS:
            return int(raw)
        self.fault = f"its header {name} is no number"
        return 0

    def _read_keys_of(self, raw: bytes) -> None:
        text = raw.decode(errors="replace")
        if is_job_id(text):
            self.keys_of = text
        else:
            # Under keys of its own its effects would be done once more.
            self.fault = f"its header {h.KEYS_OF} is no job id"

    def _read_signal(self, raw: bytes) -> None:
        try:
            self.signal = Signal.from_json(raw)
        except BadRecord:
            self.fault = f"its header {h.SIGNAL} is no signal"

    def _read_shielded(self, raw: bytes) -> None:
        text = raw.decode(errors="replace")
        if is_job_id(text):
            self.shielded = text
        else:
            # What undoes a cancelled run's work would be cancelled with it.
            self.fault = f"its header {h.SHIELDED} is no job id"

    def _new_job(self, text: str, found: Mapping[str, bytes | None]) -> None:
        self.is_new_job = True
        if is_job_id(text) and "/" not in text:
            self.job_id = text
            self.key = text.encode()
            # A tombstone is no job: it must not take the id from one that comes later.
            self.claimable = self.message.value() is not None
        else:
            self._name_by_place()
        foreign = found.get(h.LINK) or found.get(h.TRACEPARENT)
        if foreign and not foreign.startswith(b"00-%b-" % self.job_id.encode()):
            # Postgres stores no NUL.
            self.link = foreign.decode(errors="replace")[:128].replace("\0", "\\0")

    def stand_alone(self) -> None:
        """It is no step of the job whose key it may bear, so it must not write one: it becomes a
        job of its own, named by its place."""
        self.seq = _FIRST_STEP
        self._name_by_place()

    def identify_parent(self, headers: Sequence[tuple[str, bytes]]) -> None:
        """Of a record of a join topic, which was found in order: `job_id` is the parent's."""
        self.key = self.message.key() or b""
        self.job_id = self.key.decode()
        if headers[0][0] in (h.ARRIVAL, h.SENT):
            self.born_us = self.produced_us
            return
        found = h.spelled_out(headers)
        self.seq = int(found[h.SEQ] or b"") + 1
        self.born_us = _born(found.get(h.BORN), self.produced_us)
        self.claimable = h.REDRIVE in found

    def _name_by_place(self) -> None:
        self.job_id = id_from_coordinates(
            self.tracker.topic_id, self.tracker.partition, self.offset
        )
        self.key = self.job_id.encode()


def _born(raw: bytes | None, otherwise: int) -> int:
    """When the job was accepted, epoch microseconds; `otherwise` if the header makes no sense."""
    return int(raw) if raw and len(raw) <= _BORN_DIGITS and raw.isdigit() else otherwise
