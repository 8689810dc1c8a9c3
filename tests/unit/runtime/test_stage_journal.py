"""How many that died once are in work at a time: neither these nor those alone later take long."""

from __future__ import annotations

import pytest

from streams.runtime.stage_journal import again_limit


@pytest.mark.parametrize(("size", "limit"), [(1, 1), (2, 2), (4, 2), (8, 3), (64, 8), (250, 16)])
def test_it_is_the_square_root_of_what_may_be_in_work(size: int, limit: int) -> None:
    assert again_limit(size) == limit
