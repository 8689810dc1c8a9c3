"""The thread's first stage: each mail becomes a branch."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from schemas.digest import Thread
from streams import Context, Fork, stage

#: A digest without a mail or two is worth more than one that never comes.
PATIENCE: Final = timedelta(hours=1)


@stage("split", emits="classify", joins="digest")
def split(thread: Thread, job: Context) -> Fork:
    """Fork into the thread's mails, in their order."""
    return Fork(thread.mails, join="digest", timeout=PATIENCE, on_missing="errors")
