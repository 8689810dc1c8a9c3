"""A step that was only a wait for a limit is not run again: no handler ran in production either."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from schemas.state import Status
from streams import Context, Done, Flow, stage
from streams.limits.limit import LIMITED
from streams.replay.lookup import Lookup
from tests.unit.replay.made import SETTINGS, failed, record, step


class Note(BaseModel):
    n: int


@stage("read")
def read(note: Note, _: Context) -> Done:
    return Done()


@pytest.mark.parametrize(("kind", "skipped"), [(LIMITED, True), ("retry", False)])
def test_a_wait_for_a_limit_is_skipped_and_a_retry_is_run(
    monkeypatch: Any, kind: str, skipped: bool
) -> None:
    lookup = Lookup(None, SETTINGS, Flow("notes", (read,)))  # type: ignore[arg-type]
    stored = record(0, b'{"n":0}')
    waited = step(0, **{**failed(kind), "status": Status.WAITING})
    monkeypatch.setattr(lookup, "steps_at", lambda _: {stored.spot: waited})
    monkeypatch.setattr(lookup, "effects_of", lambda _: {})
    monkeypatch.setattr(lookup, "_known", lambda _: set())
    [case] = lookup.cases([("read", stored)])
    assert case.skip is skipped
    assert bool(case.because) is skipped
