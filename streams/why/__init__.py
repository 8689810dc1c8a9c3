"""Why does a job, or a group, not move, and what is to be done: one answer, from durable facts.

`gather` asks each fact's authority (Kafka for topics, groups and offset maps; Postgres for jobs,
effects, timers, actions and what workers say of themselves); `explain` is pure. `lags` does the
same for groups, and `judge` in `streams.why.lag` is its pure part.
"""

from streams.why.answer import Answer, explain
from streams.why.cause import Code
from streams.why.gathering import gather
from streams.why.group_facts import lags
from streams.why.lag import Lag, Pace

__all__ = ["Answer", "Code", "Lag", "Pace", "explain", "gather", "lags"]
