"""Partitions that a group has given to nobody, and who mends that (decision 3).

A cooperative rebalance takes two rounds: the first takes partitions from one member, the second
gives them to another; it is the first member that asks for it, when it has let them go. If it is
killed in between and comes back before its session is over, a static member gets what the first
round left to it and nobody asks for a second (KIP-345, KIP-429). The same happens when the broker
restarts in between. Such partitions would stand still until any other rebalance.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

import structlog

from streams.config import Settings
from streams.errors import BadWorld
from streams.kafka import TopicFacts, admin_client, describe_group

log = structlog.get_logger(__name__)

#: Longer than the rounds of a rebalance take, and than a dead member stays in the group.
_LOOK_AFTER_SESSIONS: Final = 2
_ASK_S: Final = 5.0


class Unowned:
    """Looks at the group a while after each change of what we own. For the polling thread."""

    def __init__(self, settings: Settings, topic: TopicFacts, group: str, member: str) -> None:
        self._settings, self._topic, self._group, self._member = settings, topic, group, member
        self._look_at: float | None = None

    def look_later(self) -> None:
        """What we own has changed, or the group could not be looked at."""
        session_s = self._settings.session_timeout_ms / 1000
        self._look_at = time.monotonic() + _LOOK_AFTER_SESSIONS * session_s

    def ours_to_mend(self) -> bool:
        """Whether a partition is nobody's and we are to leave the group, so that it deals anew.

        Of all members the one that owns least leaves; each comes to the same answer. One request,
        and only when a look is due.
        """
        if self._look_at is None or time.monotonic() < self._look_at:
            return False
        self._look_at = None
        try:
            with admin_client(self._settings) as admin:
                facts = describe_group(
                    self._settings, admin, self._group, self._topic.name, timeout_s=_ASK_S
                )
        except BadWorld:
            self.look_later()
            return False
        nobodys = sorted(set(range(self._topic.partitions)) - facts.owners.keys())
        if facts.settled and not nobodys:
            return False
        self.look_later()
        if not facts.settled or not facts.members:
            return False
        owned = Counter(owner.instance for owner in facts.owners.values())
        leaves = min((owned[m.instance], m.instance) for m in facts.members)[1]
        log.warning("unowned", group=self._group, partitions=nobodys, leaves=leaves)
        return leaves == self._member
