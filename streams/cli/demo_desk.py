"""The demo's desk as a child process, and its own record of what it was asked to do."""

from __future__ import annotations

import json
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from infra.ports import free_ports
from streams.cli.supervise import ChildSpec, Supervisor
from streams.cli.tally import DeskCount
from streams.errors import BadWorld

_START_TIMEOUT_S = 30.0
_ASK_TIMEOUT_S = 10.0


class Desk:
    """`infra.demo.desk`, with its record and its log in `place`."""

    def __init__(self, place: Path) -> None:
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        self._log = place / "desk.log"
        #: Its own record: what it did, whatever anybody else says.
        self.record = place / "desk.jsonl"
        arguments = ("--port", str(port), "--record", str(self.record))
        self._spec = ChildSpec("desk", ("infra.demo.desk", *arguments), log=self._log, serves=True)

    @property
    def env(self) -> dict[str, str]:
        """What leads the stage `act` here; and nobody is there to approve replies."""
        return {"HANDOFF_DESK_URL": self._url, "HANDOFF_APPROVAL_ABOVE": ""}

    def start(self, supervisor: Supervisor) -> None:
        """Returns once the desk answers. Raises `BadWorld` if it does not."""
        supervisor.start(self._spec)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                self.count()
                return
            except BadWorld:
                if time.monotonic() > deadline:
                    raise
                supervisor.tick()
                time.sleep(0.05)

    def count(self) -> DeskCount:
        """The desk's own figures. Raises `BadWorld` when it does not answer."""
        try:
            with urlopen(f"{self._url}/stats", timeout=_ASK_TIMEOUT_S) as answer:  # noqa: S310
                stats = json.load(answer)
        except (URLError, OSError, ValueError) as e:
            raise BadWorld(f"The desk at {self._url} does not answer: {e}. See {self._log}.") from e
        return DeskCount(
            calls=stats["calls"],
            effects=stats["effects"],
            doubles=max(stats["doubles"], stats["keys_with_many_effects"]),
        )
