"""Lookup of the group's coordinator: its address, and the time of the next FindCoordinator."""

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
        """True when FindCoordinator should be sent now."""
        return self.address is None and not self.in_flight and now >= self.next_at

    def found(self, address: Address) -> None:
        """Take the coordinator's address from a response."""
        self.in_flight = False
        self.address = address

    def settled(self) -> None:
        """Reset the backoff after a good response from the coordinator: the next loss starts with a short wait."""
        self._backoff.reset()

    def lost(self, now: float) -> None:
        """Forget a lost coordinator and look again after the backoff, which grows until `settled`."""
        if self.address is not None:
            self.address = None
            self.next_at = now + self._backoff.next()

    def failed(self, now: float, wait_s: float = 0.0) -> None:
        """Retry a failed lookup after the backoff, or after `wait_s` if that is longer."""
        self.in_flight = False
        self.next_at = now + max(self._backoff.next(), wait_s)


def read_lookup(response: FindCoordinatorResponse) -> tuple[int, Address]:
    """Error code and address of the one group asked for. An empty response counts as COORDINATOR_NOT_AVAILABLE."""
    for entry in response.coordinators:
        return entry.error_code, (entry.host, entry.port)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE, ("", 0)
