"""`Consumer`: a member of a consumer group, or a reader of chosen partitions, with Java's semantics in Python's words.

It joins three parts, each with its own thread: the coordinator thread keeps the membership alive, the fetch thread
looks after librdkafka, and the caller's thread polls and reads. Here is only what binds them: which record may be
handed out now, and what the caller is told and when. Callbacks run on the caller's thread, inside `poll`,
`unsubscribe` and `close`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

from fleet_consumer.clock import Clock
from fleet_consumer.consumer.base import CommitCallback
from fleet_consumer.consumer.offsets import OffsetCalls
from fleet_consumer.consumer.positions import Positions
from fleet_consumer.consumer.settings import ConsumerSettings
from fleet_consumer.contract.naming import TopicPattern
from fleet_consumer.group import errors
from fleet_consumer.group.membership import Membership
from fleet_consumer.group.messages import CallBack, CallBackKind, FinishCommit
from fleet_consumer.record import Records, TopicPartition

__all__ = ["CommitCallback", "Consumer", "ConsumerSettings", "RebalanceCallback"]

logger = logging.getLogger(__name__)

RebalanceCallback = Callable[[Sequence[TopicPartition]], None]

LOOK_UP_S = 1.0
"""The longest that a waiting `poll` sleeps: so often at least it tells that the user's thread is alive."""
LEAVE_WORDS = ("default", "leave", "remain")


class Consumer(OffsetCalls):
    """A member of a consumer group, or with `assign` a reader without a membership. Making one starts nothing;
    `subscribe` and `assign` do; `close` must be called, or the consumer used as a context manager.

    All methods belong to one thread, except `wakeup`, `membership` and `holds_session`, which any thread may call.
    Callbacks may call `commit`, `commit_async`, `committed`, `position`, `seek`, `pause`, `resume` and `assignment`,
    never `poll`, `unsubscribe` or `close`. After a `FatalConsumerError` every call but `close` raises it again.
    """

    def __init__(self, settings: ConsumerSettings, clock: Clock | None = None) -> None:
        super().__init__(settings, clock)
        self._woken = False
        self._callbacks: dict[CallBackKind, RebalanceCallback | None] = {}
        # How often `unsubscribe` was called: callbacks that were under way then are void.
        self._subscription = 0
        self._subscribed = False

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # Membership.

    def subscribe(
        self,
        topics: Iterable[str] | TopicPattern,
        *,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Join the group for these topics; a second call replaces the first. Returns at once, joining goes on behind.

        A compiled pattern takes in every topic whose whole name matches it, also those that are created later, but
        neither the brokers' internal topics (`__…`) nor the ones that Consumer Fleet makes (`_fleet.…`).

        `on_revoked` gets partitions that still belong to this member until it returns: commit there.
        `on_lost` gets partitions that may belong to others already; without it `on_revoked` is called instead.
        `on_assigned` gets the new partitions, before any record of theirs is handed out: seek there. In a cooperative
        group each of them gets only what comes or goes, `on_assigned` also with nothing when all stays as it was.
        Raises ValueError for topics without a name, SettingsRefused (a ValueError) for what librdkafka does not take,
        SubscriptionConflict after `assign`, GroupIdMissing.
        """
        with self._entered():
            self._check_group("subscribe")
            if self._manual:
                raise errors.SubscriptionConflict("this consumer assigns its partitions itself; unsubscribe first")
            pattern = topics if isinstance(topics, TopicPattern) else None
            wanted = () if isinstance(topics, TopicPattern) else _names(topics)
            self._callbacks = {
                CallBackKind.ASSIGNED: on_assigned,
                CallBackKind.REVOKED: on_revoked,
                CallBackKind.LOST: on_lost or on_revoked,
            }
            if self._fetch is None:
                self._start()
            self._group.polled_at = self._clock.monotonic()
            self._group.subscribe(wanted, pattern)
            self._subscribed = True

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, whoever else does, without joining a group; a second call replaces the first.

        Partitions that stay keep their position. New ones begin at the group's committed offset where `group_id` is
        set, else by the reset policy. No callbacks are called. Nothing at all is as `unsubscribe`.
        Raises SubscriptionConflict after `subscribe`, SettingsRefused as `subscribe`.
        """
        wanted = tuple(dict.fromkeys(TopicPartition(*part) for part in partitions))
        if not all(part.topic and part.partition >= 0 for part in wanted):
            raise ValueError(f"partitions must have a topic's name and a number from 0 on, got {wanted!r}")
        with self._entered(nested=False):
            if self._subscribed:
                raise errors.SubscriptionConflict("this consumer has subscribed to topics; unsubscribe first")
            if self._fetch is None and wanted:
                self._start()
            owned = self.assignment()
            going = tuple(sorted(owned.difference(wanted)))
            if going:
                self._taken_away(CallBackKind.REVOKED, going, self._settings.rebalance_timeout_s)
            self._manual = bool(wanted)
            self._callbacks = {}
            if wanted:
                positions = self._started()
                positions.assign([part for part in wanted if part not in owned], frozenset())
                positions.look_up_unknown()

    def unsubscribe(self) -> None:
        """Give everything back and leave the group (a static member only stops taking part); `subscribe` joins again.

        Calls `on_revoked` or `on_lost` as `close` does; what it raises is raised after the group was left.
        """
        if self._manual:
            self.assign(())
            return
        with self._entered(nested=False):
            if not self._subscribed:
                return
            self._subscribed = False
            try:
                self._give_back_all(self._settings.rebalance_timeout_s)
            finally:
                self._subscription += 1
                self._group.unsubscribe()

    def enforce_rebalance(self, reason: str = "") -> None:
        """Make the group rebalance with the next `poll`s, for example because an assignor's user data changed.

        `reason` is for the broker's log. Raises NotSubscribed.
        """
        with self._entered():
            if not self._subscribed:
                raise errors.NotSubscribed("subscribe first: there is no group to rebalance")
            self._group.enforce_rebalance(reason)

    def poll(self, timeout_s: float, *, max_records: int | None = None) -> Records:
        """Hand out at most `max_records` records, as soon as any are there, after at most `timeout_s` seconds.

        `max_records` is `max_poll_records` by default. 0 hands out nothing and costs no read-ahead, as pausing would:
        it is for whoever is still busy with the last records and wants to keep the membership.

        Runs callbacks that are due. Moves positions past what it returns, commits nothing. Must be called again within
        `max_poll_interval_ms`. Returns empty-handed at once after `wakeup`, and when all that it did was to move a
        position over offsets that hold no record to read (`Records.gaps`), at the end of a partition.
        Raises what the background met: FatalConsumerError, AssignorFailed, NoOffsetForPartition, OffsetLookupFailed,
        TopicAuthorizationFailed, and what callbacks and signal handlers raise. Records that were on their way then come
        again with the next poll.
        """
        # Not `with`: a signal handler may raise between any two steps of a context manager, and would leave it open.
        # Between the end of a `finally` and a return, and between two plain assignments, none runs.
        self._enter(nested=False)
        try:
            self._check_usable(inside=False)
            positions = self._started()
            self._check_subscribed()
            limit = self._settings.max_poll_records if max_records is None else max_records
            deadline = self._clock.monotonic() + timeout_s
            while True:
                self._group.polled_at = now = self._clock.monotonic()
                # Cleared before looking: news that come while we look set it again and end the wait.
                self._signal.clear()
                self._take_news()
                self._check_fetch()
                self._take_starts(positions)
                self._auto_commit()
                # Once the session is over, others may be handing out the same.
                records = positions.take_records(limit) if self.holds_session() else Records([])
                self._ends.refresh(positions.owned, now)
                woken = self._woken
                if woken:
                    self._woken = False
                if records or records.gaps or woken or now >= deadline:
                    break
                left = min(deadline - now, LOOK_UP_S)
                if limit and self.holds_session():
                    positions.wait(left, self._signal)
                else:
                    self._signal.wait(left)
        finally:
            self._user_thread = None
            self._user.release()
        positions.unsettled = False
        return records

    def membership(self) -> Membership:
        """The membership as of now. Any thread."""
        picture, fetch, positions = self._group.snapshot, self._fetch, self._positions
        unplaced = positions.last_error if positions is not None else None
        trouble = unplaced or (fetch.last_error if fetch is not None else None)
        if picture.error is None and trouble is not None:
            return dataclasses.replace(picture, error=trouble)
        return picture

    def holds_session(self) -> bool:
        """Whether the last good heartbeat is younger than the session timeout; False: others may own our partitions.

        Always True after `assign`: nobody takes those partitions away. Cheap enough to ask before every record of a
        batch. Any thread.
        """
        return self._manual or self._clock.monotonic() < self._group.fence_deadline

    def wakeup(self) -> None:
        """Make a `poll` that waits, or the next one, return at once. Any thread, also signal handlers."""
        self._woken = True
        self._signal.set()

    def close(self, timeout_s: float = 30.0, leave: str = "default") -> None:
        """Revoke, then leave or remain, then stop all threads; at most about `timeout_s` seconds. Idempotent.

        `leave` (KIP-1092): `leave` tells the coordinator at once, also for a static member; `remain` lets the session
        time out; `default` is leave for dynamic and remain for static members. Commits nothing by itself, unless
        `auto_commit_interval_ms` says so: `on_revoked` is called first, as in a rebalance. What a callback raises is
        raised after everything has been closed.
        """
        if leave not in LEAVE_WORDS:
            raise ValueError(f"leave is {leave!r}; use one of {', '.join(LEAVE_WORDS)}")
        if os.getpid() != self._pid:
            return  # A fork of the process whose consumer this is: nothing here is open, and nothing there may change.
        with self._entered(closing=True, nested=False):
            if self._closed:
                return
            self._closed = True
            deadline = self._clock.monotonic() + timeout_s
            static = self._settings.group_instance_id is not None
            try:
                self._give_back_all(timeout_s)
            finally:
                leaves = leave == "leave" or (leave == "default" and not static)
                ended = self._group.close(leave=leaves, timeout_s=max(0.0, deadline - self._clock.monotonic()))
                if self._fetch is not None:
                    ended = self._fetch.close(max(1.0, deadline - self._clock.monotonic())) and ended
                if not ended:
                    logger.warning("group %s: threads had not ended after %g s", self._settings.title, timeout_s)
                self._take_commit_results()

    # Holding back.

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

    def _call_back(self, callback: CallBack) -> None:
        if callback.subscription != self._subscription:
            return  # From before `unsubscribe`, which has told the user itself.
        # Whatever the user's code raises, the rebalance goes on: the coordinator thread hears that this is done.
        try:
            if callback.kind is CallBackKind.ASSIGNED:
                self._assigned(callback)
            else:
                # While the callback waited for this poll, the membership may have ended.
                ours = self.holds_session() and self._group.snapshot.generation == callback.generation
                kind = callback.kind if ours else CallBackKind.LOST
                self._taken_away(kind, callback.partitions, self._settings.rebalance_timeout_s)
        finally:
            self._group.called_back(callback)

    def _assigned(self, callback: CallBack) -> None:
        positions = self._started()
        positions.assign(callback.partitions, callback.appeared)
        try:
            self._run_user_callback(CallBackKind.ASSIGNED, callback.partitions)
        finally:
            positions.look_up_unknown()

    def _taken_away(self, kind: CallBackKind, partitions: Sequence[TopicPartition], timeout_s: float) -> None:
        """Revoked or lost: nothing of these comes out any more, then the user hears of it, then they are gone."""
        positions = self._started()
        positions.stop_delivery(partitions)
        try:
            if kind is CallBackKind.REVOKED:
                self._auto_commit_before_giving_back(partitions, timeout_s)
            self._run_user_callback(kind, partitions)
        finally:
            positions.forget(partitions)

    def _run_user_callback(self, kind: CallBackKind, partitions: Sequence[TopicPartition]) -> None:
        callback = self._callbacks.get(kind)
        if callback is not None:
            callback(partitions)

    def _give_back_all(self, timeout_s: float) -> None:
        """Tell the user that everything goes, as revoked while the session holds, else as lost."""
        partitions = tuple(sorted(self.assignment()))
        if partitions:
            kind = CallBackKind.REVOKED if self.holds_session() else CallBackKind.LOST
            self._taken_away(kind, partitions, timeout_s)

    def _check_subscribed(self) -> None:
        if not self._subscribed and not self._manual:
            raise errors.NotSubscribed("subscribe or assign first")

    def _take_starts(self, positions: Positions) -> None:
        try:
            positions.take_starts()
        except errors.FatalConsumerError as error:
            self._fatal = error
            raise

    def _check_fetch(self) -> None:
        if self._fetch is not None and self._fetch.failure is not None:
            self._fatal = self._fetch.failure
            raise self._fetch.failure


def _names(topics: Iterable[str]) -> tuple[str, ...]:
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if isinstance(topics, str) or not names or not all(names):
        raise ValueError(f"topics must be a list of non-empty names or a compiled pattern, got {topics!r}")
    return names
