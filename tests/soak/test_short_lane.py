"""The soak's short lane: fewer jobs, faults in quick succession. Seeds that ever failed stay."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.soak.run import soak

pytestmark = pytest.mark.services

SEEDS = (1,)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_faults_lose_and_double_nothing(seed: int) -> None:
    # Not below pytest's own folder: Postgres runs as another user when we are root.
    with TemporaryDirectory(prefix="handoff-soak-") as folder:
        Path(folder).chmod(0o711)
        report = soak(
            Path(folder),
            seed=seed,
            seconds=45,
            jobs=2_500,
            say=print,
            gap_s=(2.0, 5.0),
            longest_s=6.0,
        )
    assert report.faults == []
    assert report.counts["effects"] == 2_500
    # On a slow machine the last ones come too late.
    assert report.happened.total() >= 6
