"""The join: what the branches found, added up as it streams in, and handed on by what it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from schemas.digest import MAX_NAMED, EntityKind, MailNote, Named, Span, ThreadDigest
from schemas.mail import Entities, Label, Language, Priority, Topic
from streams import Context, Emit, Joined, Reject, stage

#: A date further from the median of its thread is taken for a wrong clock.
CLOCK: Final = timedelta(days=180)
_PRIORITIES: Final = list(Priority)

Key = TypeVar("Key", bound=str | tuple[str, ...])


@stage("digest", emits=("digests", "unanswered"))
async def digest(notes: Joined[MailNote], job: Context) -> Emit | Reject:
    """A thread whose last mails ask something goes to `unanswered`, any other to `digests`."""
    found = Findings()
    async for branch in notes.branches():
        if branch.result is not None:
            found.add(branch.result, branch.id)
    if found.first is None:
        return Reject(f"None of the thread's {notes.expected:,} mails could be read.")
    made = found.digest(found.first, notes.expected)
    if made.open_questions:
        return Emit("unanswered", made)
    return Emit("digests", made)


class Findings:
    """Adds up notes in the order of the thread. It keeps no note but the first, only counts, dates
    and what is named."""

    def __init__(self) -> None:
        self.first: MailNote | None = None
        self._labels: Counter[Label] = Counter()
        self._topics: Counter[Topic] = Counter()
        self._languages: Counter[Language] = Counter()
        self._named: Counter[tuple[EntityKind, str]] = Counter()
        self._lists: set[str] = set()
        self._dates: list[datetime] = []
        self._open: list[str] = []
        self._priority = 0

    def add(self, note: MailNote, job_id: str) -> None:
        """Count the note of the branch `job_id`."""
        self.first = self.first or note
        self._labels[note.label] += 1
        self._topics[note.topic] += 1
        self._languages[note.language] += 1
        self._named.update(entities_of(note.entities))
        self._priority = max(self._priority, _PRIORITIES.index(note.priority))
        if note.list is not None:
            self._lists.add(note.list)
        if note.date is not None:
            self._dates.append(_aware(note.date))
        self._listen(note, job_id)

    def _listen(self, note: MailNote, job_id: str) -> None:
        """Whoever asks nothing has answered what was asked before; spam does neither."""
        if note.label is Label.SPAM:
            return
        if note.asks:
            self._open.append(note.id or job_id)
        else:
            self._open.clear()

    def digest(self, first: MailNote, mails: int) -> ThreadDigest:
        """The digest of a thread of `mails`, the `first` of which could be read."""
        return ThreadDigest(
            thread=first.thread,
            subject=first.thread_subject,
            mails=mails,
            unread=mails - self._labels.total(),
            addresses=sum(kind is EntityKind.ADDRESS for kind, _ in self._named),
            lists=tuple(sorted(self._lists)),
            span=span_of(self._dates),
            labels=_by_count(self._labels),
            topics=_by_count(self._topics),
            languages=_by_count(self._languages),
            priority=_PRIORITIES[self._priority],
            named=tuple(
                Named(kind=kind, text=text, mails=n)
                for (kind, text), n in _by_count(self._named).items()
            )[:MAX_NAMED],
            open_questions=tuple(self._open[-MAX_NAMED:]),
        )


def entities_of(found: Entities) -> Iterator[tuple[EntityKind, str]]:
    """Each entity as a kind and a text."""
    yield from ((EntityKind.URL, url) for url in found.urls)
    yield from ((EntityKind.ADDRESS, address) for address in found.addresses)
    yield from ((EntityKind.MONEY, f"{m.currency}{m.amount}") for m in found.money)
    yield from ((EntityKind.PHONE, phone) for phone in found.phones)


def span_of(dates: Iterable[datetime]) -> Span | None:
    """The span of `dates`, which know their offsets, without those of wrong clocks."""
    in_order = sorted(dates)
    if not in_order:
        return None
    median = in_order[(len(in_order) - 1) // 2]
    believed = [date for date in in_order if abs(date - median) <= CLOCK]
    return Span(first=believed[0], last=believed[-1], wrong_clocks=len(in_order) - len(believed))


def _aware(date: datetime) -> datetime:
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)


def _by_count(counts: Counter[Key]) -> dict[Key, int]:
    """The highest first; equal counts by name, so that the order of mails does not matter."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
