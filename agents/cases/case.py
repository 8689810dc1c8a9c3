"""A case: a mail from its arrival until somebody has solved it, which may take days."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from agents.cases.file import file
from agents.classify import classify
from schemas.case import Closed, Outcome, Receipt, Slip
from schemas.digest import MailNote
from schemas.mail import Action, Label, Mail
from streams import CallFailed, Run, Signal, TimedOut, orchestrator

#: How long somebody has to solve it before they are reminded, and how often they are.
PATIENCE: Final = timedelta(days=2)
REMINDERS: Final = 3
_SHORT: Final = 200
_THANKS: Final = "Thank you for your mail. Somebody who knows about it will answer."


@orchestrator("case")
async def case(mail: Mail, run: Run) -> Closed:
    """Open a ticket and tell the sender, at once; then wait for the signal `solved`, whose value is
    the answer, and remind whoever is to solve it."""
    read = await run.call(classify, mail, returns=MailNote)
    if read.label is Label.SPAM:
        return Closed(outcome=Outcome.SPAM)
    opened = ticket_for(mail, read)
    try:
        ticket, _ = await run.gather(
            run.call(file, opened, returns=Receipt),
            run.call(file, thanks(opened), returns=Receipt),
        )
    except CallFailed as failed:
        await run.call(file, changed(opened, f"withdrawn: {failed.job_id} failed"))
        return Closed(outcome=Outcome.WITHDRAWN)
    for n in range(REMINDERS):
        try:
            solved = await run.signal("solved", timeout=PATIENCE)
            return closed(solved, ticket, n)
        except TimedOut:
            await run.call(file, changed(opened, f"reminder {n + 1} of {ticket.number}"))
    return Closed(outcome=Outcome.ABANDONED, ticket=ticket.number, reminders=REMINDERS)


def ticket_for(mail: Mail, read: MailNote) -> Slip:
    """The ticket."""
    reason = f"of {read.priority} priority"
    return Slip(queue=read.topic.value, subject=mail.subject, reason=reason, thread=read.thread)


def thanks(opened: Slip) -> Slip:
    """What the sender is told."""
    return opened.model_copy(update={"kind": Action.REPLY, "text": _THANKS})


def changed(opened: Slip, reason: str) -> Slip:
    """Another ticket about the same."""
    return opened.model_copy(update={"reason": reason})


def closed(solved: Signal, ticket: Receipt, reminders: int) -> Closed:
    """Somebody has answered."""
    return Closed(
        outcome=Outcome.SOLVED,
        ticket=ticket.number,
        reminders=reminders,
        by=solved.by[:_SHORT],
        answer=f"{solved.value}"[:_SHORT],
    )
