"""Named places where a test may kill the process; inert unless armed by `Settings.crash_point`.

Each name stands on exactly one line of the code. `name` kills at the first pass, `name:3` at the
third. SIGKILL, since that is what no handler, `finally` or buffer can soften.
"""

from __future__ import annotations

import os
import signal

_armed: tuple[str, int] | None = None


def arm(point: str | None) -> None:
    """Arm `name` or `name:n`; None disarms."""
    global _armed  # noqa: PLW0603 - one per process by design
    if point is None:
        _armed = None
    else:
        name, _, nth = point.partition(":")
        _armed = (name, int(nth or 1))


def reach(name: str) -> None:
    """The process dies here if this point is armed and its turn has come."""
    global _armed  # noqa: PLW0603
    if _armed is not None and _armed[0] == name:
        remaining = _armed[1] - 1
        _armed = (name, remaining)
        if remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)
