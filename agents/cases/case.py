"""A case: a mail from its arrival until somebody has solved it, which may take days."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from agents.cases.file import file
from agents.classify import classify
from schemas.case import Closed, Outcome, Receipt, Slip
from schemas.digest import MailNote
from schemas.mail import Action, Label, Mail
from streams import CallFailed, Run, TimedOut, orchestrator

#: How long somebody has to solve it before they are reminded, and how often they are.
PATIENCE: Final = timedelta(days=2)
REMINDERS: Final = 3
_THANKS: Final = "Thank you for your mail. Somebody who knows about it will answer."


@orchestrator("case")
async def case(mail: Mail, run: Run) -> Closed:
    """Open a ticket and tell the sender, at once; then wait for the signal `solved`, whose value is
    the answer, and remind whoever is to solve it."""
    read = await run.call(classify, mail, returns=MailNote)
    if read.label is Label.SPAM:
        return Closed(outcome=Outcome.SPAM)
    opened = slip_for(mail, read)
    ticket = run.call(file, opened, returns=Receipt)
    reply = run.call(file, thanks(opened), returns=Receipt)
    try:
        receipt, _ = await run.gather(ticket, reply)
    except CallFailed as failed:
        await run.call(file, changed(opened, f"withdrawn: {failed.job_id} failed"))
        return Closed(outcome=Outcome.WITHDRAWN)
    for n in range(REMINDERS + 1):
        try:
            solved = await run.signal("solved", timeout=PATIENCE)
        except TimedOut:
            if n < REMINDERS:
                await run.call(file, changed(opened, f"reminder {n + 1} of {receipt.number}"))
        else:
            return Closed(
                outcome=Outcome.SOLVED,
                ticket=receipt.number,
                reminders=n,
                by=solved.by[:200],
                answer=f"{solved.value}"[:200],
            )
    return Closed(outcome=Outcome.ABANDONED, ticket=receipt.number, reminders=REMINDERS)


def slip_for(mail: Mail, read: MailNote) -> Slip:
    """The ticket."""
    reason = f"of {read.priority} priority"
    return Slip(queue=read.topic.value, subject=mail.subject, reason=reason, thread=read.thread)


def thanks(opened: Slip) -> Slip:
    """What the sender is told."""
    return opened.model_copy(update={"kind": Action.REPLY, "text": _THANKS})


def changed(opened: Slip, reason: str) -> Slip:
    """Another ticket about the same."""
    return opened.model_copy(update={"reason": reason})
