"""Assignment of a restarted static leader (KIP-814), from DescribeGroups.

A static leader that returns within its session skips the assignment. It must still notice that a topic has more
partitions than the plan of its predecessor, including those added while it was away; the members' assignments show
what that plan assigned.
"""

from __future__ import annotations

from fleet_consumer.group.timing import NEVER, Backoff
from fleet_consumer.wire.consumer_protocol import decode_assignment
from fleet_consumer.wire.errors import ErrorCode, MalformedMessage, is_retriable
from fleet_consumer.wire.groups import DescribeGroupsResponse


class OldPlan:
    """Lookup of the plan: its timer, and partition counts from the response."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._next_at = NEVER
        self.wanted = False

    def want(self) -> None:
        """Begin to ask: this member leads by a plan that it does not know."""
        self.wanted = True
        self._next_at = NEVER

    def due(self, now: float) -> bool:
        """True when DescribeGroups should be sent now."""
        return self.wanted and now >= self._next_at

    def asked(self, now: float, timeout_s: float) -> None:
        """Note that DescribeGroups was sent. A lost response delays the next request no longer than its timeout."""
        self._next_at = now + timeout_s

    def failed(self, now: float) -> None:
        """Retry after the backoff: no response came."""
        self._next_at = now + self._backoff.next()

    def answered(self, response: DescribeGroupsResponse, now: float) -> dict[str, int] | None:
        """The number of partitions of each topic that the plan assigned; None when the response does not show it.

        A principal with Read on a group may describe it. If refused nevertheless, the member stays with the counts that
        it sees from now on.
        """
        group = response.groups[0] if response.groups else None
        if group is None or group.error_code != ErrorCode.NONE:
            if group is not None and not is_retriable(group.error_code):
                self.wanted = False
            self.failed(now)
            return None
        self.wanted = False
        self._backoff.reset()
        counts: dict[str, int] = {}
        for member in group.members:
            try:
                given = decode_assignment(member.member_assignment)
            except MalformedMessage:
                return None
            for part in given.assigned_partitions:
                if part.partitions:
                    counts[part.topic] = max(counts.get(part.topic, 0), max(part.partitions) + 1)
        return counts
