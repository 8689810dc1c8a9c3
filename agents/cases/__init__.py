"""The third flow that ships: an orchestration follows a mail until somebody has solved it.

    handoff worker --app agents.cases:flow

Mails are read by stages of the mail flow and of the thread digest; tickets and replies go to the
desk.
"""

from __future__ import annotations

from agents.cases.case import case
from agents.cases.file import file
from agents.classify import classify
from agents.digest.note import note
from streams import Flow

flow = Flow("cases", (case, classify, note, file))

__all__ = ["case", "classify", "file", "flow", "note"]
