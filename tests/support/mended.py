"""The flow of `tests.support.flows` after a repair: `work` no longer minds the fault of a job."""

from __future__ import annotations

from streams import Context, Flow, stage
from tests.support import flows
from tests.support.flows import Job, finish, mark, take


@stage("work", emits="finish", concurrency=2_000)
async def work(job: Job, context: Context) -> Job:
    """Does its effect, hands on."""
    if job.effect:
        idempotent = job.effect == "repeatable"
        await context.effect("mark", mark, job.n, job.answer_gate, idempotent=idempotent)
    return job.past("work")


flow = Flow(flows.flow.name, stages=(take, work, finish), sinks=("done",))
