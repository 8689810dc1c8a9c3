"""The command line: parse, call, print.

Each command lives in a module of its own that is imported when the command runs, so that
`handoff --version` does not wait for drivers that it does not use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from streams.cli.output import complain, exit_code
from streams.errors import HandoffError

#: Command → module with its `app`, in the order of `--help`.
_MODULES = {
    "up": "streams.cli.up",
    "demo": "streams.cli.demo",
    "doctor": "streams.cli.doctor",
    "submit": "streams.cli.submit",
    "worker": "streams.cli.worker",
    "jobs": "streams.cli.jobs",
    "stage": "streams.cli.stage",
    "trace": "streams.cli.trace",
    "why": "streams.cli.why",
    "join": "streams.cli.join",
    "signal": "streams.cli.signal",
    "run": "streams.cli.run",
    "flow": "streams.cli.flow",
    "lag": "streams.cli.lag",
    "replay": "streams.cli.replay",
    "export": "streams.cli.export",
    "diff": "streams.cli.diff",
    "audit": "streams.cli.audit",
    "projection": "streams.cli.projection",
    "effects": "streams.cli.effects",
    "dlq": "streams.cli.dlq",
    "topics": "streams.cli.topics",
    "db": "streams.cli.db",
}

_INTERRUPTED = 130


#: For every command whose help does not say its own.
_EXIT_CODES = (
    "Exit codes: 0 well; 1 the answer is bad news (a job is not found, a check failed, a demo does "
    "not add up); 2 wrong usage or set-up; 3 Kafka, Postgres or a service does not serve; 130 "
    "interrupted."
)


class _Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in _MODULES:
            command = typer.main.get_command(import_module(_MODULES[cmd_name]).app)
            command.name = cmd_name
            _tell_exit_codes(command)
            self.commands[cmd_name] = command
        return self.commands.get(cmd_name)


def _tell_exit_codes(command: Any) -> None:
    for sub in getattr(command, "commands", {}).values():
        _tell_exit_codes(sub)
    if "Exit codes:" not in (command.help or ""):
        command.epilog = _EXIT_CODES


app = typer.Typer(
    name="handoff",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=f"{_EXIT_CODES} Settings come from the environment: KAFKA_BOOTSTRAP_SERVERS, "
    "DATABASE_URL, HANDOFF_*; see streams/config.py.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"handoff {version('handoff')}")
        raise typer.Exit()


@app.callback()
def root(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Agent pipelines on Kafka and Postgres with exactly-once hand-offs."""


def main() -> None:
    """Entry point: an error of ours is a sentence on stderr and an exit code, no traceback."""
    try:
        app()
    except HandoffError as e:
        complain(e.message)
        sys.exit(exit_code(e))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
