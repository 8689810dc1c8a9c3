"""Limits on how often, and how many at once, handlers start (decision 18): over all workers of an
installation, for each key of a limit on its own."""

from streams.limits.limit import Limit

__all__ = ["Limit"]
