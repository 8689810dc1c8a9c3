"""The second flow that ships: a thread forks into its mails, and their findings join to a digest.

    handoff worker --app agents.digest:flow

Mails are read by the stages of the mail flow; nothing is filed at the desk.
"""

from __future__ import annotations

from agents.classify import classify
from agents.digest.digest import digest
from agents.digest.note import note
from agents.digest.split import split
from streams import Flow

flow = Flow("threads", (split, classify, note, digest), sinks=("digests", "unanswered"))

__all__ = ["classify", "digest", "flow", "note", "split"]
