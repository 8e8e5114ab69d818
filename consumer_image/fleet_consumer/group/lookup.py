"""Which broker coordinates the group, and when to ask (again)."""

from __future__ import annotations

from fleet_consumer.group.messages import Address
from fleet_consumer.group.timing import NEVER, Backoff
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.find_coordinator import FindCoordinatorResponse


class CoordinatorLookup:
    """The coordinator's address while it is known, and the retry timer while it is not."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self.address: Address | None = None
        self.in_flight = False
        self.next_at = NEVER

    def due(self, now: float) -> bool:
        """Whether to ask now."""
        return self.address is None and not self.in_flight and now >= self.next_at

    def found(self, address: Address) -> None:
        """A broker named the coordinator."""
        self.in_flight = False
        self.address = address

    def settled(self) -> None:
        """The coordinator has proven itself by a good answer: the next loss starts with a short wait again."""
        self._backoff.reset()

    def lost(self, now: float) -> None:
        """The coordinator is gone, or is none; ask after a backoff, which grows while no coordinator proves itself."""
        if self.address is not None:
            self.address = None
            self.next_at = now + self._backoff.next()

    def failed(self, now: float, wait_s: float = 0.0) -> None:
        """The question was not answered, or with an error; ask after the backoff, or `wait_s` if that is longer."""
        self.in_flight = False
        self.next_at = now + max(self._backoff.next(), wait_s)


def read_lookup(response: FindCoordinatorResponse) -> tuple[int, Address]:
    """Error code and address of the only group asked for. An answer about nothing counts as not available."""
    for entry in response.coordinators:
        return entry.error_code, (entry.host, entry.port)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE, ("", 0)
