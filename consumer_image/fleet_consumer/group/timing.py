"""When to beat, when a session ends, how long to wait before trying again. Arithmetic only: `now` comes in."""

from __future__ import annotations

from collections.abc import Callable

NEVER = float("-inf")
SLOW_RETRY_S = 10.0
"""How long a refusal that only a person can mend (a wrong password) is left alone before the next try."""


class Backoff:
    """Exponentially growing waits. `jitter` gives a factor around 1, so that a fleet does not retry in step."""

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
        """Something worked."""
        self._failures = 0


class HeartbeatTimer:
    """The beat of one member (Java: `Heartbeat`). At most one heartbeat is on its way.

    Two deadlines, because they serve two ends. `session_deadline` tells when to doubt the coordinator, and starts
    anew when one is found. `fence_deadline` tells how long the partitions are surely ours: the broker's own timer
    started no earlier than the last good heartbeat was *sent*, so one session timeout after that we must assume that
    somebody else has them.
    """

    def __init__(self, session_timeout_s: float, interval_s: float, backoff: Backoff) -> None:
        self._session_timeout_s = session_timeout_s
        self._interval_s = interval_s
        self._backoff = backoff
        self.next_at = NEVER
        self.session_deadline = NEVER
        self.last_good_sent_at: float | None = None
        self.last_sent_at = NEVER
        self.in_flight = False

    @property
    def fence_deadline(self) -> float:
        """Until when the partitions are surely ours; NEVER before the first good answer."""
        return NEVER if self.last_good_sent_at is None else self.last_good_sent_at + self._session_timeout_s

    def start(self, sent_at: float, now: float) -> None:
        """A SyncGroup that was sent at `sent_at` has been answered well: the broker has begun a session."""
        self.in_flight = False
        # While the leader planned, heartbeats of this generation may have been answered that were sent later.
        self.last_good_sent_at = max(sent_at, self.last_good_sent_at or sent_at)
        self.session_deadline = now + self._session_timeout_s
        # Late when the sync took long: then the next heartbeat is due at once and renews the fence.
        self.next_at = self.last_good_sent_at + self._interval_s
        self._backoff.reset()

    def begin_rebalance(self, now: float) -> None:
        """A JoinGroup was answered well: the member is alive, heartbeats go on while the leader plans."""
        self.in_flight = False
        self.session_deadline = now + self._session_timeout_s
        self.next_at = now + self._interval_s

    def stop(self) -> None:
        """The identity is gone, and with it the session."""
        self.in_flight = False
        self.last_good_sent_at = None

    def sent(self, now: float) -> None:
        """A heartbeat was sent."""
        self.in_flight = True
        self.last_sent_at = now
        self.next_at = now + self._interval_s

    def succeeded(self, sent_at: float, now: float) -> None:
        """A heartbeat sent at `sent_at` was answered well."""
        self.in_flight = False
        self.last_good_sent_at = max(sent_at, self.last_good_sent_at or sent_at)
        self.session_deadline = now + self._session_timeout_s
        self._backoff.reset()

    def failed(self, now: float) -> None:
        """A heartbeat was not answered, or badly: the next one comes sooner."""
        self.in_flight = False
        self.next_at = now + self._backoff.next()

    def restart_session(self, now: float) -> None:
        """A coordinator was found: it gets a whole session timeout, and need not wait for what its predecessor owes."""
        self.in_flight = False
        self.session_deadline = now + self._session_timeout_s
