"""handoff as it is deployed: one worker process for each stage, all in one process group.

python -m infra.bench.peers.per_stage PROGRAM APP STAGE…
"""

from __future__ import annotations

import subprocess
import sys


def main() -> int:
    """Ends with the first worker that ends, and with its exit code."""
    program, app, *stages = sys.argv[1:]
    workers = [subprocess.Popen([program, "worker", stage, "--app", app]) for stage in stages]
    while True:
        for worker in workers:
            try:
                return worker.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                continue


if __name__ == "__main__":
    sys.exit(main())
