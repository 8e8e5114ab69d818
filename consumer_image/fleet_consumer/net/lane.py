"""A lane: the calls to one broker over one connection, which is opened when needed and again when lost."""

from __future__ import annotations

import random
import selectors
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.net.call import Call
from fleet_consumer.net.connection import Connection, ConnectionPhase
from fleet_consumer.net.errors import AuthenticationFailed, Disconnected, NetError, RequestTimedOut, UnsupportedByBroker
from fleet_consumer.net.settings import ConnectionSettings
from fleet_consumer.wire.failures import UnencodableMessage

JITTER: Final = 0.2
"""Backoff is spread by this part in both directions, as in Kafka's clients, so that a fleet does not knock in step."""

RENEWAL_SHARES: Final = (0.85, 0.95)
"""A login is renewed somewhere in this part of its lifetime, as in Kafka's clients."""


class ReconnectPause:
    """When an address may be tried again; shared by the lanes to it."""

    def __init__(self, settings: ConnectionSettings, chance: random.Random) -> None:
        self.failures = 0
        self.retry_at = 0.0
        self.last_error: NetError | None = None
        self._first_s = settings.reconnect_backoff_ms / 1000
        self._longest_s = settings.reconnect_backoff_max_ms / 1000
        self._chance = chance

    def failed(self, error: NetError, now: float) -> None:
        """Wait longer before the next try."""
        delay_s = min(self._first_s * 2.0 ** min(self.failures, 32), self._longest_s)
        self.failures += 1
        self.last_error = error
        self.retry_at = now + delay_s * self._chance.uniform(1 - JITTER, 1 + JITTER)

    def succeeded(self) -> None:
        """Forget past failures."""
        self.failures = 0
        self.last_error = None


class BrokerLane:
    """Calls wait in the queue until the connection takes them; those under way are the connection's.

    A call that was sent ends when its connection does, since it may have been carried out. One that was not yet sent
    stays for the next connection, unless the opening of the connection itself has failed.
    """

    def __init__(
        self,
        address: BrokerAddress,
        settings: ConnectionSettings,
        *,
        selector: selectors.BaseSelector,
        pause: ReconnectPause,
        chance: random.Random,
        on_news: Callable[[], None],
    ) -> None:
        self.address = address
        self._settings = settings
        self._selector = selector
        self._pause = pause
        self._chance = chance
        self._on_news = on_news
        self._queue: deque[Call[Any]] = deque()
        self._connection: Connection | None = None

    @property
    def open(self) -> bool:
        """Whether a connection is ready for use."""
        return self._connection is not None and self._connection.phase is ConnectionPhase.OPEN

    @property
    def unused(self) -> bool:
        """Whether there is neither a connection nor a call."""
        return self._connection is None and not self._queue

    def add(self, call: Call[Any]) -> None:
        """Queue a call; `advance` moves it."""
        self._queue.append(call)

    def due(self, now: float) -> float:
        """When `advance` must be called at the latest."""
        if self._connection is None:
            return self._pause.retry_at if self._queue else float("inf")
        session = self._connection.session
        muted_until = session.muted_until if self._queue and session.muted_until > now else float("inf")
        return min(self._connection.due, muted_until)

    def advance(self, now: float) -> int:
        """Do what can be done without new events; returns how many calls ended."""
        if self._connection is not None and self._connection.has_idled_out(now):
            self._drop_connection()
        if self._connection is None:
            if not self._queue or now < self._pause.retry_at:
                return 0
            self._connection = Connection(
                self.address,
                self._settings,
                selector=self._selector,
                owner=self,
                on_news=self._on_news,
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
        """Pass on what the selector has seen; returns how many calls ended."""
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
        """End a call whose time is over; returns how many calls ended.

        The connection goes with it if the request was sent: answers come in order, so whatever follows would wait
        behind the missing one, on a connection that may well be dead.
        """
        if call in self._queue:
            self._queue.remove(call)
            call.fail(self._not_sent(call, now))
            return 1
        call.fail(RequestTimedOut(f"{self._what(call)}: the broker has not answered", address=self.address))
        closing = Disconnected(
            f"connection to broker {self.address} closed, because an earlier request on it timed out",
            address=self.address,
        )
        return 1 + self._lose(closing, now)

    def shut(self, error: NetError) -> None:
        """End all calls with `error` and close."""
        calls = list(self._queue)
        self._queue.clear()
        if self._connection is not None:
            calls += self._connection.session.in_flight
            self._drop_connection()
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
        # A broker that closes an idle connection has done nothing wrong; anything else is a reason to go slow.
        if connection.session.in_flight or connection.phase is not ConnectionPhase.OPEN:
            self._pause.failed(error, now)
        self._drop_connection()
        for call in victims:
            call.fail(error)
        return len(victims)

    def _drop_connection(self) -> None:
        assert self._connection is not None
        self._connection.close()
        self._connection = None

    def _what(self, call: Call[Any]) -> str:
        return f"{type(call.request).__name__} to broker {self.address} within {call.timeout_s:g} s"

    def _not_sent(self, call: Call[Any], now: float) -> NetError:
        """Why a call never left: the last failure to connect, where there is one, says more than the time-out."""
        if self._connection is None and self._pause.last_error is not None:
            return self._pause.last_error
        if self._connection is not None and self._connection.session.muted_until > now:
            holdup = "the broker's quota has muted this client"
        else:
            holdup = "no connection yet" if self._connection is None else f"still {self._connection.phase.value}"
        return RequestTimedOut(f"{self._what(call)}: not sent, {holdup}", address=self.address)
