"""What a case does at the desk: one slip is one job, so one effect."""

from __future__ import annotations

from datetime import timedelta

from agents.desk_client import file_ticket, send_reply
from schemas.case import Receipt, Slip
from schemas.mail import Action
from streams import Context, Done, stage


@stage("file", timeout=timedelta(minutes=1))
async def file(slip: Slip, job: Context) -> Done:
    """File a ticket or send a reply; the result is the desk's `Receipt`."""
    call = send_reply if slip.kind is Action.REPLY else file_ticket
    payload = {"job": job.trace_id, **slip.model_dump(mode="json")}
    answer = await job.effect(slip.kind.value, call, payload, idempotent=True)
    return Done(Receipt(number=answer.number))
