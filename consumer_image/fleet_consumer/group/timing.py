"""Timers for backoff, heartbeats, session and coordinator lookup. They only calculate; callers pass the time `now`."""

from collections.abc import Callable

NEVER = float("-inf")
SLOW_RETRY_S = 10.0
"""Seconds to wait after a refusal that only a person can correct, such as a wrong password."""


class Backoff:
    """Exponential backoff in seconds. `jitter` returns a random factor around 1, so that members do not all retry at
    the same time."""

    def __init__(self, initial_s: float, maximum_s: float, jitter: Callable[[], float]) -> None:
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._jitter = jitter
        self._failures = 0

    def next(self) -> float:
        """Count one more consecutive failure, and return the seconds to wait after it."""
        # The exponent is bounded because 2.0**2000 would raise.
        wait = min(self._initial_s * 2.0 ** min(self._failures, 30), self._maximum_s)
        self._failures += 1
        return wait * self._jitter()

    def reset(self) -> None:
        self._failures = 0


class HeartbeatTimer:
    """Heartbeat timer of one member (Java: `Heartbeat`). At most one heartbeat is in flight.

    If no heartbeat succeeds until `session_deadline`, the coordinator counts as lost; a new session timeout starts when
    a coordinator is found. Until `fence_deadline`, no other member can own this member's partitions.
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
        """Send time of the last request whose response showed no rebalance; None before the first SyncGroup."""
        self.last_sent_at = NEVER
        self.in_flight = False

    @property
    def fence_deadline(self) -> float:
        """The time until which this member is certain to own its partitions; `NEVER` before the first successful
        response.

        The broker removes a member for two reasons. No heartbeat has arrived for one session timeout, or the member has
        not joined a rebalance within one rebalance timeout. The broker's session timer starts after this member has
        *sent* its last successful heartbeat. The rebalance timer starts after this member has *sent* the last request
        whose response showed no rebalance. So the deadline is calculated from these send times, and never later than
        the broker's own timers.
        """
        if self.last_good_sent_at is None:
            return NEVER
        session_end = self.last_good_sent_at + self._session_timeout_s
        if self.last_stable_sent_at is None:
            return session_end
        return min(session_end, self.last_stable_sent_at + self._rebalance_timeout_s)

    def start(self, sent_at: float, now: float) -> None:
        """Start the session after a successful SyncGroup that was sent at `sent_at`."""
        # Heartbeats sent after the SyncGroup may have been answered before the SyncGroup, while the leader planned.
        self.last_good_sent_at = max(sent_at, self.last_good_sent_at or sent_at)
        self.last_stable_sent_at = sent_at
        # After a slow SyncGroup, `next_at` is in the past, so a heartbeat is due immediately and extends
        # `fence_deadline`.
        self.next_at = self.last_good_sent_at + self._interval_s
        self.restart_session(now)
        self._backoff.reset()

    def begin_rebalance(self, now: float) -> None:
        """Restart the timers after a successful JoinGroup. Heartbeats continue while the leader plans.

        The broker now waits one rebalance timeout for the member's SyncGroup. This wait began after the last successful
        heartbeat was sent. So `fence_deadline` is calculated from the send time of this heartbeat.
        """
        self.last_stable_sent_at = self.last_good_sent_at
        self.restart_session(now)
        self.next_at = now + self._interval_s

    def stop(self) -> None:
        """End the session, because the member no longer has a valid identity."""
        self.in_flight = False
        self.last_good_sent_at = self.last_stable_sent_at = None

    def sent(self, now: float) -> None:
        self.in_flight = True
        self.last_sent_at = now
        self.next_at = now + self._interval_s

    def succeeded(self, sent_at: float, now: float, *, stable: bool) -> None:
        """Extend the session and `fence_deadline` after a successful response. `stable`: the response showed no
        rebalance."""
        self.last_good_sent_at = max(sent_at, self.last_good_sent_at or sent_at)
        if stable:
            self.last_stable_sent_at = max(sent_at, self.last_stable_sent_at or sent_at)
        self.restart_session(now)
        self._backoff.reset()

    def retry_later(self, now: float) -> None:
        self.in_flight = False
        self.next_at = now + self._backoff.next()

    def restart_session(self, now: float) -> None:
        """Start a new session timeout after a coordinator was found. A heartbeat in flight is ignored, because it went
        to the former coordinator."""
        self.in_flight = False
        self.session_deadline = now + self._session_timeout_s


class CoordinatorLookup:
    """The coordinator's address, or None while it is unknown; then the lookup is repeated by a retry timer."""

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
        """Reset the backoff after a successful response, so that the next lookup waits only briefly."""
        self._backoff.reset()

    def lost(self, now: float) -> None:
        """Discard the address of a lost coordinator, and look up the coordinator again after the backoff. The backoff
        grows with each call until `settled` resets it."""
        if self.address is not None:
            self.address = None
            self.next_at = now + self._backoff.next()

    def retry_later(self, now: float, wait_s: float = 0.0) -> None:
        self.in_flight = False
        self.next_at = now + max(self._backoff.next(), wait_s)
