"""Lines of a file become jobs: the same file gives the same ids, faults are named."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
from pydantic import BaseModel

from schemas.headers import BORN, CE_ID, LINK, SEQ, TRACEPARENT
from schemas.ids import is_job_id, span_id
from streams import Context, Done, Flow, stage
from streams.cli.submit import LineReader, open_lines
from streams.config import Settings
from streams.errors import BadRecord, BadSetup
from streams.submission import Heading, batches, check


class Note(BaseModel):
    number: int
    name: str | int | None = None


@stage("read")
def read(note: Note, job: Context) -> Done:
    return Done()


FLOW = Flow("notes", (read,))
JOB = "4bf92f3577b34da6a3ce929d0e0e4736"


def parse(
    text: bytes, id_field: str | None = None, limit: int = 900_000
) -> tuple[list[tuple[str, bytes]], int]:
    reader = LineReader(FLOW, read, Settings(max_payload_bytes=limit), id_field)
    return list(reader.read(io.BytesIO(text))), reader.faults


def test_the_same_file_gives_the_same_ids() -> None:
    text = b'{"number": 1}\n{"number": 2}\n'
    first, _ = parse(text)
    assert first == parse(text)[0]
    assert all(is_job_id(job_id) for job_id, _ in first)


def test_equal_lines_are_different_jobs() -> None:
    found, _ = parse(b'{"number": 1}\n' * 3)
    assert len({job_id for job_id, _ in found}) == 3


def test_the_line_end_is_no_part_of_a_job() -> None:
    assert parse(b'{"number": 1}\r\n')[0] == parse(b'{"number": 1}')[0]


def test_blank_lines_are_nothing() -> None:
    assert parse(b"\n  \n\r\n") == ([], 0)


def test_a_line_before_it_changes_no_id() -> None:
    alone, _ = parse(b'{"number": 1}\n')
    after, _ = parse(b'{"number": 9}\nbroken\n{"number": 1}\n')
    assert alone[0] == after[1]


def test_a_field_names_the_job_whatever_else_the_line_holds() -> None:
    first, _ = parse(b'{"number": 1, "name": "a"}\n', "name")
    second, _ = parse(b'{"name": "a", "number": 2}\n', "name")
    assert first[0][0] == second[0][0]
    assert first[0][1] != second[0][1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"number": "x"}', "line 2: no Note: number: "),
        (b"{broken", "line 2: no Note: Invalid JSON"),
        (
            b'{"number": 1' + b" " * 1_000 + b"}",
            "line 2: 1,013 bytes, and a payload may have 1,000",
        ),
        (b'{"number": 1, "text": "\xff"}', "line 2: no Note: "),
    ],
)
def test_invalid_lines_are_named_and_the_others_are_kept(
    line: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, faults = parse(b'{"number": 1}\n' + line + b'\n{"number": 2}', limit=1_000)
    assert [value for _, value in found] == [b'{"number": 1}', b'{"number": 2}']
    assert faults == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("line", [b'{"number": 1}', b'{"number": 1, "name": null}', b"[1]", b"{"])
def test_a_line_without_the_naming_field_is_invalid(line: bytes) -> None:
    assert parse(line, "name") == ([], 1)


def test_thousands_of_faults_are_counted_and_not_all_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, faults = parse(b"x\n" * 1_000)
    assert faults == 1_000
    assert capsys.readouterr().err.count("error:") == 20


def test_packed_files_are_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    with open_lines(str(tmp_path / "a.jsonl.gz")) as lines:
        assert list(lines) == [b"one\n", b"two\n"]


def test_a_file_that_is_not_there_or_not_packed_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadSetup, match="cannot be read"), open_lines(str(tmp_path / "no")):
        pass
    (tmp_path / "b.gz").write_bytes(b"plain")
    with (
        pytest.raises(BadSetup, match="not in gzip format"),
        open_lines(str(tmp_path / "b.gz")) as lines,
    ):
        list(lines)


def test_a_submission_carries_its_own_trace_and_no_step() -> None:
    headers = dict(Heading("notes", Note, link=None).of(JOB))
    assert headers[TRACEPARENT] == f"00-{JOB}-{span_id(JOB, 0)}-01".encode()
    assert headers[CE_ID] == f"{JOB}:0".encode()
    assert int(headers[BORN] or b"") > 1_700_000_000_000_000
    assert SEQ not in headers
    assert LINK not in headers


def test_the_span_that_submits_becomes_a_link() -> None:
    link = f"00-{'ab' * 16}-{'cd' * 8}-01"
    assert dict(Heading("notes", Note, link).of(JOB))[LINK] == link.encode()


@pytest.mark.parametrize("job_id", ["", "0" * 32, "ABCD" * 8, "ab" * 16 + "/x", "ab" * 15])
def test_ids_that_are_none_are_refused(job_id: str) -> None:
    with pytest.raises(BadSetup, match="32 lower-case hex digits"):
        check(Settings(), job_id, b"{}")


def test_a_payload_over_the_limit_is_refused() -> None:
    with pytest.raises(BadRecord, match="1,001 bytes"):
        check(Settings(max_payload_bytes=1_000), JOB, b"x" * 1_001)


def test_batches_are_bounded_in_records_and_in_bytes() -> None:
    small = list(batches((JOB, b"x") for _ in range(25_000)))
    assert [len(b) for b in small] == [10_000, 10_000, 5_000]
    large = list(batches((JOB, b"x" * 2**20) for _ in range(40)))
    assert [len(b) for b in large] == [16, 16, 8]
    assert list(batches([])) == []
