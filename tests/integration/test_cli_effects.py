"""`handoff effects ls|resolve|actions` on a real ledger."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streams.config import Settings
from tests.support.commands import Command
from tests.support.ledger import (
    JOB,
    KEY,
    PostOffice,
    Worker,
    doubt,
    effect,
    row,
    slow_doubt,
    workers,
)

pytestmark = pytest.mark.services


@pytest.fixture
async def worker(settings: Settings) -> AsyncIterator[Worker]:
    async with workers(settings) as start:
        yield start


async def test_the_command_lists_resolves_records_and_says_what_comes_next(
    worker: Worker, settings: Settings, tmp_path: Path
) -> None:
    handoff = Command(settings, tmp_path)
    post = PostOffice()
    await doubt(worker, settings, post)
    listed = handoff("effects", "ls", "--in-doubt")
    assert listed.returncode == 1
    for text in (JOB, "act", "mail", KEY, "attempt 1 of slot 1 ended without an answer"):
        assert text in listed.stdout
    assert f"{row(settings)['claimed_at']:%Y-%m-%d %H:%M:%S}" in listed.stdout
    assert "1 (" in listed.stdout
    assert "handoff effects resolve KEY" in listed.stderr
    assert "hello" not in listed.stdout, "arguments are payload"

    for wrong in ((), ("--happened", "--did-not-happen"), ("--did-not-happen", "--result", "1")):
        assert handoff("effects", "resolve", KEY, "--reason", "log", *wrong).returncode == 2
    assert handoff("effects", "resolve", KEY, "--happened", "--yes").returncode == 2
    declined = handoff("effects", "resolve", KEY, "--happened", "--reason", "log", stdin="n\n")
    assert declined.returncode == 2
    assert row(settings)["status"] == "in_doubt"

    command = ("effects", "resolve", KEY, "--happened", "--result", "7", "--reason", "log 12")
    done = handoff(*command, "--as", "ada", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"handoff dlq redrive {JOB}\n"
    unknown = handoff("effects", "resolve", "no:such:0:key", *command[3:], "--yes")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "has no effect no:such:0:key" in unknown.stderr
    assert await (await worker()).run(effect(post, ask=False)) == 7

    shown = handoff("effects", "actions")
    for text in ("happened", "ada", "log 12", "in_doubt: attempt 1 of slot 1", KEY):
        assert text in shown.stdout
    [action] = json.loads(handoff("effects", "actions", KEY, "-o", "json").stdout)
    assert (action["actor"], action["result"]) == ("ada", 7)
    assert handoff("effects", "ls", "--in-doubt").returncode == 0


async def test_effects_that_happened_twice_are_said_with_every_list(
    worker: Worker, settings: Settings, tmp_path: Path
) -> None:
    handoff = Command(settings, tmp_path)
    assert handoff("effects", "actions").returncode == 0
    post, again = PostOffice(), PostOffice()
    slow = await slow_doubt(worker, settings, post)
    said = handoff("effects", "resolve", KEY, "--did-not-happen", "--reason", "log", "--yes")
    assert said.returncode == 0, said.stderr
    await (await worker()).run(effect(again, ask=False))
    post.call_gate.set()
    await slow
    for command in (("ls",), ("ls", "--in-doubt")):
        assert "1 effect happened twice" in handoff("effects", *command).stderr
    assert "happened twice: by attempts 3 and 1" in handoff("effects", "ls").stdout
    assert "happened twice" in handoff("effects", "actions", KEY).stdout
