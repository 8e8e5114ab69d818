"""`Consumer`: one member of one consumer group, with Java's semantics and Python's names.

It joins three parts, each with its own thread: the coordinator thread keeps the membership alive, the fetch thread
reads ahead, and the caller's thread polls. Here is only what binds them: which record may be handed out now, and
what the caller is told and when. Callbacks run on the caller's thread, inside `poll` and `close`.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fleet_consumer.assignors import Assignor, load
from fleet_consumer.clock import Clock, SystemClock
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.offsets import ResetPolicy
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.fetch.librdkafka import check_properties, consumer_config
from fleet_consumer.fetch.records import Records
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.group import errors
from fleet_consumer.group.membership import Membership, OffsetAndMetadata
from fleet_consumer.group.messages import CallBack, CallBackKind, FinishCommit
from fleet_consumer.group.settings import GroupSettings
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.positions import Positions
from fleet_consumer.record import TopicPartition

logger = logging.getLogger(__name__)

RebalanceCallback = Callable[[Sequence[TopicPartition]], None]
CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], Exception | None], None]

LOOK_UP_S = 1.0
"""The longest that a waiting `poll` sleeps: so often at least it tells that the user's thread is alive."""
READ_AHEAD_POLLS = 2
"""How many full polls are read ahead: one to hand out while the next is read. Measured with values of 1 KiB, 4 took 5 %
more CPU time: records grow cold in the processor's cache while they wait. librdkafka holds far more before it."""
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
LEAVE_WORDS = ("default", "leave", "remain")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Everything that decides how a consumer behaves. Defaults are those of Kafka 4's Java consumer.

    Times are milliseconds. `assignors` are names for `fleet_consumer.assignors.load`, or assignors (an object serves
    one consumer), in order of preference; members keep their partitions through rebalances when all are cooperative.
    `group_instance_id` makes the member static (KIP-345). `auto_offset_reset` is `earliest`, `latest` or `none`, for
    partitions without a usable committed offset; partitions that appear after the first assignment start at the
    beginning whatever it says. `rebalance_timeout_ms` None means `max_poll_interval_ms`, as in Java.
    `properties` are further librdkafka settings, only those that `fetch.librdkafka.ALLOWED_PROPERTIES` lists.
    Raises ValueError, naming the setting, for values that cannot work.
    """

    connection: ConnectionSettings
    group_id: str
    assignors: tuple[str | Assignor, ...] = ("range",)
    group_instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    auto_offset_reset: str = "earliest"
    isolation_level: str = "read_uncommitted"
    rebalance_timeout_ms: int | None = None
    metadata_max_age_ms: int = 300_000
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.group_id:
            raise ValueError("group_id is empty")
        if not self.assignors:
            raise ValueError("assignors names none; the default is ('range',)")
        if self.auto_offset_reset not in [policy.value for policy in ResetPolicy]:
            raise ValueError(f"auto_offset_reset is {self.auto_offset_reset!r}; use earliest, latest or none")
        if self.isolation_level not in ISOLATION_LEVELS:
            raise ValueError(f"isolation_level is {self.isolation_level!r}; use {' or '.join(ISOLATION_LEVELS)}")
        for name in ("session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms", "max_poll_records"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be below session_timeout_ms "
                f"({self.session_timeout_ms}), usually a third of it or less"
            )
        check_properties(self.properties)


class Consumer:
    """A member of a consumer group. Making one starts nothing; `subscribe` does; `close` must be called.

    All methods belong to one thread, except `wakeup`, `membership` and `holds_session`, which any thread may call.
    Callbacks may call `commit`, `commit_async`, `committed`, `position`, `seek`, `pause`, `resume` and `assignment`,
    never `poll` or `close`. After a `FatalConsumerError` every call but `close` raises it again.
    """

    def __init__(self, settings: ConsumerSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        # A one-slot latch: whoever has news for the user's thread sets it.
        self._signal = threading.Event()
        self._woken = False
        self._user = threading.Lock()
        self._user_thread: int | None = None
        self._closed = False
        self._fatal: Exception | None = None
        self._group = CoordinatorThread(
            settings.connection,
            _group_settings(settings),
            tuple(load(each) if isinstance(each, str) else each for each in settings.assignors),
            clock=self._clock,
            on_news=self._signal.set,
        )
        # Both from the first subscription on.
        self._fetch: FetchThread | None = None
        self._positions: Positions | None = None
        self._callbacks: dict[CallBackKind, RebalanceCallback | None] = {}
        self._commit_callbacks: dict[Ticket[None], CommitCallback] = {}

    # Membership.

    def subscribe(
        self,
        topics: Iterable[str],
        *,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Join the group for these topics; a second call replaces the first. Returns at once, joining goes on behind.

        `on_revoked` gets partitions that still belong to this member until it returns: commit there.
        `on_lost` gets partitions that may belong to others already; without it `on_revoked` is called instead.
        `on_assigned` gets the new partitions, before any record of theirs is handed out: seek there.
        Raises ValueError for topics without a name, SettingsRefused (a ValueError) for what librdkafka does not take.
        """
        with self._entered():
            wanted = tuple(topics)
            if not wanted or not all(wanted):
                raise ValueError(f"topics must be non-empty names, got {wanted!r}")
            self._callbacks = {
                CallBackKind.ASSIGNED: on_assigned,
                CallBackKind.REVOKED: on_revoked,
                CallBackKind.LOST: on_lost or on_revoked,
            }
            if self._fetch is None:
                self._start()
            self._group.subscribe(wanted)

    def poll(self, timeout_s: float, *, max_records: int | None = None) -> Records:
        """Hand out at most `max_records` records, as soon as any are there, after at most `timeout_s` seconds.

        `max_records` is `max_poll_records` by default. 0 hands out nothing and costs no read-ahead, as pausing would:
        it is for whoever is still busy with the last records and wants to keep the membership.

        Runs callbacks that are due. Moves positions past what it returns, commits nothing. Must be called again within
        `max_poll_interval_ms`. Returns empty-handed at once after `wakeup`. Raises what the background met:
        FatalConsumerError, AssignorFailed, NoOffsetForPartition, OffsetLookupFailed, TopicAuthorizationFailed, and
        what callbacks raise.
        """
        with self._entered(nested=False):
            positions = self._started()
            limit = self._settings.max_poll_records if max_records is None else max_records
            deadline = self._clock.monotonic() + timeout_s
            while True:
                self._group.polled_at = now = self._clock.monotonic()
                # Cleared before looking: news that come while we look set it again and end the wait.
                self._signal.clear()
                self._take_news()
                self._check_fetch()
                positions.take_starts()
                # Once the session is over, others may be handing out the same.
                records = positions.take_records(limit) if self.holds_session() else Records([])
                woken = self._woken
                if woken:
                    self._woken = False
                if records or woken or now >= deadline:
                    return records
                self._signal.wait(min(deadline - now, LOOK_UP_S))

    def membership(self) -> Membership:
        """The membership as of now. Any thread."""
        picture, fetch = self._group.picture, self._fetch
        trouble = fetch.trouble if fetch is not None else None
        if picture.error is None and trouble is not None:
            return dataclasses.replace(picture, error=trouble)
        return picture

    def holds_session(self) -> bool:
        """Whether the last good heartbeat is younger than the session timeout; False: others may own our partitions.

        Cheap enough to ask before every record of a batch. Any thread.
        """
        return self._clock.monotonic() < self._group.fence_deadline

    def wakeup(self) -> None:
        """Make a `poll` that waits, or the next one, return at once. Any thread, also signal handlers."""
        self._woken = True
        self._signal.set()

    def close(self, timeout_s: float = 30.0, leave: str = "default") -> None:
        """Revoke, then leave or remain, then stop all threads; at most about `timeout_s` seconds. Idempotent.

        `leave` (KIP-1092): `leave` tells the coordinator at once, also for a static member; `remain` lets the session
        time out; `default` is leave for dynamic and remain for static members. Commits nothing by itself: `on_revoked`
        is called first, as in a rebalance. What a callback raises is raised after everything has been closed.
        """
        if leave not in LEAVE_WORDS:
            raise ValueError(f"leave is {leave!r}; use one of {', '.join(LEAVE_WORDS)}")
        with self._entered(closing=True, nested=False):
            if self._closed:
                return
            self._closed = True
            deadline = self._clock.monotonic() + timeout_s
            static = self._settings.group_instance_id is not None
            try:
                self._give_back_all()
            finally:
                leaves = leave == "leave" or (leave == "default" and not static)
                ended = self._group.close(leave=leaves, timeout_s=max(0.0, deadline - self._clock.monotonic()))
                if self._fetch is not None:
                    ended = self._fetch.close(max(1.0, deadline - self._clock.monotonic())) and ended
                if not ended:
                    logger.warning("group %s: threads had not ended after %g s", self._settings.group_id, timeout_s)
                self._take_commit_results()

    # Offsets.

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
        """Commit and wait. Retries while that can help, at most `timeout_s` seconds.

        Raises CommitFailed (no longer ours: do not repeat), RebalanceInProgress, RetriableCommitFailed (time is up;
        unknown whether written), CommitRefused, TopicAuthorizationFailed, FatalConsumerError.
        """
        with self._entered():
            self._started()
            if not offsets:
                return
            ticket = self._group.commit(offsets, self._clock.monotonic() + timeout_s)
            # The thread ends the ticket at its deadline; the second on top is for a thread that is busy.
            if not ticket.wait(timeout_s + 1.0):
                raise errors.RetriableCommitFailed(f"group {self._settings.group_id!r}: commit not confirmed in time")
            self._take_commit_results()
            if ticket.error is not None:
                raise ticket.error

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None = None
    ) -> None:
        """Commit without waiting or retrying.

        `callback(offsets, error or None)` runs inside a later `poll`, `commit` or `close`.
        """
        with self._entered():
            self._started()
            if offsets:
                ticket = self._group.commit(offsets, None)
                if callback is not None:
                    self._commit_callbacks[ticket] = callback

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets, None where there is none.

        Raises OffsetLookupFailed (also when the time is up), TopicAuthorizationFailed, GroupAuthorizationFailed.
        """
        with self._entered():
            self._started()
            ticket = self._group.committed(partitions)
            if not ticket.wait(timeout_s):
                ticket.cancel()
                raise errors.OffsetLookupFailed(
                    f"group {self._settings.group_id!r}: no answer about committed offsets within {timeout_s:g} s"
                )
            if ticket.error is not None:
                raise ticket.error
            return ticket.result or {}

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset that poll would hand out; None while it is being looked up. Raises NotAssigned.

        Worth a commit even where nothing was handed out yet: under `latest`, whoever owns the partition next would
        otherwise start at what is the end by then.
        """
        with self._entered():
            return self._started().position(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at `offset`; nothing that was read ahead before comes out. Raises NotAssigned."""
        with self._entered():
            if offset < 0:
                raise ValueError(f"offset {offset} is negative")
            self._started().seek(partition, offset)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions until `resume`; reassignment ends a pause. Raises NotAssigned."""
        with self._entered():
            self._started().pause(tuple(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End a pause. Raises NotAssigned."""
        with self._entered():
            self._started().resume(tuple(partitions))

    def paused(self) -> frozenset[TopicPartition]:
        """What is paused now."""
        return frozenset() if self._positions is None else self._positions.paused

    def assignment(self) -> frozenset[TopicPartition]:
        """What this member owns now, from the caller's view: what `on_assigned` gave and nothing has taken since."""
        return frozenset() if self._positions is None else self._positions.owned

    # What the other threads have for us.

    def _take_news(self) -> None:
        """Run what the coordinator thread has put in line, in its order; callbacks are serial by being here.

        What one raises does not keep the others from running; the first is raised in the end, as in Java.
        """
        first: Exception | None = None
        while self._group.news:
            news = self._group.news.popleft()
            try:
                if isinstance(news, CallBack):
                    self._call_back(news)
                elif isinstance(news, FinishCommit):
                    self._finish_commit(news)
                else:
                    if isinstance(news.error, errors.FatalConsumerError):
                        self._fatal = news.error
                    raise news.error
            except Exception as error:
                first = first or error
        if first is not None:
            raise first

    def _take_commit_results(self) -> None:
        """As `_take_news`, but only commits: a callback that commits must not be called back into."""
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

    def _call_back(self, callback: CallBack) -> None:
        # Whatever the user's code raises, the rebalance goes on: the coordinator thread hears that this is done.
        try:
            if callback.kind is CallBackKind.ASSIGNED:
                self._assigned(callback)
            else:
                # While the callback waited for this poll, the membership may have ended.
                ours = self.holds_session() and self._group.picture.generation == callback.generation
                self._taken_away(callback.kind if ours else CallBackKind.LOST, callback.partitions)
        finally:
            self._group.called_back(callback)

    def _assigned(self, callback: CallBack) -> None:
        positions = self._started()
        positions.assign(callback.partitions, callback.appeared)
        try:
            self._run_user_callback(CallBackKind.ASSIGNED, callback.partitions)
        finally:
            positions.look_up_unknown()

    def _taken_away(self, kind: CallBackKind, partitions: Sequence[TopicPartition]) -> None:
        """Revoked or lost: nothing of these comes out any more, then the user hears of it, then they are gone."""
        positions = self._started()
        positions.void(partitions)
        try:
            self._run_user_callback(kind, partitions)
        finally:
            positions.forget(partitions)

    def _run_user_callback(self, kind: CallBackKind, partitions: Sequence[TopicPartition]) -> None:
        callback = self._callbacks.get(kind)
        if callback is not None:
            callback(partitions)

    def _give_back_all(self) -> None:
        """Closing: tell the user that everything goes, as revoked while the session holds, else as lost."""
        partitions = tuple(sorted(self.assignment()))
        if partitions:
            self._taken_away(CallBackKind.REVOKED if self.holds_session() else CallBackKind.LOST, partitions)

    # Rules of use.

    @contextmanager
    def _entered(self, *, closing: bool = False, nested: bool = True) -> Iterator[None]:
        """One thread at a time; calls from inside its callbacks where `nested` allows; after the end only close."""
        me = threading.get_ident()
        inside = self._user_thread == me
        if inside and not nested:
            raise errors.ConcurrentUse("callbacks may call neither poll nor close")
        if not inside and not self._user.acquire(blocking=False):
            raise errors.ConcurrentUse("another thread is inside this consumer; only wakeup may be called meanwhile")
        try:
            self._user_thread = me
            if not closing:
                if self._closed and not inside:
                    raise errors.ConsumerClosed("this consumer is closed")
                if self._fatal is not None:
                    raise self._fatal
            yield
        finally:
            if not inside:
                self._user_thread = None
                self._user.release()

    def _start(self) -> None:
        settings = self._settings
        config = consumer_config(settings.connection, settings.group_id, settings.isolation_level, settings.properties)
        self._fetch = FetchThread(
            config,
            name=f"fetch-{settings.group_id}",
            read_ahead_records=settings.max_poll_records * READ_AHEAD_POLLS,
            on_data=self._signal.set,
            clock=self._clock,
        )
        self._positions = Positions(
            self._group,
            self._fetch,
            group_id=settings.group_id,
            policy=ResetPolicy(settings.auto_offset_reset),
            read_committed=settings.isolation_level == "read_committed",
            held_records_max=settings.max_poll_records,
        )
        self._fetch.start()
        self._group.start()

    def _started(self) -> Positions:
        if self._positions is None:
            raise errors.NotSubscribed("subscribe first")
        return self._positions

    def _check_fetch(self) -> None:
        if self._fetch is not None and self._fetch.failure is not None:
            self._fatal = self._fetch.failure
            raise self._fetch.failure


def _group_settings(settings: ConsumerSettings) -> GroupSettings:
    rebalance_ms = settings.rebalance_timeout_ms
    return GroupSettings(
        group_id=settings.group_id,
        instance_id=settings.group_instance_id,
        session_timeout_s=settings.session_timeout_ms / 1000,
        heartbeat_interval_s=settings.heartbeat_interval_ms / 1000,
        max_poll_interval_s=settings.max_poll_interval_ms / 1000,
        rebalance_timeout_s=(settings.max_poll_interval_ms if rebalance_ms is None else rebalance_ms) / 1000,
        request_timeout_s=settings.connection.request_timeout_ms / 1000,
        metadata_max_age_s=settings.metadata_max_age_ms / 1000,
    )
