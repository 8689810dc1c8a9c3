"""A later release of the flow, whose `work` wants more than it was ever given."""

from __future__ import annotations

from streams import Context, Flow, stage
from tests.support.flows import Job, finish


class StrictJob(Job):
    token: str


@stage("work", emits="finish")
def work(job: StrictJob, _: Context) -> Job:
    """Wants a token."""
    return job


flow = Flow("run", stages=(work, finish), sinks=("done",))
