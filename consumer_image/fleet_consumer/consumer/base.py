"""What all calls of a `Consumer` share: its parts, who may call when, and how a call waits for another thread.

Nothing here decides what a call does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from fleet_consumer.assignors import complete, load
from fleet_consumer.clock import Clock, SystemClock
from fleet_consumer.consumer.end_offsets import EndOffsets
from fleet_consumer.consumer.positions import Positions
from fleet_consumer.consumer.settings import ConsumerSettings, group_settings
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.messages import FinishCommit
from fleet_consumer.librdkafka.settings import consumer_config, observation_config
from fleet_consumer.record import TopicPartition

T = TypeVar("T")
CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], Exception | None], None]


class Latch(threading.Event):
    """An Event that a signal handler may set on the thread that it interrupts, also inside `clear` or `wait`.

    Event's own lock cannot be entered twice: the handler would wait for the thread that runs it, for ever. What a
    `clear` that is interrupted takes back again must be remembered elsewhere, as `wakeup` does.
    """

    def __init__(self) -> None:
        super().__init__()
        # Event keeps all its state behind this one condition.
        self._cond = threading.Condition(threading.RLock())


class ConsumerBase:
    """The parts of one consumer, and the rules of calling it."""

    def __init__(self, settings: ConsumerSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        # A one-slot latch: whoever has news for the user's thread sets it.
        self._signal = Latch()
        # Only its owner can let go of it, so what an exception in the middle of a call left behind can be mended.
        self._user = threading.RLock()
        self._user_thread: int | None = None
        self._pid = os.getpid()
        self._closed = False
        self._fatal: Exception | None = None
        self._group = CoordinatorThread(
            settings.connection,
            group_settings(settings),
            tuple(
                load(each) if isinstance(each, str) else complete(each, type(each).__name__)
                for each in settings.assignors
            ),
            clock=self._clock,
            on_news=self._signal.set,
        )
        # Whether the user assigned the partitions himself: nobody else can take them away.
        self._manual = False
        # Both from the first subscription, or assignment, on.
        self._fetch: FetchThread | None = None
        self._positions: Positions | None = None
        self._ends = EndOffsets(self._group, read_committed=settings.isolation_level == "read_committed")
        self._commit_callbacks: dict[Ticket[None], CommitCallback] = {}
        self._auto_commit_at = self._clock.monotonic() + (settings.auto_commit_interval_ms or 0) / 1000
        self._auto_commit_in_flight = False

    @contextmanager
    def _entered(self, *, closing: bool = False, nested: bool = True) -> Iterator[None]:
        """One thread at a time; calls from inside its callbacks where `nested` allows; after the end only close."""
        inside = self._enter(nested=nested)
        try:
            self._check_usable(inside=inside, closing=closing)
            yield
        finally:
            if not inside:
                self._user_thread = None
                self._user.release()

    def _enter(self, *, nested: bool) -> bool:
        """Become the thread that is inside; whether it was already. Whoever comes in leaves as `_entered` does."""
        if os.getpid() != self._pid:
            raise errors.ForkedConsumer(
                f"group {self._settings.group_id!r}: this consumer was made by process {self._pid}, of which this one, "
                f"{os.getpid()}, is a fork; its threads and connections stayed there: make a new consumer here"
            )
        me = threading.get_ident()
        inside = self._user_thread == me
        if inside and not nested:
            raise errors.ConcurrentUse("callbacks may call neither poll, unsubscribe nor close")
        if not inside and not self._user.acquire(blocking=False):
            raise errors.ConcurrentUse("another thread is inside this consumer; only wakeup may be called meanwhile")
        self._user_thread = me
        return inside

    def _check_usable(self, *, inside: bool, closing: bool = False) -> None:
        """Raise what forbids the call; mend what an exception of a signal handler left behind in an earlier one."""
        if not closing:
            if self._closed and not inside:
                raise errors.ConsumerClosed("this consumer is closed")
            if self._fatal is not None:
                raise self._fatal
        if not inside and self._positions is not None and self._positions.unsettled:
            self._positions.start_over()

    def _start_group(self) -> None:
        if not self._group.started:
            self._group.start()

    def _start(self) -> None:
        """Open the data plane, which checks its settings; then the threads may run."""
        settings = self._settings
        config = consumer_config(
            settings.connection, settings.title, settings.isolation_level, settings.data_plane_properties
        )
        config |= observation_config(
            settings.on_statistics, settings.statistics_interval_ms, settings.debug, settings.log_level
        )
        self._fetch = FetchThread(
            config,
            name=f"fetch-{settings.title}",
            on_turn=self._signal.set,
            clock=self._clock,
        )
        self._positions = Positions(self._group, self._fetch, settings)
        self._fetch.start()
        self._start_group()

    def _started(self) -> Positions:
        if self._positions is None:
            raise errors.NotSubscribed("subscribe or assign first")
        return self._positions

    def _check_group(self, call: str) -> None:
        if self._settings.group_id is None:
            raise errors.GroupIdMissing(f"{call} needs a group: set group_id in ConsumerSettings")

    def _request_commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float | None
    ) -> Ticket[None]:
        ids = {} if self._positions is None else self._positions.topic_ids(offsets)
        return self._group.commit(offsets, deadline, alone=self._manual, ids=ids)

    def _await(
        self,
        ticket: Ticket[T],
        timeout_s: float,
        what: str,
        error: type[errors.ConsumerError] = errors.OffsetLookupFailed,
    ) -> T:
        """Wait for what another thread finds out. Raises what it met, `error` when the time is up."""
        if not ticket.wait(timeout_s):
            ticket.cancel()
            raise error(f"group {self._settings.group_id!r}: no answer about {what} within {timeout_s:g} s")
        if ticket.error is not None:
            if isinstance(ticket.error, errors.FatalConsumerError):
                self._fatal = ticket.error
            raise ticket.error
        assert ticket.result is not None
        return ticket.result

    def _take_commit_results(self) -> None:
        """Tell of commits that ended, and of nothing else: who commits in a callback must not be called back into."""
        kept = []
        while self._group.news:
            news = self._group.news.popleft()
            if isinstance(news, FinishCommit):
                self._finish_commit(news)
            else:
                kept.append(news)
        self._group.news.extendleft(reversed(kept))

    def _finish_commit(self, news: FinishCommit) -> None:
        callback = self._commit_callbacks.pop(news.commit.ticket, None)
        if callback is not None:
            callback(news.commit.offsets, news.error)
