"""The mail flow as it is where the environment names a model, whatever this process was told."""

from __future__ import annotations

from agents import act, enrich
from agents.classify import by_asking
from streams import Flow

flow = Flow("mail", (by_asking, enrich, act))
