"""What an author declares: how many handlers may start, or run, for each key of a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from streams.errors import BadRecord, BadSetup

#: Kind of the committed wait of a job that its stage's limits keep waiting: no handler ran.
LIMITED: Final = "limited"

#: Name of a limit and one of its keys: what tokens and places belong to.
Claim = tuple[str, str]

_SHORTEST: Final = timedelta(seconds=1)
_LONGEST: Final = timedelta(days=1)
_MOST_PER_S: Final = 1_000
_KEY_CHARS: Final = 200
#: A start may be this late on its reserved moment, of `per`: what it loses in rate it wins in
#: moments that a machine which is busy does not miss.
_SLACK: Final = 0.1
_MOST_SLACK_US: Final = 250_000


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `rate` handlers start within any `per`, at most `concurrency` run at once, counted
    over all workers of an installation and for each key on its own.

    Limits of one name share what they count, whatever stages and flows they stand in. `key` gets
    the validated model: `key=lambda mail: mail.tenant`; None from it means that the record is not
    limited. Without `key` there is one for all. Each start counts: retries and redeliveries, too.

    Starts are spaced evenly, at `per / rate` and a tenth of that more (less for a `per` above two
    and a half seconds): `rate=1_000, per=timedelta(days=1)` is one in 86 s, no thousand at once.
    """

    name: str
    rate: int | None = None
    per: timedelta = _SHORTEST
    concurrency: int | None = None
    key: Callable[[Any], str | None] | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or not self.name.islower():
            raise BadSetup(f"A limit's name is a lower-case identifier; {self.name!r} is not.")
        if self.rate is None and self.concurrency is None:
            raise BadSetup(f"Limit {self.name} limits nothing: give it a rate, or a concurrency.")
        if self.concurrency is not None and self.concurrency < 1:
            raise BadSetup(
                f"Limit {self.name}: concurrency must be at least 1, not {self.concurrency}."
            )
        if not _SHORTEST <= self.per <= _LONGEST:
            raise BadSetup(
                f"Limit {self.name}: per must be between a second and a day, not {self.per}."
            )
        if self.rate is not None and not 1 <= self.rate <= self.per.total_seconds() * _MOST_PER_S:
            raise BadSetup(
                f"Limit {self.name}: rate must be at least 1 and at most {_MOST_PER_S:,} in a "
                f"second, not {self.rate:,} per {self.per}."
            )

    @property
    def slack_us(self) -> int:
        """How late on its reserved moment a handler may start, microseconds."""
        return min(round(_micros(self.per) * _SLACK), _MOST_SLACK_US)

    @property
    def window_us(self) -> int:
        """For how long from its moment on a handler may be started; the rest of the slack is for
        what happens between our last look at the clock and its first line."""
        return self.slack_us * 3 // 4

    @property
    def spacing_us(self) -> int | None:
        """Between two reserved moments, microseconds; None without a rate.

        Moments s apart, starts at most `slack` late: those within a half-open `per` have moments
        in an open interval of `per + slack`, so there are at most `(per + slack) / s`, which is
        `rate`.
        """
        if self.rate is None:
            return None
        return -(-(_micros(self.per) + self.slack_us) // self.rate)

    def key_of(self, model: Any) -> str | None:
        """The key of `model`, "" if the limit has none for all; None: it is not limited.

        Raises `BadRecord` when there is no usable one.
        """
        if self.key is None:
            return ""
        try:
            key = self.key(model)
        except Exception as e:
            raise BadRecord(
                f"Limit {self.name} finds no key in it: its key function raised {_said(e)}."
            ) from e
        if key is not None and (not isinstance(key, str) or not _is_usable(key)):
            raise BadRecord(
                f"Limit {self.name} cannot use its key: a key is text of at most {_KEY_CHARS} "
                f"characters without NUL, and this is {_kind(key)}."
            )
        return key

    @property
    def wording(self) -> str:
        """As people are told of it: "limit model (20 per second, 8 at once)"."""
        parts = []
        if self.rate is not None:
            parts.append(f"{self.rate:,} per {_span(self.per)}")
        if self.concurrency is not None:
            parts.append(f"{self.concurrency:,} at once")
        return f"limit {self.name} ({', '.join(parts)})"

    @property
    def settings(self) -> tuple[int | None, timedelta, int | None]:
        """What must be equal wherever a limit of this name stands."""
        return self.rate, self.per, self.concurrency


def checked(stage: str, limits: Limit | Iterable[Limit], *, joins: bool) -> tuple[Limit, ...]:
    """The limits of one stage. Raises `BadSetup`. `joins`: it takes `Joined[…]`."""
    found = (limits,) if isinstance(limits, Limit) else tuple(limits)
    names = [limit.name for limit in found]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise BadSetup(f"Stage {stage} names the limit {twice[0]} twice; one is enough.")
    keyed = [limit.name for limit in found if limit.key is not None]
    if joins and keyed:
        raise BadSetup(
            f"Stage {stage} reads a join, which has no fields to take a key from: limit {keyed[0]} "
            "can have no `key` there."
        )
    return found


def check_same(flow: str, stages: Iterable[tuple[str, tuple[Limit, ...]]]) -> None:
    """Raises `BadSetup` when limits of one name differ in anything but their key functions."""
    known: dict[str, tuple[str, Limit]] = {}
    for stage, limits in stages:
        for limit in limits:
            where, first = known.setdefault(limit.name, (stage, limit))
            if first.settings != limit.settings:
                raise BadSetup(
                    f"Flow {flow}: stages {where} and {stage} share the {first.wording}, but in "
                    f"{stage} it is the {limit.wording}. Declare it once and name it in both, or "
                    "give it two names."
                )


def _micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def _is_usable(key: str) -> bool:
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return len(key) <= _KEY_CHARS and "\0" not in key


def _kind(key: object) -> str:
    return f"one of {len(key):,} characters" if isinstance(key, str) else type(key).__name__


def _said(error: Exception) -> str:
    # Never its text, which may quote values of the record.
    return type(error).__name__


def _span(per: timedelta) -> str:
    for name, span in (
        ("day", timedelta(days=1)),
        ("hour", timedelta(hours=1)),
        ("minute", timedelta(minutes=1)),
        ("second", _SHORTEST),
    ):
        if per == span:
            return name
    return f"{per.total_seconds():g} s"
