"""Replay: consumed records run again through today's code, compared with what really happened.

    report = Replayer(OfTopic("mail.classify"), flow, load_settings()).run()
    print(report.line())

Nothing is written: no record, no offset, no row, no effect (infra/decisions/0013-replay.md).
"""

from streams.replay.effects import Policy
from streams.replay.replayer import Replayer
from streams.replay.report import Report
from streams.replay.selection import Bound, OfFile, OfJobs, OfLetters, OfTopic, OfTrace, Selection
from streams.replay.verdict import Judged, Verdict

__all__ = [
    "Bound",
    "Judged",
    "OfFile",
    "OfJobs",
    "OfLetters",
    "OfTopic",
    "OfTrace",
    "Policy",
    "Replayer",
    "Report",
    "Selection",
    "Verdict",
]
