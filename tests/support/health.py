"""Asks a worker for its health as an orchestrator does."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from infra.ports import free_ports


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: dict[str, Any]

    @property
    def text(self) -> str:
        """All sentences, of the worker and its agents."""
        agents = (s for a in self.body.get("agents", {}).values() for s in a["why"])
        return " ".join([*self.body.get("why", ()), *agents])


class Probe:
    """`/livez` and `/readyz` of one worker, at a port that was free."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)

    def __call__(self, path: str) -> Answer:
        """Status 0: nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=10) as r:
                return Answer(r.status, json.load(r))
        except urllib.error.HTTPError as e:
            return Answer(e.code, json.load(e))
        except OSError:
            return Answer(0, {})

    def both(self) -> tuple[int, int]:
        return self("livez").status, self("readyz").status
