"""For tests of stages and orchestrations, without a broker or a database.

A stage's test is a call, with a job context whose effects are recorded:

job = job_context()
outcome = classify(Mail(subject="Hello", body="…"), job)

outcome = await digest(joined([Summary(n=1), Summary(n=2)]), job_context())

effects = RecordedEffects(results={"ticket": DeskAnswer(number="T-1")})
outcome = await act(mail, job_context(effects=effects))
assert [call.name for call in effects.calls] == ["ticket"]

outcome = await ask(order, job_context(signal=Signal("approval", {"ok": True}, "ann")))

An orchestration is played: its calls are answered by the test, and its clock skips time:

played = await play(refund, order, calls={"score": Score(risk=0.9), "book": Reject("closed")},
                    signals=[(timedelta(hours=2), "approval", {"ok": True}, "ann")])
assert played.commands == ("call score", "signal approval", …)
"""

from streams.testing.runs import Answer, Played, Takes, play
from streams.testing.stages import TRACE_ID, RecordedEffects, job_context, joined

__all__ = [
    "TRACE_ID",
    "Answer",
    "Played",
    "RecordedEffects",
    "Takes",
    "job_context",
    "joined",
    "play",
]
