"""Why does a job not move, and what is to be done: one answer, from facts that are durable.

`gather` asks each fact's authority (Kafka for topics, groups and offset maps; Postgres for jobs,
effects, timers, actions and what workers say of themselves); `explain` is pure.
"""

from streams.why.answer import Answer, explain
from streams.why.cause import Code
from streams.why.gathering import gather

__all__ = ["Answer", "Code", "explain", "gather"]
