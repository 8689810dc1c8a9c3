"""`python -m streams.cli.tied MODULE ARGS…`: run a module that ends when its parent does.

The parent holds the other end of stdin. Should it die, even by SIGKILL, stdin closes and this
process stops as if it had been asked to: no orphan goes on with a slot that is taken elsewhere.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

#: A module that does not stop by itself is not left behind.
_LAST_CALL_S = 30.0


def main() -> None:
    module, *args = sys.argv[1:]
    threading.Thread(target=_watch, name="tied-to-parent", daemon=True).start()
    sys.argv = [module, *args]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _watch() -> None:
    # Unbuffered: a buffered read would hold a lock that the interpreter wants when it exits.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LAST_CALL_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
