"""Forks and their joins (decision 15): what a handler gets, what lies on the wire, and the set of
branches in Postgres that a join is decided by."""

from streams.joins.joined import Branch, BranchRow, BranchSource, Joined, JoinRef

__all__ = ["Branch", "BranchRow", "BranchSource", "JoinRef", "Joined"]
