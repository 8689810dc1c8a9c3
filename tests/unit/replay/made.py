"""A small flow, and cases of it as a replay finds them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pydantic import BaseModel

from schemas import headers as h
from schemas.state import JobError, Status
from streams.config import Settings
from streams.flow import Flow
from streams.replay.effects import Policy
from streams.replay.facts import Case, KeptEffect, Step, StoredRecord
from streams.replay.trial import Trial
from streams.replay.verdict import Judged

SETTINGS = Settings()
TOPIC_ID = UUID(int=7)


class Note(BaseModel):
    n: int
    text: str = ""


def job(n: int) -> str:
    return f"{n + 1:032x}"


def record(n: int, value: bytes, stage: str = "read", seq: int = 1) -> StoredRecord:
    hop = b"%d;1700000000000000;notes" % (seq - 1)
    headers = ((h.HOP, hop),) if seq > 1 else ()
    place = (f"notes.{stage}", TOPIC_ID, 0, n)
    return StoredRecord(*place, 1_700_000_000_000, job(n).encode(), value, headers)


def step(n: int, **fields: Any) -> Step:
    given = {
        "job": job(n),
        "seq": 1,
        "flow": "notes",
        "stage": "read",
        "status": Status.RUNNING,
        "to": ("keep",),
        "data": f'{{"n":{n},"text":""}}',
        "error": None,
        "committed_us": 1_700_000_000_000_000,
        "is_last": True,
    }
    return Step(**{**given, **fields})


def failed(kind: str, message: str = "why") -> dict[str, Any]:
    """The fields of a step that ended in a dead letter."""
    error = JobError(kind=kind, message=message)
    return {"status": Status.FAILED, "to": (), "data": None, "error": error}


def case(n: int, effects: tuple[KeptEffect, ...] = (), pruned: bool = False, **fields: Any) -> Case:
    happened = step(n, **fields)
    kept = record(n, b'{"n":%d}' % n, happened.stage, happened.seq)
    return Case("notes", happened.stage, kept.place, kept, happened, effects, pruned=pruned)


def kept(
    n: int, fingerprint: str, status: str = "done", result: str | None = '"T-1"'
) -> KeptEffect:
    return KeptEffect(f"{job(n)}:read:0:file", job(n), "read", "file", status, fingerprint, result)


def judged(
    flow: Flow, *cases: Case, policy: Policy = Policy.LEDGER, ignored: Any = ()
) -> list[Judged]:
    with Trial(flow, SETTINGS, policy, ignored) as trial:
        return trial.judge(cases)
