"""How long and how much memory `handoff projection verify` and `rebuild` take for so many jobs.

    python -m tests.size.projection_size --jobs 1000000

The facts are those of `tests.size.audit_size`; some rows are spoiled between the two, and a second
verify follows the rebuild. Needs KAFKA_BOOTSTRAP_SERVERS and DATABASE_URL.
"""

from __future__ import annotations

import os

from streams.postgres import connect
from tests.size.audit_size import measure, written

_SPOIL = """
DELETE FROM jobs WHERE trace_id < '01';
UPDATE jobs SET stage = 'lost' WHERE trace_id < '02';
DELETE FROM job_history WHERE trace_id < '01' AND seq = 1;
"""


def main() -> None:
    with written(__doc__) as settings:
        measure(settings, "projection", "verify")
        with connect(settings) as conn:
            conn.execute(_SPOIL)
        measure(settings, "projection", "rebuild")
        measure(settings, "projection", "verify")


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    main()
