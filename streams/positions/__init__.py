"""How far a topic is applied to Postgres, and its records as they lie there.

For agents that keep their positions beside their rows: projector, tracer, timekeeper.
"""

from streams.positions.log_record import LogRecord
from streams.positions.moves import Move, Moved, Positions, positions_of

__all__ = ["LogRecord", "Move", "Moved", "Positions", "positions_of"]
