"""Exponential backoff, heartbeat and session timers, lookup of the coordinator. Arithmetic only: `now` comes in."""

from __future__ import annotations

from collections.abc import Callable

NEVER = float("-inf")
SLOW_RETRY_S = 10.0
"""Wait after a refusal that only a person can fix, such as a wrong password."""


class Backoff:
    """Exponential backoff in seconds. `jitter` returns a factor around 1, so that a fleet does not retry in step."""

    def __init__(self, initial_s: float, maximum_s: float, jitter: Callable[[], float]) -> None:
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._jitter = jitter
        self._failures = 0

    def next(self) -> float:
        """The wait after one more failure in a row, in seconds."""
        # The exponent is bounded before it is used: 2.0**2000 would raise.
        wait = min(self._initial_s * 2.0 ** min(self._failures, 30), self._maximum_s)
        self._failures += 1
        return wait * self._jitter()

    def reset(self) -> None:
        """Start again with the shortest wait, after a success."""
        self._failures = 0


class HeartbeatTimer:
    """Heartbeat timer of one member (Java: `Heartbeat`). At most one heartbeat is in flight.

    Two deadlines for two purposes. At `session_deadline` the coordinator is given up; it starts again when one is
    found. Until `fence_deadline` no other member can own the partitions.
    """

    def __init__(
        self, session_timeout_s: float, rebalance_timeout_s: float, interval_s: float, backoff: Backoff
    ) -> None:
        self._session_timeout_s = session_timeout_s
        self._rebalance_timeout_s = rebalance_timeout_s
        self._interval_s = interval_s
        self._backoff = backoff
        self.next_at = NEVER
        self.session_deadline = NEVER
        self.last_good_sent_at: float | None = None
        self.last_stable_sent_at: float | None = None
        """Send time of the last request whose answer showed that no rebalance had begun; None before the first plan."""
        self.last_sent_at = NEVER
        self.in_flight = False

    @property
    def fence_deadline(self) -> float:
        """End of certain ownership of the partitions; NEVER before the first good response.

        The broker removes a member one session timeout after its last heartbeat, and one rebalance timeout after the
        begin of a rebalance that it has not joined, however regular its heartbeats are. Both timers start at the broker
        after the request was *sent* whose answer is known here.
        """
        if self.last_good_sent_at is None:
            return NEVER
        session_end = self.last_good_sent_at + self._session_timeout_s
        if self.last_stable_sent_at is None:
            return session_end
        return min(session_end, self.last_stable_sent_at + self._rebalance_timeout_s)

    def start(self, sent_at: float, now: float) -> None:
        """Begin the session after a successful SyncGroup that was sent at `sent_at`."""
        # While the leader planned, later heartbeats of this generation may have been answered.
        self.last_good_sent_at = max(sent_at, self.last_good_sent_at or sent_at)
        self.last_stable_sent_at = sent_at
        # Late when the sync took long: then the next heartbeat is due at once and renews the fence.
        self.next_at = self.last_good_sent_at + self._interval_s
        self.restart_session(now)
        self._backoff.reset()

    def begin_rebalance(self, now: float) -> None:
        """Restart after a successful JoinGroup: the member is alive, heartbeats go on while the leader plans.

        The wait for its SyncGroup, again one rebalance timeout, began after the last heartbeat of the old generation.
        """
        self.last_stable_sent_at = self.last_good_sent_at
        self.restart_session(now)
        self.next_at = now + self._interval_s

    def stop(self) -> None:
        """End the session with the identity."""
        self.in_flight = False
        self.last_good_sent_at = self.last_stable_sent_at = None

    def sent(self, now: float) -> None:
        self.in_flight = True
        self.last_sent_at = now
        self.next_at = now + self._interval_s

    def succeeded(self, sent_at: float, now: float, *, stable: bool) -> None:
        """Renew session and fence after a good response to the heartbeat sent at `sent_at`.

        `stable`: the response showed that no rebalance had begun.
        """
        self.last_good_sent_at = max(sent_at, self.last_good_sent_at or sent_at)
        if stable:
            self.last_stable_sent_at = max(sent_at, self.last_stable_sent_at or sent_at)
        self.restart_session(now)
        self._backoff.reset()

    def failed(self, now: float) -> None:
        """Send the next heartbeat after the backoff: the last one failed."""
        self.in_flight = False
        self.next_at = now + self._backoff.next()

    def restart_session(self, now: float) -> None:
        """Give a newly found coordinator a whole session timeout; a heartbeat to its predecessor is not waited for."""
        self.in_flight = False
        self.session_deadline = now + self._session_timeout_s


class CoordinatorLookup:
    """The coordinator's address while it is known, and the retry timer while it is not."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self.address: tuple[str, int] | None = None
        self.in_flight = False
        self.next_at = NEVER

    def due(self, now: float) -> bool:
        return self.address is None and not self.in_flight and now >= self.next_at

    def found(self, address: tuple[str, int]) -> None:
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
