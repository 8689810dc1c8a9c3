"""The desk: keys, its record, faults on purpose, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from infra.demo.book import Book, Result
from infra.demo.desk import Desk, Trouble, parse_key

Post = Callable[..., Awaitable[tuple[int, dict[str, Any]]]]
Open = Callable[..., Awaitable[tuple[Desk, Post]]]


@pytest.fixture
async def open_desk() -> AsyncIterator[Open]:
    desks: list[Desk] = []
    async with aiohttp.ClientSession() as session:

        async def open_(
            record: Path | None = None, trouble: Trouble | None = None
        ) -> tuple[Desk, Post]:
            desk = Desk(record, trouble)
            url = await desk.start()
            desks.append(desk)

            async def post(
                key: str | None, job: str = "a", path: str = "tickets", **more: Any
            ) -> tuple[int, dict[str, Any]]:
                body = {"job": job, "kind": "ticket" if path == "tickets" else "reply", **more}
                headers = {} if key is None else {"Idempotency-Key": key}
                async with session.post(f"{url}/{path}", json=body, headers=headers) as got:
                    return got.status, await got.json(content_type=None)

            return desk, post

        yield open_
    for desk in desks:
        await desk.stop()


async def test_the_same_call_again_gives_the_stored_answer_and_no_effect(open_desk: Open) -> None:
    desk, post = await open_desk()
    first = await post('"k"')
    assert first == (201, {"number": "T-000001", "kind": "ticket", "job": "a"})
    assert await post('"k"') == first
    assert await post("k") == first
    stats = desk.stats()
    assert (stats["calls"], stats["effects"], stats["replays"], stats["doubles"]) == (3, 1, 2, 0)


@pytest.mark.parametrize("other", [{"subject": "x"}, {"job": "b"}, {"path": "replies"}])
async def test_the_same_key_with_another_request_is_refused(
    open_desk: Open, other: dict[str, str]
) -> None:
    desk, post = await open_desk()
    await post("k")
    status, problem = await post("k", **other)
    assert (status, desk.stats()["effects"]) == (422, 1)
    assert problem["detail"] == "Key k was used with another body before."


async def test_a_second_call_while_the_first_is_running_is_a_conflict(open_desk: Open) -> None:
    desk, post = await open_desk(trouble=Trouble(delay_ms=300))
    answers = await asyncio.gather(post("k"), post("k"), post("other"))
    assert sorted(status for status, _ in answers) == [201, 201, 409]
    assert desk.stats()["conflicts"] == 1
    assert (await post("k"))[0] == 201
    assert desk.stats()["effects"] == 2


@pytest.mark.parametrize("key", [None, "", '""', "k" * 301])
async def test_a_call_without_a_usable_key_is_refused(open_desk: Open, key: str | None) -> None:
    desk, post = await open_desk()
    assert (await post(key))[0] == 400
    assert desk.stats()["effects"] == 0


@pytest.mark.parametrize("more", [{"kind": "reply"}, {"job": ""}, {"job": 7}])
async def test_a_body_that_names_no_job_or_another_kind_is_refused(
    open_desk: Open, more: dict[str, Any]
) -> None:
    _, post = await open_desk()
    assert (await post("k", **more))[0] == 400


async def test_two_effects_of_one_job_are_a_double_under_whatever_keys(open_desk: Open) -> None:
    desk, post = await open_desk()
    for key, job, path in (("1", "a", "tickets"), ("2", "a", "tickets"), ("3", "a", "replies")):
        await post(key, job=job, path=path)
    assert (desk.stats()["effects"], desk.stats()["doubles"]) == (3, 1)
    assert desk.stats()["keys_with_many_effects"] == 0


async def test_a_restarted_desk_honours_old_keys_and_counts_on(
    open_desk: Open, tmp_path: Path
) -> None:
    record = tmp_path / "desk.jsonl"
    desk, post = await open_desk(record)
    first = await post("k")
    await post("other", job="b")
    before = desk.stats()
    # Without a stop: as after SIGKILL, only what is in the file is left.
    again, post = await open_desk(record)
    assert again.stats() == before
    assert await post("k") == first
    assert again.stats() == {**before, "calls": 3, "replays": 1}


async def test_failures_come_before_and_after_the_effect_and_a_repeat_heals_both(
    open_desk: Open,
) -> None:
    desk, post = await open_desk(trouble=Trouble(fail_rate=0.5, seed=3))
    for n in range(40):
        while (await post(f"k{n}", job=f"j{n}"))[0] == 503:
            pass
    assert desk.book.calls[Result.FAILED_BEFORE] > 0
    assert desk.book.calls[Result.FAILED_AFTER] > 0
    assert (desk.stats()["effects"], desk.stats()["doubles"]) == (40, 0)
    assert desk.stats()["calls"] == 40 + desk.stats()["failures"]


async def test_the_record_can_be_asked_for_by_job() -> None:
    desk = Desk()
    desk.book.do("k", "a", "ticket", "f")
    desk.book.do("l", "b", "reply", "f")
    url = await desk.start()
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/record?job=b") as got:
            lines = [orjson.loads(line) for line in (await got.read()).splitlines()]
        async with session.get(f"{url}/stats") as got:
            stats = await got.json()
    await desk.stop()
    assert [line["key"] for line in lines] == ["l"]
    assert stats == desk.stats()


def test_a_line_cut_off_by_a_crash_did_not_happen(tmp_path: Path) -> None:
    path = tmp_path / "desk.jsonl"
    book = Book(path)
    book.do("k", "a", "ticket", "f")
    book.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"what":"effect","key":"l')
    again = Book(path)
    assert again.effects == 1
    again.do("l", "b", "ticket", "f")
    again.close()
    third = Book(path)
    third.close()
    assert [effect.key for effect in third.all_effects()] == ["k", "l"]


def test_a_record_that_is_none_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "desk.jsonl"
    path.write_bytes(b'{"what":"call","key":"k","result":"effect"}\n{"what":"elephant"}\n')
    with pytest.raises(ValueError, match="Line 2 of the desk's record"):
        Book(path)


def test_a_quoted_key_may_contain_quotes() -> None:
    assert parse_key('"a\\"b\\\\c"') == 'a"b\\c'
