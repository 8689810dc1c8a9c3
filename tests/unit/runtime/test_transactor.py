"""A transactor that was given up lets go of its producer, which knows it in turn."""

from __future__ import annotations

from typing import Any

import pytest

from streams.config import load_settings
from streams.runtime.transaction import GivenUp, Transactor


def test_who_was_given_up_keeps_no_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    transactor = Transactor(load_settings(), "run.work-0", stopping=lambda: False)
    producer: Any = object()
    transactor._producer = producer
    limit_s = 2 * load_settings().commit_timeout_s

    def hang() -> None:
        assert transactor._called_at is not None
        transactor._called_at -= limit_s + 1
        assert transactor.give_up_if_it_hangs()

    with pytest.raises(GivenUp):
        transactor._call(hang)
    assert transactor._producer is None
