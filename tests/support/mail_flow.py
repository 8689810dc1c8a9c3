"""A flow that sends letters by SMTP: a target that honours no idempotency keys."""

from __future__ import annotations

import asyncio
import os
import smtplib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.message import EmailMessage
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from streams import (
    Backoff,
    BadRecord,
    Context,
    DidNotHappen,
    Done,
    EffectNotDone,
    Flow,
    Happened,
    stage,
)
from tests.support import target
from tests.support.smtp import LOG_VARIABLE, PORT_VARIABLE, read_log

#: Longer than any test holds a mail: a time-out would be another fault than the one under test.
_TIMEOUT_S = 120.0
_CONCURRENCY = 50
_SENDERS = ThreadPoolExecutor(_CONCURRENCY, "smtp")


class Letter(BaseModel):
    n: int
    #: Declare the effect with a reconcile function that looks into the server's log.
    ask: bool = False
    #: It passes this gate of the rig's target before it looks.
    look_gate: str = ""
    #: The handler passes this one after the mail is sent and settled.
    gate_after: str = ""


class Sent(BaseModel):
    """What the server's word is worth."""

    message_id: str


async def send_mail(subject: str, *, idempotency_key: str) -> Sent:
    """Raises `EffectNotDone` where the server refused for now, `BadRecord` where for good; what
    else smtplib raises (the connection broke) does not tell whether the mail is on its way."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_SENDERS, _deliver, subject, message_id(idempotency_key))


async def look_for_mail(
    subject: str, *, idempotency_key: str, gate: str = ""
) -> Happened[Sent] | DidNotHappen:
    """Asks the server's log."""
    if gate:
        await target.pass_gate(gate)
    wanted = message_id(idempotency_key)
    if any(found == wanted for found, _ in read_log(Path(os.environ[LOG_VARIABLE]))):
        return Happened(Sent(message_id=wanted))
    return DidNotHappen()


def message_id(key: str) -> str:
    return f"<{key.replace(':', '.')}@test>"


def _deliver(subject: str, message_id: str) -> Sent:
    mail = EmailMessage()
    mail["From"], mail["To"] = "desk@example.org", "you@example.org"
    mail["Subject"], mail["Message-ID"] = subject, message_id
    mail.set_content("Thank you.")
    try:
        smtp = smtplib.SMTP("127.0.0.1", int(os.environ[PORT_VARIABLE]), timeout=_TIMEOUT_S)
        try:
            smtp.send_message(mail)
        finally:
            # No QUIT: its failure would say nothing about the mail.
            smtp.close()
    except smtplib.SMTPRecipientsRefused as e:
        raise _refused(next(iter(e.recipients.values()))[0], e) from e
    except smtplib.SMTPResponseException as e:
        raise _refused(e.smtp_code, e) from e
    except ConnectionRefusedError as e:
        raise EffectNotDone("The mail server cannot be reached.") from e
    return Sent(message_id=message_id)


def _refused(code: int, error: smtplib.SMTPException) -> EffectNotDone | BadRecord:
    said = f"The mail server answered {code}."
    return EffectNotDone(said) if code < 500 else BadRecord(said)


@stage(
    "send",
    concurrency=_CONCURRENCY,
    timeout=timedelta(minutes=3),
    retry=Backoff(attempts=5, first=timedelta(milliseconds=20)),
)
async def send(letter: Letter, job: Context) -> Done:
    """Sends a letter, once."""
    subject = f"letter {letter.n}"
    reconcile = partial(look_for_mail, gate=letter.look_gate) if letter.ask else None
    sent = await job.effect("mail", send_mail, subject, reconcile=reconcile)
    if letter.gate_after:
        await target.pass_gate(letter.gate_after)
    return Done(sent)


flow = Flow("post", stages=(send,))
