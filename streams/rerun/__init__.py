"""Rerun: a job that is over is done again from a stage on, as a new job, in production.

    rerun = Rerun(settings, flow, conn)
    plan = rerun.plan("4bf9…", "act", Keys.SAME)
    rerun.send(plan, who="anna", why="the desk had lost it")

How it works and what a crash leaves: infra/decisions/0014-rerun.md.
"""

from streams.rerun.input import Input, Refused
from streams.rerun.rerun import Keys, Plan, Rerun, Sent, parked_reruns

__all__ = ["Input", "Keys", "Plan", "Refused", "Rerun", "Sent", "parked_reruns"]
