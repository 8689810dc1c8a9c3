"""Dead letters: read, cluster, edit, redrive, discard.

Topics hold the letters; Postgres holds only what people did about them. Decision and failure table:
infra/decisions/0008-dead-letters.md. For programs: `await redrive(settings, ids, who="…")`.
"""

from streams.deadletter.redriving import Report, redrive

__all__ = ["Report", "redrive"]
