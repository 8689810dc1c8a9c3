"""Timers: records that come back to their topic at a time (decision 7).

`record` spells them, `timekeeper` stores them, `dispatcher` returns them, `sender` is its producer.
"""
