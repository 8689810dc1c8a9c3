"""`docker-compose.yml` runs all of the mail flow, each part of it once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from agents import flow

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"


def test_every_stage_and_agent_has_a_service() -> None:
    commands = re.findall(
        r"command: \[handoff, worker, (.*?), --slot, \"0\"\]", COMPOSE.read_text(encoding="utf-8")
    )
    run = Counter(name for each in commands for name in each.split(", "))
    assert run == Counter([*flow.inputs, "projector", "timers", "tracer"])
