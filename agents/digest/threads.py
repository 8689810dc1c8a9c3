"""Make threads from mails, one JSON object a line, for `handoff submit`.

    python -m agents.digest.threads > threads.jsonl                      of the sample that ships
    python -m agents.digest.threads --data mails.jsonl --mails 1 > …     of your own mails

A mail belongs to the thread that its line names (16 hex digits), otherwise to that of its subject.
Mails keep the order of the file, threads that of their first mails; the same file gives the same
bytes. A thread that is too large for a record is refused by `handoff submit`.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from agents.threads import thread_of
from schemas.digest import Thread
from schemas.mail import Mail, ThreadId


class Line(Mail):
    """A line of the file: a mail that may say which thread it belongs to."""

    thread: ThreadId | None = None


def threads_in(lines: Iterable[bytes], at_least: int = 2) -> Iterator[Thread]:
    """Threads of `at_least` so many mails. Keeps all mails in memory.

    Raises `ValueError` that names the first line that is no mail.
    """
    found: dict[str, list[Mail]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            mail = _read(number, line)
            name = mail.thread or thread_of(mail.subject, mail.body)
            found.setdefault(name, []).append(Mail(**dict(mail)))
    for name, mails in found.items():
        if len(mails) >= at_least:
            yield Thread(thread=name, mails=tuple(mails))


def _read(number: int, line: bytes) -> Line:
    try:
        return Line.model_validate_json(line)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"Line {number} is no mail: {where}: {first['msg']}.") from None


def _lines(path: Path | None) -> list[bytes]:
    if path is None:
        packed = files("infra.demo").joinpath("mail.jsonl.gz").read_bytes()
        return gzip.decompress(packed).splitlines()
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 written; 1 a line is no mail, or the file cannot be read."""
    parser = argparse.ArgumentParser(
        prog="agents.digest.threads",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, help="mails as JSON lines, .gz or not; the sample")
    parser.add_argument("--mails", type=int, default=2, help="leave out shorter threads (2)")
    args = parser.parse_args(argv)
    threads = mails = 0
    try:
        for thread in threads_in(_lines(args.data), args.mails):
            print(thread.model_dump_json())
            threads, mails = threads + 1, mails + len(thread.mails)
    except (OSError, ValueError) as e:
        print(f"{e}", file=sys.stderr)
        return 1
    print(f"{threads:,} threads of {mails:,} mails.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
