"""A bundle in a file is the bundle that was written, and hides what it was told to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.state import Status
from streams import Context, Emit, Flow, stage
from streams.errors import BadSetup
from streams.replay.bundle import Bundle, bundle_of, read_bundle, write_bundle
from streams.replay.facts import Case
from streams.replay.paths import parse_path
from streams.replay.replayer import Replayer
from streams.replay.selection import OfFile
from tests.unit.replay.made import SETTINGS, Note, case, failed, job, kept


@stage("read", emits="keep")
def read(note: Note, _: Context) -> Emit:
    return Emit("keep", note)


flow = Flow("notes", (read,), sinks=("keep",))
raw = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=8), raw), max_size=4).map(tuple)


def written(bundle: Bundle, folder: Path) -> Path:
    path = folder / "job.json"
    path.write_bytes(write_bundle(bundle))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles")


@given(raw, raw, headers, st.booleans())
def test_what_is_written_is_read_as_it_was(folder: Path, key, value, heads, gone: bool) -> None:
    one = case(
        1, (kept(1, "f"), kept(1, "g", "in_doubt", None)), data='{"n":123456789012345678901}'
    )
    assert one.record is not None
    changed = replace(one.record, key_=key, value_=value, headers_=heads)
    two = replace(case(2, **failed("rejected", "x\0\ud7ff")), record=None, because="expired")
    cases = (replace(one, record=changed), *((two,) if gone else ()))
    bundle = bundle_of(job(1), flow, cases, SETTINGS)
    assert read_bundle(written(bundle, folder)) == bundle


def test_the_same_outcome_from_a_file_without_services(folder: Path) -> None:
    to_sink = {"status": Status.DONE}
    fits, differs = case(1, **to_sink), case(2, data='{"n":9,"text":""}', **to_sink)
    path = written(bundle_of(job(1), flow, (fits, differs), SETTINGS), folder)
    elsewhere = SETTINGS.model_copy(update={"max_payload_bytes": 1_000, "prefix": "other-"})
    report = Replayer(OfFile(path), flow, elsewhere).run()
    assert report.total == 2
    assert [n.job for n in report.named] == [job(2)]


def test_redaction_leaves_no_trace_of_a_value(folder: Path) -> None:
    secret = "S3CRET"
    one = case(1, (kept(1, "fingerprint-of-it", result=f'{{"pin":"{secret}"}}'),))
    assert one.record is not None
    assert one.step is not None
    text = json.dumps({"n": 1, "text": secret})
    hidden: Case = replace(
        one,
        record=replace(one.record, value_=text.encode()),
        step=replace(one.step, data=text),
    )
    other = case(2, **failed("rejected", f"because of {secret}"))
    assert other.record is not None
    broken = replace(other, record=replace(other.record, value_=b"no json: " + secret.encode()))
    hide = [parse_path("data.text"), parse_path("effects.file.pin")]
    bundle = bundle_of(job(1), flow, (hidden, broken), SETTINGS, hide)
    path = written(bundle, folder)
    found = read_bundle(path)
    assert secret not in path.read_text()
    assert secret.encode() not in b"".join(c.record.value_ or b"" for c in found.cases if c.record)
    assert "fingerprint-of-it" not in path.read_text()
    assert found.redacted == ("data.text", "effects.file.pin")
    assert found.cases[0].effects[0].result == '{"pin":"[redacted]"}'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is no JSON"),
        (b"[]", "no file of `handoff export`"),
        (b'{"handoff_bundle": 2}', "its handoff_bundle is 2, and 1 can be read"),
        (b'{"handoff_bundle": 1}', "is damaged"),
    ],
)
def test_what_is_no_bundle_is_refused_with_a_reason(
    folder: Path, content: bytes, said: str
) -> None:
    path = folder / "no.json"
    path.write_bytes(content)
    with pytest.raises(BadSetup, match=said):
        read_bundle(path)


def test_a_job_of_another_flow_is_refused(folder: Path) -> None:
    path = written(bundle_of(job(1), flow, (case(1),), SETTINGS), folder)
    with pytest.raises(BadSetup, match="holds a job of flow notes, and --app names flow others"):
        Replayer(OfFile(path), Flow("others", (read,), sinks=("keep",)), SETTINGS).run()
