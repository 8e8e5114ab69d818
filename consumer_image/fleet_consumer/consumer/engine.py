"""The open parts of one consumer, made from its settings: coordinator thread, fetch thread and positions.

`CallGuard` has the rule of calling a consumer: one thread at a time, in the process that made it, until it is closed.
"""

from __future__ import annotations

import dataclasses
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from fleet_consumer.assignors import Assignor, TakesRates, complete, load
from fleet_consumer.clock import Clock
from fleet_consumer.consumer.positions import Positions
from fleet_consumer.consumer.settings import ConsumerSettings, group_settings
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.group import errors
from fleet_consumer.group.classic.machine import ClassicMachine
from fleet_consumer.group.membership import GroupSettings, Membership
from fleet_consumer.librdkafka.settings import consumer_config, observation_config
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import TopicPartition


def classic_member(
    connection: ConnectionSettings,
    settings: GroupSettings,
    assignors: tuple[Assignor, ...],
    *,
    clock: Clock,
    on_news: Callable[[], None],
) -> CoordinatorThread:
    """A member under the classic protocol, not started yet."""
    chance = random.Random()
    machine = ClassicMachine(settings, assignors, lambda: chance.uniform(0.8, 1.2))
    return CoordinatorThread(connection, settings, machine, clock=clock, on_news=on_news)


T = TypeVar("T")


class Latch(threading.Event):
    """An Event that a signal handler may set on the thread that it interrupts, also inside `clear` or `wait`.

    Event's own lock is not reentrant: the handler would wait forever for the thread that runs it. If a handler sets the
    latch inside `clear`, that may be lost, so the caller must remember it elsewhere, as `Consumer.wakeup` does.
    """

    def __init__(self) -> None:
        super().__init__()
        # Event keeps all its state behind this one condition.
        self._cond = threading.Condition(threading.RLock())


class Engine:
    """The threads and the state that all calls of one consumer share. Belongs to the user's thread.

    `membership` and `holds_session` may be called by any thread.
    """

    def __init__(self, settings: ConsumerSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        # A one-slot latch: any thread with news for the user's thread sets it.
        self.signal = Latch()
        assignors = tuple(
            load(each) if isinstance(each, str) else complete(each, type(each).__name__) for each in settings.assignors
        )
        self.rate_takers = tuple(each for each in assignors if isinstance(each, TakesRates))
        self.group = classic_member(
            settings.connection, group_settings(settings), assignors, clock=clock, on_news=self.signal.set
        )
        # Both from the first subscription, or assignment, on.
        self.fetch: FetchThread | None = None
        self.positions: Positions | None = None
        # The user assigned the partitions, so no rebalance takes them away.
        self.manual = False
        # Raised by every call but `close`.
        self.fatal: Exception | None = None

    def start_group(self) -> None:
        """Start the coordinator thread, unless it runs."""
        if not self.group.started:
            self.group.start()

    def start(self) -> None:
        """Open the data plane, which checks its settings, and start both threads, unless they run."""
        if self.fetch is not None:
            return
        settings = self.settings
        config = consumer_config(
            settings.connection, settings.title, settings.isolation_level, settings.data_plane_properties
        )
        config |= observation_config(
            settings.on_statistics, settings.statistics_interval_ms, settings.debug, settings.log_level
        )
        self.fetch = FetchThread(config, name=f"fetch-{settings.title}", on_turn=self.signal.set, clock=self.clock)
        self.positions = Positions(self.group, self.fetch, settings)
        self.fetch.start()
        self.start_group()

    def started(self) -> Positions:
        """The positions. Raises NotSubscribed before `start`."""
        if self.positions is None:
            raise errors.NotSubscribed("subscribe or assign first")
        return self.positions

    def close(self, timeout_s: float, *, leave: bool) -> bool:
        """End both threads; whether they ended in time."""
        deadline = self.clock.monotonic() + timeout_s
        ended = self.group.close(leave=leave, timeout_s=max(0.0, timeout_s))
        if self.fetch is not None:
            ended = self.fetch.close(max(1.0, deadline - self.clock.monotonic())) and ended
        return ended

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer owns, by its user's view."""
        return frozenset() if self.positions is None else self.positions.owned

    def membership(self) -> Membership:
        """The membership, with the data plane's error where the group has none."""
        membership = self.group.snapshot
        error: Exception | None = self.positions.last_error if self.positions is not None else None
        if error is None and self.fetch is not None:
            error = self.fetch.last_error
        if membership.error is not None or error is None:
            return membership
        return dataclasses.replace(membership, error=error)

    def holds_session(self) -> bool:
        """True while nobody else can own the partitions: after `assign`, or until the session times out. Any thread."""
        return self.manual or self.clock.monotonic() < self.group.fence_deadline

    def check_group(self, call: str) -> None:
        """Raise GroupIdMissing without a group."""
        if self.settings.group_id is None:
            raise errors.GroupIdMissing(f"{call} needs a group: set group_id in ConsumerSettings")

    def take_starts(self, positions: Positions) -> None:
        """Begin to read where lookups have ended. Raises as `Positions.take_starts`, and if the fetch thread failed."""
        if self.fetch is not None and self.fetch.failure is not None:
            self.fail(self.fetch.failure)
        try:
            positions.take_starts()
        except errors.FatalConsumerError as error:
            self.fail(error)

    def fail(self, error: Exception) -> NoReturn:
        """Raise an error; a fatal one is raised by later calls, too."""
        if isinstance(error, errors.FatalConsumerError):
            self.fatal = error
        raise error

    def wait_for(
        self,
        ticket: Ticket[T],
        timeout_s: float,
        what: str,
        timed_out: type[errors.ConsumerError] = errors.OffsetLookupFailed,
    ) -> T:
        """Wait for a result of the coordinator thread. Raises its error; `timed_out` after `timeout_s`."""
        if not ticket.wait(timeout_s):
            ticket.cancel()
            raise timed_out(
                f"group {self.settings.group_id!r}: no answer about {what} within {round(timeout_s, 2):g} s"
            )
        if ticket.error is not None:
            self.fail(ticket.error)
        assert ticket.result is not None
        return ticket.result


class CallGuard:
    """The entrance of all calls of one consumer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Only its owner can release it, so the state left by an exception in the middle of a call can be mended.
        self.lock = threading.RLock()
        self.thread: int | None = None
        self._pid = os.getpid()
        self.closed = False

    @property
    def forked(self) -> bool:
        """True in a fork of the process that made the consumer."""
        return os.getpid() != self._pid

    @contextmanager
    def entered(self, *, closing: bool = False, nested: bool = True) -> Iterator[None]:
        """Be inside a call; one from inside a callback only where `nested` allows it; after the end only `closing`.

        Raises ForkedConsumer, ConcurrentUse, ConsumerClosed, and the fatal error that ended the consumer.
        """
        inside = self.enter(nested=nested)
        try:
            self.check_usable(inside=inside, closing=closing)
            yield
        finally:
            if not inside:
                self.thread = None
                self.lock.release()

    def enter(self, *, nested: bool) -> bool:
        """Become the thread inside; returns whether it was already. The caller must leave as `entered` does."""
        if self.forked:
            raise errors.ForkedConsumer(
                f"group {self._engine.settings.group_id!r}: this consumer was made by process {self._pid}, of which "
                f"this one, {os.getpid()}, is a fork; its threads and connections stayed there: make a new consumer "
                "here"
            )
        me = threading.get_ident()
        inside = self.thread == me
        if inside and not nested:
            raise errors.ConcurrentUse("callbacks may call neither poll, unsubscribe nor close")
        if not inside and not self.lock.acquire(blocking=False):
            raise errors.ConcurrentUse("another thread is inside this consumer; only wakeup may be called meanwhile")
        self.thread = me
        return inside

    def check_usable(self, *, inside: bool, closing: bool = False) -> None:
        """Raise the error that forbids the call; mend what a signal handler's exception left behind in an earlier
        one."""
        if not closing:
            if self.closed and not inside:
                raise errors.ConsumerClosed("this consumer is closed")
            if self._engine.fatal is not None:
                raise self._engine.fatal
        positions = self._engine.positions
        if not inside and positions is not None and positions.unsettled:
            positions.start_over()
