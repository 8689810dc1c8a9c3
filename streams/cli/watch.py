"""`--watch`: a command's answer again and again, until Ctrl-C, which is a good end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated, Final

import typer

from streams.cli.output import say
from streams.errors import BadWorld

_EVERY_S: Final = 2.0
#: Clear the screen and put the cursor into its corner (ECMA-48).
_CLEAR: Final = "\x1b[2J\x1b[H"

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Again every 2 s, until Ctrl-C.")]


def watch(look: Callable[[], Callable[[], None]]) -> None:
    """`look` gathers, what it returns prints: a terminal is cleared in between, a pipe gets one
    answer after the other. A world that is bad for now is said, and asked again."""
    try:
        while True:
            try:
                show = look()
            except BadWorld as e:
                say(e.message)
            else:
                if sys.stdout.isatty():
                    sys.stdout.write(_CLEAR)
                show()
                sys.stdout.flush()
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        return
