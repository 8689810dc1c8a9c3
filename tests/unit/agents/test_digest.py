"""The thread digest without a broker: what a thread forks into, what its branches add up to."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import agents.digest
from agents.digest import digest, flow, note, split
from agents.digest.digest import CLOCK
from agents.digest.threads import main, threads_in
from agents.threads import thread_of
from schemas.digest import (
    MAX_NAMED,
    MAX_THREAD_MAILS,
    EntityKind,
    MailNote,
    Named,
    Span,
    Thread,
    ThreadDigest,
)
from schemas.mail import Entities, Label, Mail, Money, Priority, Topic
from schemas.state import JobError
from streams import BadSetup, Done, Emit, Flow, Fork, Reject
from streams.outcome import MAX_BRANCHES
from streams.testing import TRACE_ID, job_context, joined
from tests.unit.agents.mails import SAMPLE, classified, enriched, mail, sample

README = Path(__file__).parents[3] / "README.md"
GOLDEN = Path(__file__).parents[2] / "golden" / "digest"
TYPES: list[type[BaseModel]] = [Thread, MailNote, ThreadDigest]
THREAD = "ab" * 8
AWAY = JobError(kind="rejected", message="unreadable")
DAY = datetime(2002, 9, 9, tzinfo=UTC)


def found(**over: Any) -> MailNote:
    return MailNote(**dict(enriched(**over)))


async def digested(*notes: MailNote | JobError | None) -> tuple[str, ThreadDigest]:
    """Where `digest` hands its result, and that."""
    outcome = await digest(joined(notes), job_context())
    assert isinstance(outcome, Emit)
    assert isinstance(outcome.model, ThreadDigest)
    return outcome.to, outcome.model


@pytest.mark.parametrize("model", TYPES)
def test_a_golden_file_reads_and_writes_as_ever(model: type[BaseModel]) -> None:
    text = (GOLDEN / f"{model.CE_TYPE}.json").read_text(encoding="utf-8")  # type: ignore[attr-defined]
    assert json.loads(model.model_validate_json(text).model_dump_json()) == json.loads(text)


def test_every_golden_file_has_a_type_and_every_type_a_golden_file() -> None:
    names = {model.CE_TYPE for model in TYPES}  # type: ignore[attr-defined]
    assert {path.name.removesuffix(".json") for path in GOLDEN.iterdir()} == names


def test_a_thread_forks_into_its_mails_in_order() -> None:
    mails = tuple(mail(id=str(n)) for n in range(3))
    outcome = split(Thread(thread=THREAD, mails=mails), job_context())
    assert isinstance(outcome, Fork)
    assert tuple(outcome.children) == mails
    assert (outcome.join, outcome.on_missing) == ("digest", "errors")


def test_a_thread_has_as_many_mails_as_a_fork_may_have_and_one_at_least() -> None:
    with pytest.raises(ValidationError, match="at least 1"):
        Thread(thread=THREAD, mails=())
    assert MAX_THREAD_MAILS == MAX_BRANCHES


def test_mails_are_read_by_the_stages_of_the_mail_flow() -> None:
    assert flow.stage("classify") is agents.flow.stage("classify")
    given = classified(body="Does http://example.org/ cost $5?", list="ilug", id="x")
    wanted = agents.enrich(given, job_context())
    outcome = note(given, job_context())
    assert isinstance(outcome, Done)
    result = outcome.result
    assert isinstance(result, MailNote)
    assert result.model_dump() == {
        name: value for name, value in wanted.model_dump().items() if name in MailNote.model_fields
    }
    assert not {"body", "subject"} & set(result.model_dump())


async def test_figures_are_those_of_the_branches() -> None:
    notes = (
        found(
            list="ilug",
            thread=THREAD,
            date=DAY,
            priority=Priority.NORMAL,
            entities=Entities(urls=("http://a", "http://b"), phones=("+12125550123",)),
        ),
        found(
            list="fork",
            date=DAY - timedelta(hours=3),
            language="de",
            topic=Topic.CODE,
            entities=Entities(urls=("http://b",), money=(Money(amount="5.50", currency="$"),)),
        ),
        found(
            list="ilug",
            label=Label.SPAM,
            thread_subject="another",
            entities=Entities(addresses=("a@example.org", "b@example.org")),
        ),
    )
    to, made = await digested(*notes)
    assert to == "digests"
    assert made == ThreadDigest(
        thread=THREAD,
        subject="apt problems",
        mails=3,
        unread=0,
        addresses=2,
        lists=("fork", "ilug"),
        span=Span(first=DAY - timedelta(hours=3), last=DAY),
        labels={Label.HAM: 2, Label.SPAM: 1},
        topics={Topic.LINUX: 2, Topic.CODE: 1},
        languages={"en": 2, "de": 1},
        priority=Priority.NORMAL,
        named=(
            Named(kind=EntityKind.URL, text="http://b", mails=2),
            Named(kind=EntityKind.ADDRESS, text="a@example.org", mails=1),
            Named(kind=EntityKind.ADDRESS, text="b@example.org", mails=1),
            Named(kind=EntityKind.MONEY, text="$5.50", mails=1),
            Named(kind=EntityKind.PHONE, text="+12125550123", mails=1),
            Named(kind=EntityKind.URL, text="http://a", mails=1),
        ),
    )


async def test_what_is_named_is_bounded_and_the_most_named_is_kept() -> None:
    urls = tuple(f"http://example.org/{n:02}" for n in range(MAX_NAMED + 5))
    _, made = await digested(
        found(entities=Entities(urls=urls)), found(entities=Entities(urls=urls[-1:]))
    )
    assert [(n.text, n.mails) for n in made.named] == [
        (urls[-1], 2),
        *((url, 1) for url in urls[: MAX_NAMED - 1]),
    ]


@pytest.mark.parametrize(
    ("asks", "open_questions"),
    [
        ("?", ["0"]),
        (".", []),
        ("?.", []),
        ("?.?", ["2"]),
        ("??", ["0", "1"]),
        ("?s", ["0"]),
        (".!", []),
    ],
)
async def test_a_question_is_open_until_a_later_mail_asks_nothing(
    asks: str, open_questions: list[str]
) -> None:
    """`?` asks, `.` does not; `s` is spam that does not, `!` is spam that does."""
    notes = (
        found(id=str(n), asks=mark in "?!", label=Label.SPAM if mark in "s!" else Label.HAM)
        for n, mark in enumerate(asks)
    )
    to, made = await digested(*notes)
    assert list(made.open_questions) == open_questions
    assert to == ("unanswered" if open_questions else "digests")


async def test_the_latest_open_questions_are_named_by_their_jobs_without_ids() -> None:
    _, made = await digested(*(found(asks=True) for _ in range(MAX_NAMED + 1)))
    assert made.open_questions == tuple(f"{TRACE_ID}/{n}" for n in range(1, MAX_NAMED + 1))


async def test_wrong_clocks_do_not_stretch_the_span() -> None:
    dates = (DAY.replace(year=102), DAY, DAY + CLOCK, DAY + CLOCK * 2.1, DAY - CLOCK / 2)
    _, made = await digested(*(found(date=date) for date in dates))
    assert made.span == Span(first=DAY - CLOCK / 2, last=DAY + CLOCK, wrong_clocks=2)


async def test_dates_of_all_kinds_can_be_compared() -> None:
    earliest = datetime.fromisoformat("0001-01-01T00:00:00+10:00")
    latest = datetime.fromisoformat("9999-12-31T23:59:59-10:00")
    naive = DAY.replace(tzinfo=None)
    _, made = await digested(*(found(date=date) for date in (latest, naive, earliest)))
    assert made.span == Span(first=DAY, last=DAY, wrong_clocks=2)
    _, made = await digested(found())
    assert made.span is None


async def test_branches_that_failed_or_did_not_come_are_counted_and_no_more() -> None:
    _, made = await digested(AWAY, found(thread=THREAD), None, found(asks=True, id="q"))
    assert (made.mails, made.unread, made.thread) == (4, 2, THREAD)
    assert made.labels == {Label.HAM: 2}
    assert made.open_questions == ("q",)


async def test_a_thread_of_which_nothing_could_be_read_is_refused() -> None:
    outcome = await digest(joined([AWAY, None]), job_context())
    assert outcome == Reject("None of the thread's 2 mails could be read.")


async def test_a_digest_is_the_same_again() -> None:
    notes = [found(asks=n % 2 == 0, date=DAY, list=f"l{n}") for n in range(9)]
    join = joined(notes)
    assert await digest(join, job_context()) == await digest(join, job_context())


def test_threads_are_made_of_the_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    threads = [Thread.model_validate_json(line) for line in out.splitlines()]
    wanted: dict[str, list[str]] = {}
    for row in sample():
        wanted.setdefault(row["thread"], []).append(row["id"])
    assert {t.thread: [m.id for m in t.mails] for t in threads} == {
        name: ids for name, ids in wanted.items() if len(ids) > 1
    }
    assert err == f"{len(threads):,} threads of {sum(len(t.mails) for t in threads):,} mails.\n"
    assert len(threads) > 200


def test_a_mail_of_no_thread_goes_by_its_subject(tmp_path: Path) -> None:
    lines = [mail(subject=s).model_dump_json().encode() for s in ("A", "B", "Re: A")]
    made = {t.thread: len(t.mails) for t in threads_in([*lines, b"\n"], 1)}
    assert made == {thread_of("A", ""): 2, thread_of("B", ""): 1}
    assert [len(t.mails) for t in threads_in(lines)] == [2]


def test_files_are_read_packed_or_not_and_a_line_that_is_no_mail_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 0
    whole = capsys.readouterr().out
    plain = tmp_path / "mails.jsonl"
    plain.write_bytes(gzip.decompress(SAMPLE.read_bytes()))
    assert main(["--data", str(plain)]) == 0
    assert capsys.readouterr().out == whole
    plain.write_text('{"subject": "a", "body": ""}\n{"subject": "no body"}\n')
    assert main(["--data", str(plain)]) == 1
    assert "Line 2 is no mail: body: Field required." in capsys.readouterr().err
    assert main(["--data", str(tmp_path / "gone")]) == 1
    assert "gone" in capsys.readouterr().err


def test_every_thread_of_the_sample_survives_a_round_trip() -> None:
    lines = gzip.decompress(SAMPLE.read_bytes()).splitlines()
    for thread in threads_in(lines, 1):
        assert Thread.model_validate_json(thread.model_dump_json()) == thread
        assert all(isinstance(m, Mail) for m in thread.mails)


async def test_the_readme_shows_the_flow_as_it_is() -> None:
    _, _, rest = README.read_text(encoding="utf-8").partition("<!-- fork:begin -->\n```python\n")
    code, end, _ = rest.partition("```\n<!-- fork:end -->")
    assert end, "README.md has no block between the fork markers"
    modules = [import_module(f"agents.digest.{name}") for name in ("split", "note", "digest")]
    names = {**vars(agents.digest), **{k: v for m in modules for k, v in vars(m).items()}}
    for name in ("flow", "split", "note", "digest"):
        del names[name]
    exec(code, names)
    shown = names["flow"]
    assert isinstance(shown, Flow)
    assert (shown.name, shown.sinks) == (flow.name, flow.sinks)
    for mine, theirs in zip(flow.stages, shown.stages, strict=True):
        for field in ("name", "emits", "joins", "input", "output", "joined"):
            assert getattr(mine, field) == getattr(theirs, field), field
    thread = Thread(thread=THREAD, mails=(mail(),))
    assert shown.entry(thread, job_context()) == split(thread, job_context())
    for results in ([found(asks=True), AWAY], [found()], [AWAY]):
        join = joined(results)
        assert await shown.stages[-1](join, job_context()) == await digest(join, job_context())


def test_the_readme_shows_what_an_undeclared_edge_looks_like() -> None:
    stages = (split, agents.classify, note, replace(digest, emits=("digests",)))
    with pytest.raises(BadSetup) as e:
        Flow("threads", stages, sinks=flow.sinks)
    assert f"error: {e.value.message}\n" in README.read_text(encoding="utf-8")
