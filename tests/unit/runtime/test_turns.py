"""Two producers take turns, and never overlap; a slot with little to do has one."""

from __future__ import annotations

from typing import Any

import pytest

from streams.config import load_settings
from streams.runtime import turns
from streams.runtime.transaction import Verdict
from streams.runtime.turns import Turns


class Producers:
    """Stand-ins for transactors, which write down what is asked of them."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.opens = True

    def __call__(self, _: Any, id: str, __: Any) -> Any:
        log = self

        class Fake:
            away = False

            def open(self) -> bool:
                log.told.append(f"open {id}")
                return log.opens

            def close(self) -> None:
                log.told.append(f"close {id}")

            def give_up_if_it_hangs(self) -> bool:
                return id == "act-0b"

            def commit(self, *_: object) -> Verdict:
                log.told.append(f"commit {id}")
                return Verdict.COMMITTED

        return Fake()


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> Producers:
    made = Producers()
    monkeypatch.setattr(turns, "Transactor", made)
    return made


def commits(producers: Producers, each: Turns, count: int) -> list[str]:
    producers.told.clear()
    for _ in range(count):
        assert each.commit((), [], None) is Verdict.COMMITTED
    return producers.told


def test_both_ids_of_a_predecessor_are_fenced_and_one_producer_stays(producers: Producers) -> None:
    each = Turns(load_settings(), "act-0", lambda: False)
    assert each.open()
    assert set(producers.told) == {"open act-0", "open act-0b", "close act-0b"}
    producers.opens = False
    assert not each.open()


def test_commits_in_a_row_alternate(producers: Producers) -> None:
    each = Turns(load_settings(), "act-0", lambda: False)
    each.open()
    a, b = "commit act-0", "commit act-0b"
    assert commits(producers, each, 4) == [a, b, a, b]


def test_commits_with_pauses_need_no_second_producer(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(turns.time, "monotonic", lambda: now)
    each = Turns(load_settings(), "act-0", lambda: False)
    each.open()
    for _ in range(3):
        assert commits(producers, each, 1) == ["commit act-0"]
        now += 1.0


def test_whichever_hangs_is_given_up(producers: Producers) -> None:
    assert Turns(load_settings(), "act-0", lambda: False).give_up_if_it_hangs()
