"""The plan of a leader that came back: read from the broker, because it was made before this process began.

A static leader that returns within its session is told to skip the assignment (KIP-814). It must still notice that a
topic has more partitions than that plan gave out, also those that were added while it was away. The members'
assignments say what was given out.
"""

from __future__ import annotations

from fleet_consumer.group.timing import NEVER, Backoff
from fleet_consumer.wire.consumer_protocol import decode_assignment
from fleet_consumer.wire.describe_groups import DescribeGroupsResponse
from fleet_consumer.wire.errors import ErrorCode, is_retriable
from fleet_consumer.wire.failures import MalformedMessage


class OldPlan:
    """When to ask for it, and what an answer says."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._next_at = NEVER
        self.wanted = False

    def want(self) -> None:
        """This member leads by a plan that it does not know."""
        self.wanted = True
        self._next_at = NEVER

    def due(self, now: float) -> bool:
        """Whether to ask now; asking again is a matter of time, not of an answer that may never come."""
        return self.wanted and now >= self._next_at

    def asked(self, now: float, timeout_s: float) -> None:
        """It was asked for."""
        self._next_at = now + timeout_s

    def failed(self, now: float) -> None:
        """No answer came; the next try is after the backoff."""
        self._next_at = now + self._backoff.next()

    def answered(self, response: DescribeGroupsResponse, now: float) -> dict[str, int] | None:
        """How many partitions of each topic the plan gave out; None when the answer does not say.

        A principal that may read a group may describe it. Should it be refused nevertheless, it stays with what this
        member sees from now on.
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
