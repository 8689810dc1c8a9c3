"""A job in a file: its records raw, its steps, its effects' answers. Replays with no services.

JSON, version 1. Bytes are base64; payloads of steps and results of effects are JSON text, so that
large numbers keep their digits.
"""

from __future__ import annotations

import inspect
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path as FilePath
from typing import Any, Final
from uuid import UUID

import orjson

from schemas import headers as h
from schemas.state import JOIN, Forked, JobError, Status
from streams.config import Settings
from streams.errors import BadSetup
from streams.flow import Flow
from streams.joins import BranchRow
from streams.replay.facts import Case, Header, KeptEffect, Step, StoredRecord
from streams.replay.paths import Path, redacted, spell

VERSION: Final = 1
#: Settings on which the outcome of a run depends.
_SETTINGS: Final = ("prefix", "max_payload_bytes")


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a file holds. `code` tells which program exported it, for people."""

    job: str
    flow: str
    cases: tuple[Case, ...]
    limits: Mapping[str, Any]
    code: Mapping[str, Any]
    redacted: tuple[str, ...] = ()

    def settings(self, here: Settings) -> Settings:
        """Those of this process with the ones on which the outcome depends."""
        return here.model_copy(update=dict(self.limits))


def bundle_of(
    job: str, flow: Flow, cases: Sequence[Case], settings: Settings, hide: Sequence[Path] = ()
) -> Bundle:
    """The bundle of one job, with what `hide` means redacted."""
    kept = tuple(_redact(case, hide) for case in cases) if hide else tuple(cases)
    return Bundle(
        job=job,
        flow=flow.name,
        cases=kept,
        limits={name: getattr(settings, name) for name in _SETTINGS},
        code=code_of(flow),
        redacted=tuple(spell(path) for path in hide),
    )


def code_of(flow: Flow) -> dict[str, Any]:
    """The release, and a digest of the file of each stage's handler where there is one."""
    stages = {}
    for stage in flow.stages:
        name = inspect.getsourcefile(stage.handler)
        content = FilePath(name).read_bytes() if name and FilePath(name).is_file() else None
        stages[stage.name] = None if content is None else sha256(content).hexdigest()
    return {"handoff": version("handoff"), "stages": stages}


def _redact(case: Case, hide: Sequence[Path]) -> Case:
    """Messages go, since they may quote values, and fingerprints, which let a guess be tried."""
    record, step = case.record, case.step
    if record is not None:
        # What a branch told the join agent may be a message, and is not run.
        value = b"" if case.stage == JOIN else _redacted_value(record.value_, hide)
        record = replace(record, value_=value, headers_=_redacted_headers(record, hide))
    if step is not None:
        error = step.error and JobError(kind=step.error.kind, message="")
        step = replace(step, data=_redacted_text(step.data, hide, ("data",)), error=error)
    effects = tuple(
        replace(e, fingerprint=None, result=_redacted_text(e.result, hide, ("effects", e.name)))
        for e in case.effects
    )
    branches = None if case.branches is None else tuple(_hidden(b, hide) for b in case.branches)
    return replace(case, record=record, step=step, effects=effects, branches=branches)


def _hidden(branch: BranchRow, hide: Sequence[Path]) -> BranchRow:
    """The result of a branch is a payload like others."""
    if branch.status is Status.DONE:
        return branch._replace(value=_redacted_value(branch.value, hide) or b"")
    kind = JobError.model_validate_json(branch.value).kind
    return branch._replace(value=JobError(kind=kind, message="").model_dump_json().encode())


def _redacted_headers(record: StoredRecord, hide: Sequence[Path]) -> tuple[Header, ...]:
    """The signal that ended a wait is told by a header, and by paths under `signal`."""
    return tuple(
        (name, _redacted_value(value, hide, ("signal",)) if name == h.SIGNAL else value)
        for name, value in record.headers_
    )


def _redacted_value(
    value: bytes | None, hide: Sequence[Path], at: Path = ("data",)
) -> bytes | None:
    if value is None:
        return None
    try:
        text = _redacted_text(value.decode(), hide, at)
    except ValueError:
        # No JSON: nobody can say where in it is what must not be seen.
        return b""
    return None if text is None else text.encode()


def _redacted_text(text: str | None, hide: Sequence[Path], at: Path) -> str | None:
    if text is None:
        return None
    # Not orjson: payloads may hold integers of any size, and halves of surrogate pairs.
    return json.dumps(redacted(json.loads(text), hide, at), separators=(",", ":"))


def write_bundle(bundle: Bundle) -> bytes:
    """The file's content."""
    content = {
        "handoff_bundle": VERSION,
        "job": bundle.job,
        "flow": bundle.flow,
        "code": bundle.code,
        "settings": bundle.limits,
        "redacted": list(bundle.redacted),
        "steps": [_case_json(case) for case in bundle.cases],
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n"


def read_bundle(path: FilePath) -> Bundle:
    """The bundle in a file. Raises `BadSetup` that says why it is none."""
    try:
        content = orjson.loads(path.read_bytes())
    except OSError as e:
        raise BadSetup(f"{path} cannot be read: {e.strerror}.") from e
    except ValueError as e:
        raise BadSetup(f"{path} is no JSON, so no file of `handoff export`: {e}.") from e
    found = content.get("handoff_bundle") if isinstance(content, dict) else None
    if found != VERSION:
        raise BadSetup(
            f"{path} is no file of `handoff export`, or of another release: its handoff_bundle is "
            f"{found}, and {VERSION} can be read."
        )
    try:
        limits = {name: content["settings"][name] for name in _SETTINGS}
        return Bundle(
            job=content["job"],
            flow=content["flow"],
            cases=tuple(_case(content["flow"], found) for found in content["steps"]),
            limits=limits,
            code=content["code"],
            redacted=tuple(content["redacted"]),
        )
    except (KeyError, TypeError, ValueError) as e:
        raise BadSetup(f"{path} is damaged: {type(e).__name__}: {e}. Export the job again.") from e


def _case_json(case: Case) -> dict[str, Any]:
    return {
        "stage": case.stage,
        "place": case.place,
        "because": case.because,
        "skip": case.skip,
        "pruned": case.pruned,
        "record": None if case.record is None else _record_json(case.record),
        "step": None if case.step is None else _step_json(case.step),
        "effects": [_effect_json(e) for e in case.effects],
        **_fork_json(case),
    }


def _fork_json(case: Case) -> dict[str, Any]:
    """Only what is there: the job of a flow that does not fork, or wait, has none."""
    found: dict[str, Any] = {}
    if case.fork is not None:
        found["fork"] = case.fork.model_dump(by_alias=True)
    if case.branches is not None:
        found["branches"] = [[b.number, b.status.value, _text(b.value)] for b in case.branches]
    if case.begun is not None:
        found["begun"] = list(case.begun)
    return found


def _branches(found: Sequence[Any] | None) -> tuple[BranchRow, ...] | None:
    if found is None:
        return None
    return tuple(BranchRow(n, Status(status), _bytes(value) or b"") for n, status, value in found)


def _case(flow: str, found: Mapping[str, Any]) -> Case:
    return Case(
        flow=flow,
        stage=found["stage"],
        place=found["place"],
        record=None if found["record"] is None else _record(found["record"]),
        step=None if found["step"] is None else _step(found["step"]),
        effects=tuple(KeptEffect(**e) for e in found["effects"]),
        because=found["because"],
        skip=found["skip"],
        pruned=found["pruned"],
        fork=None if found.get("fork") is None else Forked(**found["fork"]),
        branches=_branches(found.get("branches")),
        begun=None if found.get("begun") is None else tuple(found["begun"]),
    )


def _record_json(record: StoredRecord) -> dict[str, Any]:
    return {
        "topic": record.topic_,
        "topic_id": str(record.topic_id),
        "partition": record.partition_,
        "offset": record.offset_,
        "timestamp_ms": record.timestamp_ms,
        "key": _text(record.key_),
        "value": _text(record.value_),
        "headers": [[name, _text(value)] for name, value in record.headers_],
    }


def _record(found: Mapping[str, Any]) -> StoredRecord:
    return StoredRecord(
        found["topic"],
        UUID(found["topic_id"]),
        found["partition"],
        found["offset"],
        found["timestamp_ms"],
        _bytes(found["key"]),
        _bytes(found["value"]),
        tuple((name, _bytes(value)) for name, value in found["headers"]),
    )


def _step_json(step: Step) -> dict[str, Any]:
    error = step.error
    return {
        "job": step.job,
        "seq": step.seq,
        "flow": step.flow,
        "stage": step.stage,
        "status": step.status.value,
        "to": list(step.to),
        "data": step.data,
        "error": None if error is None else {"kind": error.kind, "message": error.message},
        "committed_us": step.committed_us,
        "is_last": step.is_last,
    }


def _step(found: Mapping[str, Any]) -> Step:
    error = found["error"]
    return Step(
        **{
            **found,
            "status": Status(found["status"]),
            "to": tuple(found["to"]),
            "error": None if error is None else JobError(**error),
        }
    )


def _effect_json(effect: KeptEffect) -> dict[str, Any]:
    names: Iterable[str] = KeptEffect.__dataclass_fields__
    return {name: getattr(effect, name) for name in names}


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else b64encode(raw).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text, validate=True)
