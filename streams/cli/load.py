"""`--app module:attribute` → the flow, or a sentence that says why not."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from streams.errors import BadSetup
from streams.flow import Flow

DEFAULT_APP = "agents:flow"

App = Annotated[
    str,
    typer.Option(
        "--app", envvar="HANDOFF_APP", help="Where the flow is declared: module:attribute."
    ),
]


def load_flow(app: str) -> Flow:
    """The flow named by `app`; modules are also looked up in the current directory.

    Raises `BadSetup` when there is none; errors inside the module itself pass as they are.
    """
    module_name, _, attribute = app.partition(":")
    if not module_name or not attribute:
        raise BadSetup(f"--app is module:attribute, for example {DEFAULT_APP}; {app!r} is not.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{module_name}.".startswith(f"{e.name}."):
            raise BadSetup(
                f"Module {module_name} needs {e.name}, which is not installed. Install it into "
                f"{sys.prefix}."
            ) from e
        raise BadSetup(
            f"There is no module {e.name} (from --app {app}), neither installed nor in "
            f"{os.getcwd()}. Name the module that declares your flow."
        ) from None
    found = getattr(module, attribute, None)
    if not isinstance(found, Flow):
        what = "has no such attribute" if found is None else f"holds a {type(found).__name__} there"
        raise BadSetup(
            f"--app {app} should name a Flow, but module {module_name} {what}. "
            f"{_candidates(module_name, vars(module))}"
        )
    return found


def _candidates(module_name: str, attributes: dict[str, object]) -> str:
    flows = sorted(name for name, value in attributes.items() if isinstance(value, Flow))
    if not flows:
        return "It declares no flow at all."
    return "It has " + ", ".join(f"{module_name}:{name}" for name in flows) + "."
