"""Control: jobs cancelled, stages paused (decision 17). What people order lies in one compacted
topic that every worker reads whole before its first record and follows after; only the hop that
holds a job writes its state."""

from streams.control.order import CANCELLED, Kind, Order, decode, error_of, job_key, stage_key
from streams.control.reader import ControlReader, look
from streams.control.standing import Standing

__all__ = [
    "CANCELLED",
    "ControlReader",
    "Kind",
    "Order",
    "Standing",
    "decode",
    "error_of",
    "job_key",
    "look",
    "stage_key",
]
