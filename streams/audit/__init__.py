"""The audit: promises P1 to P3 and P6, proved from topics, Postgres and the ledger.

What it reads in which order, and why: infra/decisions/0010-audit.md. For programs:
`with audited(settings) as verdict: …`.
"""

from streams.audit.run import Options, audited
from streams.audit.verdict import Finding, Verdict

__all__ = ["Finding", "Options", "Verdict", "audited"]
