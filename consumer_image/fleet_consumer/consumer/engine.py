"""The threads and state of one consumer, created from its settings: coordinator thread, fetch thread and positions.

`CallGuard` checks each call of a consumer. Only one thread at a time may call a consumer, only in the process that
created the consumer, and only until it is closed.
"""

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
    on_change: Callable[[], None],
) -> CoordinatorThread:
    """Create a member that uses the classic protocol, without starting its thread."""
    chance = random.Random()
    machine = ClassicMachine(settings, assignors, lambda: chance.uniform(0.8, 1.2))
    return CoordinatorThread(connection, settings, machine, clock=clock, on_change=on_change)


T = TypeVar("T")


class Latch(threading.Event):
    """An Event that a signal handler may set, even if the handler interrupts `clear` or `wait` on the same thread.

    A plain Event's lock is not reentrant, so the handler would deadlock. A `set` that interrupts `clear` may be lost,
    so the request must also be stored elsewhere, as in `Consumer.wakeup`.
    """

    def __init__(self) -> None:
        super().__init__()
        # This condition guards all of Event's state.
        self._cond = threading.Condition(threading.RLock())


class Engine:
    """One consumer's threads and state. Any thread may call `membership` and `holds_session`, but no other method."""

    def __init__(self, settings: ConsumerSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        # Any thread sets this event when it has a change for the user's thread.
        self.signal = Latch()
        assignors = tuple(
            load(each) if isinstance(each, str) else complete(each, type(each).__name__) for each in settings.assignors
        )
        self.rate_takers = tuple(each for each in assignors if isinstance(each, TakesRates))
        self.group = classic_member(
            settings.connection, group_settings(settings), assignors, clock=clock, on_change=self.signal.set
        )
        # Fetch thread and positions are None until the first `subscribe` or `assign`.
        self.fetch: FetchThread | None = None
        self.positions: Positions | None = None
        # True after `assign`, which excludes rebalances.
        self.manual = False
        # The fatal error that every call except `close` raises.
        self.fatal: Exception | None = None

    def start_group(self) -> None:
        if not self.group.started:
            self.group.start()

    def start(self) -> None:
        """Create librdkafka's consumer, which checks its settings, and start both threads. Does nothing if already
        started."""
        if self.fetch is not None:
            return
        settings = self.settings
        config = consumer_config(
            settings.connection, settings.title, settings.isolation_level, settings.data_plane_properties
        )
        config |= observation_config(
            settings.on_statistics, settings.statistics_interval_ms, settings.debug, settings.log_level
        )
        self.fetch = FetchThread(config, name=f"fetch-{settings.title}", on_released=self.signal.set, clock=self.clock)
        self.positions = Positions(self.group, self.fetch, settings)
        self.fetch.start()
        self.start_group()

    def started(self) -> Positions:
        if self.positions is None:
            raise errors.NotSubscribed("subscribe or assign first")
        return self.positions

    def close(self, timeout_s: float, *, leave: bool) -> bool:
        """End both threads. Returns True if they ended within about `timeout_s` seconds."""
        deadline = self.clock.monotonic() + timeout_s
        ended = self.group.close(leave=leave, timeout_s=max(0.0, timeout_s))
        if self.fetch is not None:
            ended = self.fetch.close(max(1.0, deadline - self.clock.monotonic())) and ended
        return ended

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer owns, after the rebalances that the user's thread has handled so far."""
        return frozenset() if self.positions is None else self.positions.owned

    def membership(self) -> Membership:
        """Return the membership. Its `error` is the error of the group, else of `positions`, else of librdkafka."""
        membership = self.group.snapshot
        error: Exception | None = self.positions.last_error if self.positions is not None else None
        if error is None and self.fetch is not None:
            error = self.fetch.last_error
        if membership.error is not None or error is None:
            return membership
        return dataclasses.replace(membership, error=error)

    def holds_session(self) -> bool:
        """True while no other member can own the partitions: always after `assign`, otherwise until
        `fence_deadline`."""
        return self.manual or self.clock.monotonic() < self.group.fence_deadline

    def check_group(self, call: str) -> None:
        if self.settings.group_id is None:
            raise errors.GroupIdMissing(f"{call} needs a group: set group_id in ConsumerSettings")

    def take_starts(self, positions: Positions) -> None:
        """Call `Positions.take_starts`. Also raises the error that ended the fetch thread."""
        if self.fetch is not None and self.fetch.failure is not None:
            self.fail(self.fetch.failure)
        try:
            positions.take_starts()
        except errors.FatalConsumerError as error:
            self.fail(error)

    def fail(self, error: Exception) -> NoReturn:
        """Raise the error. A fatal error is stored, so that later calls raise it, too."""
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
        """Wait for the coordinator thread's result. Raises the ticket's error, or `timed_out` when the time is up."""
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
    """The check at the start of every call of one consumer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Reentrant: if a signal handler's exception leaves the lock held, the same thread can enter again and repair
        # the state.
        self.lock = threading.RLock()
        self.thread: int | None = None
        self._pid = os.getpid()
        self.closed = False

    @property
    def forked(self) -> bool:
        return os.getpid() != self._pid

    @contextmanager
    def entered(self, *, closing: bool = False, nested: bool = True) -> Iterator[None]:
        """Run a call. `nested` calls are allowed inside a callback, `closing` calls after `close` or a failure. Raises
        ForkedConsumer, ConcurrentUse, ConsumerClosed, and the fatal error that ended the consumer."""
        inside = self.enter(nested=nested)
        try:
            self.check_usable(inside=inside, closing=closing)
            yield
        finally:
            if not inside:
                self.thread = None
                self.lock.release()

    def enter(self, *, nested: bool) -> bool:
        """Start a call. Returns True if the same thread is already inside another call. If it returns False, the caller
        must end the call as `entered` does."""
        if self.forked:
            raise errors.ForkedConsumer(
                f"group {self._engine.settings.group_id!r}: this consumer was created by process {self._pid}, and this "
                f"process, {os.getpid()}, is a fork of it without its threads and connections; create a new consumer "
                "in this process"
            )
        me = threading.get_ident()
        inside = self.thread == me
        if inside and not nested:
            raise errors.ConcurrentUse("callbacks may call neither poll, unsubscribe nor close")
        if not inside and not self.lock.acquire(blocking=False):
            raise errors.ConcurrentUse("another thread is using this consumer; until its call ends, call only wakeup")
        self.thread = me
        return inside

    def check_usable(self, *, inside: bool, closing: bool = False) -> None:
        """Raise an error if the consumer is closed or has failed. Restores the positions if an exception has
        interrupted a poll."""
        if not closing:
            if self.closed and not inside:
                raise errors.ConsumerClosed("this consumer is closed")
            if self._engine.fatal is not None:
                raise self._engine.fatal
        positions = self._engine.positions
        if not inside and positions is not None and positions.unsettled:
            positions.start_over()
