"""`--watch` asks again, survives a bad world, and ends well with Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streams.cli import watch as module
from streams.cli.watch import watch
from streams.errors import BadWorld


def test_it_asks_again_until_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_EVERY_S", 0.0)
    answers = iter(["first", BadWorld("Kafka is away."), "second", KeyboardInterrupt()])

    def look() -> Callable[[], None]:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return lambda: print(answer)

    watch(look)
    said = capsys.readouterr()
    assert said.out == "first\nsecond\n", "a pipe gets no escape codes"
    assert said.err == "Kafka is away.\n"
