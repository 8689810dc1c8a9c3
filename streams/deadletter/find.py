"""From what a person names (ids, places, a cluster, a filter) to letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streams.deadletter.choice import Choice
from streams.deadletter.letters import Letter, Place, parse_place
from streams.deadletter.reader import Reader

_CANDIDATES = 5
_HEX = frozenset("0123456789abcdef/")


class Head(NamedTuple):
    """A letter without its payload: what a selection of many keeps in memory."""

    place: Place
    job: str
    seq: int
    at_ms: int


def head_of(letter: Letter) -> Head:
    return Head(letter.place, letter.job, letter.seq, letter.at_ms)


@dataclass(slots=True)
class Found:
    """`heads`: by id as asked, the job's letters, the latest step first. `faults`: a sentence for
    each id that names no letter, or several jobs."""

    heads: dict[str, list[Head]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def latest(self) -> list[Head]:
        """The last letter of each id; an older one's next step is taken already."""
        return list(dict.fromkeys(heads[0] for heads in self.heads.values()))


def find(reader: Reader, ids: Sequence[str], topics: Iterable[str] = ()) -> Found:
    """The letters of `ids`: places, or ids of jobs or their beginnings; `topics` are read besides
    our own. One pass over the topics, whatever the number of ids."""
    found = Found()
    places = {text: place for text in ids if (place := parse_place(text)) is not None}
    for letter in reader.at(places.values()):
        for text, place in places.items():
            if place == letter.place:
                found.heads[text] = [head_of(letter)]
    for text in places:
        if text not in found.heads:
            found.faults[text] = f"There is no letter at {text}; it may have expired."
    prefixes = [text for text in dict.fromkeys(ids) if text not in places]
    if prefixes:
        _find_jobs(reader, prefixes, topics, found)
    return found


def _find_jobs(
    reader: Reader, prefixes: Sequence[str], topics: Iterable[str], found: Found
) -> None:
    by_job: dict[str, dict[str, list[Head]]] = {text: {} for text in prefixes}
    wanted = {text: text.strip().lower() for text in prefixes}
    usable = {t: p for t, p in wanted.items() if p and set(p) <= _HEX}
    if usable:
        for letter in reader.read(reader.spans(dict.fromkeys([*reader.topics(), *topics]))):
            if letter.job:
                for text, prefix in usable.items():
                    if letter.job.startswith(prefix):
                        by_job[text].setdefault(letter.job, []).append(head_of(letter))
    for text in prefixes:
        jobs = by_job[text]
        # The job of that very id comes before its children.
        jobs = {wanted[text]: jobs[wanted[text]]} if wanted[text] in jobs else jobs
        if len(jobs) == 1:
            (heads,) = jobs.values()
            found.heads[text] = sorted(heads, key=lambda x: (x.seq, x.at_ms), reverse=True)
        else:
            found.faults[text] = _not_one(text, text in usable, sorted(jobs))


def _not_one(text: str, usable: bool, jobs: Sequence[str]) -> str:
    if not usable:
        return f"{text!r} is neither the beginning of a job id nor topic/partition/offset."
    if not jobs:
        return f"No dead letter is of a job that begins with {text}."
    more = " and more" if len(jobs) > _CANDIDATES else ""
    return f"Several begin with {text}: {', '.join(jobs[:_CANDIDATES])}{more}. Give more digits."


def choose(reader: Reader, choice: Choice, is_settled: Callable[[Letter], bool]) -> list[Head]:
    """The open letters that `choice` takes, in the order of topics and offsets."""
    spans = reader.spans(reader.topics(choice.flow, choice.stage), choice.since_ms)
    return [
        head_of(letter)
        for letter in reader.read(spans)
        if choice.takes(letter) and not is_settled(letter)
    ]
