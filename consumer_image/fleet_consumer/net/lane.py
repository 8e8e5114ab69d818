"""A lane: one connection to one broker for one purpose, with a queue of calls. A lane reconnects when needed."""

import random
from collections import deque
from typing import Any, Final

from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.net.connection import Connection, ConnectionPhase, IoLoop
from fleet_consumer.net.errors import AuthenticationFailed, Disconnected, NetError, RequestTimedOut, UnsupportedByBroker
from fleet_consumer.net.session import Call
from fleet_consumer.net.settings import ConnectionSettings
from fleet_consumer.wire.errors import UnencodableMessage

JITTER: Final = 0.2
"""Jitter of the backoff, as in Kafka's clients: plus or minus 20 %, so that the clients of a fleet do not reconnect
together."""

RENEWAL_SHARES: Final = (0.85, 0.95)
"""A login is renewed after a share of its lifetime. The share is chosen at random in this range, as in Kafka's
clients."""


class ReconnectPause:
    """Reconnect backoff of an address, shared by its lanes."""

    def __init__(self, settings: ConnectionSettings, chance: random.Random) -> None:
        self.failures = 0
        self.retry_at = 0.0
        self.last_error: NetError | None = None
        self._first_s = settings.reconnect_backoff_ms / 1000
        self._longest_s = settings.reconnect_backoff_max_ms / 1000
        self._chance = chance

    def record_failure(self, error: NetError, now: float) -> None:
        delay_s = min(self._first_s * 2.0 ** min(self.failures, 32), self._longest_s)
        self.failures += 1
        self.last_error = error
        self.retry_at = now + delay_s * self._chance.uniform(1 - JITTER, 1 + JITTER)

    def succeeded(self) -> None:
        self.failures = 0
        self.last_error = None


class BrokerLane:
    """The calls to one broker over one connection. When the connection is lost, calls that were sent on it fail,
    because the broker may have processed them. Queued calls wait for the next connection. If the lost connection never
    became usable, queued calls fail as well."""

    def __init__(
        self,
        address: BrokerAddress,
        settings: ConnectionSettings,
        *,
        loop: IoLoop,
        pause: ReconnectPause,
        chance: random.Random,
    ) -> None:
        self.address = address
        self._settings = settings
        self._loop = loop
        self._pause = pause
        self._chance = chance
        self._queue: deque[Call[Any]] = deque()
        self._connection: Connection | None = None

    @property
    def open(self) -> bool:
        return self._connection is not None and self._connection.phase is ConnectionPhase.OPEN

    @property
    def unused(self) -> bool:
        return self._connection is None and not self._queue

    @property
    def connected(self) -> bool:
        """True if the lane has a connection, open or being opened."""
        return self._connection is not None

    @property
    def unused_since(self) -> float | None:
        """The time of the connection's last use; None if the connection is in use or does not exist."""
        return None if self._connection is None or self._queue else self._connection.unused_since

    def wants_connection(self, now: float) -> bool:
        """True if the next `advance` opens a connection."""
        return self._connection is None and bool(self._queue) and now >= self._pause.retry_at

    def add(self, call: Call[Any]) -> None:
        self._queue.append(call)

    def next_at(self, now: float) -> float:
        """Return the latest time at which `advance` must be called."""
        if self._connection is None:
            return self._pause.retry_at if self._queue else float("inf")
        session = self._connection.session
        muted_until = session.muted_until if self._queue and session.muted_until > now else float("inf")
        return min(self._connection.next_at, muted_until)

    def advance(self, now: float) -> int:
        """Do the work that needs no socket event. Returns the number of calls that ended."""
        if self._connection is not None and self._connection.has_idled_out(now):
            self.drop_connection()
        if self._connection is None:
            if not self.wants_connection(now):
                return 0
            self._connection = Connection(
                self.address,
                self._settings,
                loop=self._loop,
                owner=self,
                renewal_share=self._chance.uniform(*RENEWAL_SHARES),
                now=now,
            )
        try:
            self._connection.advance(now)
            ended = self._submit(self._connection, now)
            self._connection.flush()
        except NetError as error:
            return self._lose(error, now)
        return ended

    def on_events(self, mask: int, now: float) -> int:
        """Handle a selector event; returns the number of calls that ended."""
        connection = self._connection
        if connection is None:
            return 0
        was_open, ended_before = connection.opened, connection.session.calls_ended
        try:
            connection.on_events(mask, now)
        except NetError as error:
            return connection.session.calls_ended - ended_before + self._lose(error, now)
        if connection.opened and not was_open:
            self._pause.succeeded()
        return connection.session.calls_ended - ended_before

    def expire(self, call: Call[Any], now: float) -> int:
        """End a call that timed out. Returns the number of calls that ended. If the request was sent, the connection is
        closed: it may be dead, and later responses would wait behind the missing response."""
        if call in self._queue:
            self._queue.remove(call)
            call.fail(self._not_sent(call, now))
            return 1
        call.fail(RequestTimedOut(f"{self._what(call)}: no response", address=self.address))
        closing = Disconnected(
            f"connection to broker {self.address} closed, because an earlier request on it timed out",
            address=self.address,
        )
        return 1 + self._lose(closing, now)

    def drop_connection(self) -> None:
        """Close the connection; the next call opens a new one."""
        assert self._connection is not None
        self._connection.close()
        self._connection = None

    def shut(self, error: NetError) -> None:
        calls = list(self._queue)
        self._queue.clear()
        if self._connection is not None:
            calls += self._connection.session.in_flight
            self.drop_connection()
        for call in calls:
            call.fail(error)

    def _submit(self, connection: Connection, now: float) -> int:
        ended = 0
        while self._queue and connection.session.can_take(now):
            call = self._queue.popleft()
            try:
                connection.submit(call, now)
            except UnsupportedByBroker as error:
                call.fail(error)
                ended += 1
            except UnencodableMessage as error:
                call.fail(
                    UnsupportedByBroker(f"cannot be sent to broker {self.address}: {error}", address=self.address)
                )
                ended += 1
        return ended

    def _lose(self, error: NetError, now: float) -> int:
        connection = self._connection
        assert connection is not None
        if isinstance(error, AuthenticationFailed):
            connection.rejected(error)
        victims = [call for call in connection.session.in_flight if not call.done]
        if not connection.opened:
            victims += self._queue
            self._queue.clear()
        # A broker may close an idle connection at any time. Every other loss of a connection counts as a failure, with
        # a backoff.
        if connection.session.in_flight or connection.phase is not ConnectionPhase.OPEN:
            self._pause.record_failure(error, now)
        self.drop_connection()
        for call in victims:
            call.fail(error)
        return len(victims)

    def _what(self, call: Call[Any]) -> str:
        return f"{type(call.request).__name__} to broker {self.address} within {round(call.timeout_s, 2):g} s"

    def _not_sent(self, call: Call[Any], now: float) -> NetError:
        """The error of a call that was never sent: the last connect error or, without a connect error, a timeout with
        its cause."""
        if self._connection is None and self._pause.last_error is not None:
            return self._pause.last_error
        if self._connection is not None and self._connection.session.muted_until > now:
            holdup = "the client is throttled by the broker's quota"
        else:
            holdup = "no connection yet" if self._connection is None else f"still {self._connection.phase.value}"
        return RequestTimedOut(f"{self._what(call)}: not sent, {holdup}", address=self.address)
