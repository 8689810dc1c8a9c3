"""Stage 3: file a ticket or a reply at the desk, or archive, and say what was done and why.

What to do depends on the mail alone, and for a reply that needs a person's approval on what that
person said, which is in the record: so a redelivery decides the same. The desk is called through
the ledger: once per job, with a key that the desk honours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from pydantic import ValidationError

from agents.desk_client import file_ticket, send_reply
from agents.settings import approval_settings
from schemas.mail import Action, Approval, EnrichedMail, Filed, Label, Priority, Topic
from streams import Context, Done, Signal, Wait, stage

#: Spam that hurts people who believe it, so somebody reports it.
ABUSE: Final = frozenset({Topic.SCAM})
#: Below this probability a person looks at the verdict "spam".
SURE_FROM: Final = 0.8
_NAME_CHARS: Final = 60
_EXCERPT_CHARS: Final = 500
_URLS: Final = 5


def load_settings() -> None:
    approval_settings()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with a mail; `queue` is the desk's, None where nothing is filed."""

    action: Action
    reason: str
    queue: str | None = None


def plan_action(mail: EnrichedMail) -> Plan:
    """Decide by label, certainty, topic, priority and whether something is asked, in this order."""
    if mail.label is Label.SPAM:
        if mail.spam_score < SURE_FROM:
            return Plan(Action.TICKET, "spam, but not for certain", "review")
        if mail.topic in ABUSE:
            return Plan(Action.TICKET, f"spam that is a {mail.topic}", "abuse")
        return Plan(Action.ARCHIVED, f"spam about {mail.topic}")
    if mail.priority is Priority.HIGH:
        return Plan(Action.REPLY, "of high priority", mail.topic.value)
    if mail.asks and mail.priority is Priority.NORMAL:
        return Plan(Action.REPLY, "asks a question", mail.topic.value)
    return Plan(Action.TICKET, "for the record", mail.topic.value)


def approved(plan: Plan, mail: EnrichedMail, signal: Signal | None) -> Plan | None:
    """What is left of `plan` once a person has looked at it; None as long as nobody has.

    A reply that was refused, or that nobody approved in time, becomes a ticket: somebody answers by
    hand. A signal that is no `Approval` counts for nothing.
    """
    above = approval_settings().above
    if plan.action is not Action.REPLY:
        return plan
    if signal is None:
        return plan if above is None or mail.priority_points <= above else None
    if signal.timed_out:
        return replace(
            plan, action=Action.TICKET, reason=f"{plan.reason}; nobody approved the reply in time"
        )
    try:
        said = signal.parse(Approval)
    except ValidationError:
        return None
    by = signal.by[:_NAME_CHARS]
    if said.approved:
        return replace(plan, reason=f"{plan.reason}; approved by {by}")
    why = f": {said.reason}" if said.reason else ""
    return replace(plan, action=Action.TICKET, reason=f"{plan.reason}; refused by {by}{why}")


@stage("act", concurrency=64, timeout=timedelta(minutes=1), prepare=load_settings, waits="approval")
async def act(mail: EnrichedMail, job: Context) -> Done | Wait:
    """Do what the mail needs; the job's result is a `Filed`. Waits first, where a person is to
    approve it."""
    plan = approved(plan_action(mail), mail, job.signal)
    if plan is None:
        return Wait("approval", timeout=timedelta(seconds=approval_settings().timeout_s))
    number = None
    if plan.action is Action.TICKET:
        answer = await job.effect(
            "ticket", file_ticket, ticket_for(mail, plan, job.trace_id), idempotent=True
        )
        number = answer.number
    elif plan.action is Action.REPLY:
        answer = await job.effect(
            "reply", send_reply, reply_for(mail, plan, job.trace_id), idempotent=True
        )
        number = answer.number
    return Done(
        Filed(
            action=plan.action,
            reason=plan.reason,
            queue=plan.queue,
            number=number,
            label=mail.label,
            topic=mail.topic,
            priority=mail.priority,
            thread=mail.thread,
        )
    )


def ticket_for(mail: EnrichedMail, plan: Plan, trace_id: str) -> dict[str, Any]:
    """The ticket as JSON. `job` and `kind` let the desk see a double whatever its key."""
    return {
        "job": trace_id,
        "kind": "ticket",
        "queue": plan.queue,
        "reason": plan.reason,
        "subject": mail.subject,
        "excerpt": mail.body[:_EXCERPT_CHARS],
        "thread": mail.thread,
        "language": mail.language,
        "priority": mail.priority.value,
        "urls": list(mail.entities.urls[:_URLS]),
    }


def reply_for(mail: EnrichedMail, plan: Plan, trace_id: str) -> dict[str, Any]:
    """The reply as JSON; see `ticket_for`."""
    soon = "today" if mail.priority is Priority.HIGH else "within two working days"
    return {
        "job": trace_id,
        "kind": "reply",
        "queue": plan.queue,
        "reason": plan.reason,
        "subject": f"Re: {mail.thread_subject}",
        "text": f"Thank you for your mail. Somebody who knows about it will answer {soon}.",
        "thread": mail.thread,
        "language": mail.language,
        "priority": mail.priority.value,
    }
