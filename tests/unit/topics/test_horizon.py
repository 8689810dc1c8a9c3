"""What topics keep, and from when on jobs can be replayed whole."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from streams.topics import Horizon, Kept, KeptPart
from streams.topics.kept import kept_by

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
WEEK_MS = 7 * 86_400_000
HAND_OFFS = {"cleanup.policy": "delete", "retention.ms": str(WEEK_MS)}
STATES = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(WEEK_MS)}


def ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def part(
    low: int, first: datetime | None, *, end: int = 100, offset: int | None = None
) -> KeptPart:
    """`first`: when its first record was written; it lies at `low` unless `offset` is given."""
    at = None if first is None else low if offset is None else offset
    return KeptPart(0, low, end, at, first)


def stage(*parts: KeptPart, **config: str) -> Kept:
    return kept_by({**HAND_OFFS, **config}, "mail.act", "act", parts)


def states(*parts: KeptPart, **config: str) -> Kept:
    return kept_by({**STATES, **config}, "job-state", None, parts)


def horizon(*topics: Kept) -> Horizon:
    return Horizon("mail", NOW, topics)


def test_nothing_is_missing_while_nothing_was_removed() -> None:
    found = horizon(
        stage(part(0, ago(6)), part(0, None, end=0)), states(part(0, ago(6)), part(0, None, end=0))
    )
    assert (found.whole_since, found.limits) == (None, ())
    assert found.covers(ago(9999))
    assert str(found) == "All jobs of flow mail can be replayed whole: nothing was removed."


def test_retention_leaves_what_the_partition_that_lost_latest_begins_with() -> None:
    found = horizon(stage(part(9, ago(6)), part(33, ago(3)), part(0, ago(1))), states())
    assert found.whole_since == ago(3)
    assert not found.covers(ago(3.1))
    assert found.covers(ago(3))
    assert str(found) == (
        "Jobs of flow mail that were submitted since 2026-03-07 12:00:00Z can be replayed whole; "
        "of older ones something may be missing in mail.act, whose first 42 offsets were removed "
        "by retention or by hand."
    )


def test_a_partition_that_lost_everything_tells_of_nothing_before_now() -> None:
    assert horizon(stage(part(100, None), part(0, ago(6))), states()).whole_since == NOW


@pytest.mark.parametrize(
    ("kept", "since"),
    [
        (part(0, ago(8)), ago(7)),
        (part(0, ago(6.9)), None),
        # Its front is gone: older steps than the first that is left were compacted.
        (part(0, ago(1), offset=5), ago(7)),
        # All that it ever had is gone.
        (part(0, None), ago(7)),
        (part(0, None, end=0), None),
    ],
)
def test_compaction_may_take_what_is_older_than_its_lag(
    kept: KeptPart, since: datetime | None
) -> None:
    found = horizon(stage(), states(kept))
    assert found.whole_since == since
    assert found.limits == (("job-state",) if since else ())
    assert ("older steps may be compacted (job_history keeps them)" in str(found)) == bool(since)


def test_without_a_lag_every_step_may_be_compacted() -> None:
    assert states(part(0, ago(1)), **{"min.compaction.lag.ms": "0"}).whole_since(NOW) == NOW


def test_a_job_state_that_is_also_cut_off_is_limited_by_what_took_more() -> None:
    both = {"cleanup.policy": "compact,delete"}
    assert states(part(4, ago(3)), **both).whole_since(NOW) == ago(3)
    assert states(part(4, ago(9)), **both).whole_since(NOW) == ago(7)


def test_settings_without_a_limit_are_read_as_none() -> None:
    ever = stage(**{"retention.ms": "-1"})
    assert (ever.retention, ever.compaction_lag) == (None, None)
    longest = states(**{"min.compaction.lag.ms": str(2**63 - 1)})
    assert longest.compaction_lag is not None
    assert longest.whole_since(NOW) is None
    assert (longest.deletes, longest.compacts) == (False, True)


def test_all_topics_that_set_it_are_named() -> None:
    found = horizon(stage(part(1, None)), stage(part(2, None)), states(part(0, ago(8))))
    assert found.limits == ("mail.act", "mail.act")
    assert "mail.act, whose first record was removed" in str(found)
