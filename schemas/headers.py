"""Names of the Kafka headers, all of them, and how a hand-off spells its own.

CloudEvents 1.0 Kafka binding, binary mode (``ce_*``; without a content type, which by the spec
means JSON), W3C Trace Context, and ours (``handoff_*``). Values are UTF-8 text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemas.ids import trace_id_of, traceparent

Headers = list[tuple[str, bytes]]

CE_SPECVERSION: Final = "ce_specversion"
CE_ID: Final = "ce_id"
CE_TYPE: Final = "ce_type"
CE_SOURCE: Final = "ce_source"
CE_TIME: Final = "ce_time"

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

#: Of a hand-off, `<seq>;<born>;<flow>`: the next three in one, since headers are dear. It is first.
HOP: Final = "handoff_hop"
#: Step that wrote this hand-off: the consumer's own step is one more. A record with HOP or SEQ is a
#: hand-off, one with neither a new job.
SEQ: Final = "handoff_seq"
#: When the job was accepted, epoch microseconds; carried through for end-to-end latency.
BORN: Final = "handoff_born"
#: Flow that a record belongs to.
FLOW: Final = "handoff_flow"
#: `traceparent` of whatever submitted the job: its trace is not the job's, so it becomes a link.
LINK: Final = "handoff_link"
#: Of a redriven record, the first one: place of the dead letter, `topic/partition/offset`. A record
#: with it may be a copy of another, so its step is claimed.
REDRIVE: Final = "handoff_redrive"
#: Of a rerun's first record: the job that it repeats.
RERUN: Final = "handoff_rerun"
#: The job under whose keys this job's effects are done, where that is not the job itself. Each
#: hand-off of such a job carries it, first, so that none of them is taken for a plain one.
KEYS_OF: Final = "handoff_keys_of"
#: First header of a forked child's first record: the step of its parent that forked. Its HOP has
#: step 0.
FORK: Final = "handoff_fork"
#: How many children the job has had so far, where it has had any. Each later hand-off carries it,
#: first, so that none of them is taken for a plain one.
CHILDREN: Final = "handoff_children"
#: First header of a branch's record for its join, `<n>;<status>;<seq>`: the child's number, how it
#: ended, its last step. The value is its result, or the error that it ended with.
ARRIVAL: Final = "handoff_arrival"
#: Of the record that begins a run of an orchestration, or a wait: the stage that asks for it.
RUN: Final = "handoff_run"
#: Of a run's timer: the number of the command that it ends.
COMMAND: Final = "handoff_command"
#: First header of a signal to a job; its own id, by which a copy of it is known.
SENT: Final = "handoff_sent"
#: The signal that ended a wait (JSON), first header of the hand-off that goes on with it.
SIGNAL: Final = "handoff_signal"
#: What begins so speaks of one delivery, but for `OF_THE_JOB`.
OURS: Final = "handoff_"

#: First header of a record that a timer brought back, and what for (`retry`): it is no plain
#: hand-off but a suspect that claims its step. `handoff_seq` is then the step that waited.
TIMER: Final = "handoff_timer"
#: Handler runs spent so far at this stage; comes with `handoff_timer`.
ATTEMPT: Final = "handoff_attempt"
#: Raw key of the record that waited, where it was not the job's id.
RAW_KEY: Final = "handoff_key"
#: Of our headers these outlive a delivery; the others are written anew when a timer or a redrive
#: brings a record back, so that it does not grow from round to round.
OF_THE_JOB: Final = frozenset({LINK, RAW_KEY, RERUN, KEYS_OF, CHILDREN, SIGNAL})
#: Of a record on the `timers` topic only: when it is due (epoch ms), and which topic it returns to.
DUE: Final = "handoff_due"
RETURN: Final = "handoff_return"

#: Names of Kafka's own dead-letter headers (KIP-1191).
DLQ_TOPIC: Final = "__dlq.errors.topic"
DLQ_PARTITION: Final = "__dlq.errors.partition"
DLQ_OFFSET: Final = "__dlq.errors.offset"
DLQ_GROUP: Final = "__dlq.errors.group"
DLQ_DELIVERY_COUNT: Final = "__dlq.errors.delivery.count"
DLQ_MESSAGE: Final = "__dlq.errors.message"

#: Ours, beside Kafka's: what the original record was and why it failed.
DLQ_JOB: Final = "handoff_dlq_job"
DLQ_STAGE: Final = "handoff_dlq_stage"
DLQ_ERROR: Final = "handoff_dlq_error"
DLQ_TIMESTAMP: Final = "handoff_dlq_timestamp"
DLQ_SEQ: Final = "handoff_dlq_seq"


def spelled_out(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, bytes | None]:
    """The last value of each header, with HOP as SEQ, BORN and FLOW; what is there itself wins."""
    found = dict(headers)
    if HOP not in found:
        return found
    seq, _, rest = (found[HOP] or b"").partition(b";")
    born, _, flow = rest.partition(b";")
    return {SEQ: seq, BORN: born, FLOW: flow, **found}


def traced(
    headers: Iterable[tuple[str, bytes | None]], job_id: str, seq: int
) -> list[tuple[str, bytes | None]]:
    """`headers` with exactly one TRACEPARENT, the last: that of the job's step `seq`. A foreign one
    becomes the job's LINK, if it has none yet."""
    found = list(headers)
    kept = [each for each in found if each[0] != TRACEPARENT]
    ours = b"00-%b-" % trace_id_of(job_id).encode()
    foreign = [v for n, v in found if n == TRACEPARENT and v and not v.startswith(ours)]
    if foreign and all(name != LINK for name, _ in kept):
        kept.append((LINK, foreign[-1]))
    return [*kept, (TRACEPARENT, traceparent(job_id, seq).encode())]
