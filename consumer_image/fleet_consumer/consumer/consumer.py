"""`Consumer`: a member of a consumer group, or a reader of chosen partitions, with Java's semantics in Python's words.

It joins three threads: the coordinator thread keeps the membership alive, the fetch thread looks after librdkafka, and
the caller's thread polls and reads. Callbacks run on the caller's thread, inside `poll`, `unsubscribe` and `close`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import TracebackType

from fleet_consumer.clock import Clock, SystemClock
from fleet_consumer.consumer.commits import CommitCallback, Commits
from fleet_consumer.consumer.engine import CallGuard, Engine
from fleet_consumer.consumer.queries import EndOffsets, Queries, SilentPartitions
from fleet_consumer.consumer.rates import RateWatch
from fleet_consumer.consumer.resets import OutOfRangeReport, TruncationReport
from fleet_consumer.consumer.settings import DEFAULT_TIMEOUT_S, ConsumerSettings
from fleet_consumer.consumer.subscription import RebalanceCallback, Subscription
from fleet_consumer.contract.naming import TopicPattern
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.starts import ResetPolicy
from fleet_consumer.fetch.read_errors import PartitionError
from fleet_consumer.group.membership import Membership, OffsetAndMetadata
from fleet_consumer.group.messages import CallBack, CallBackKind, FinishCommit
from fleet_consumer.record import Records, TopicPartition

__all__ = ["CommitCallback", "Consumer", "ConsumerSettings", "RebalanceCallback"]

logger = logging.getLogger(__name__)

LOOK_UP_S = 1.0
"""The longest sleep of a waiting `poll`, and so of the interval at which it shows that the user's thread is alive."""
LEAVE_WORDS = ("default", "leave", "remain")


class Consumer(Queries):
    """A member of a consumer group, or with `assign` a reader without a membership. Making one starts nothing;
    `subscribe` and `assign` do; `close` must be called, or the consumer used as a context manager.

    All methods belong to one thread, except `wakeup`, `membership` and `holds_session`, which any thread may call.
    Callbacks may call `commit`, `commit_async`, `committed`, `position`, `seek`, `pause`, `resume` and `assignment`,
    never `poll`, `unsubscribe` or `close`. After a `FatalConsumerError` every call but `close` raises it again.
    """

    def __init__(self, settings: ConsumerSettings, clock: Clock | None = None) -> None:
        engine = Engine(settings, clock or SystemClock())
        super().__init__(engine, CallGuard(engine))
        self._commits = Commits(self._engine, self._guard)
        self._subscription = Subscription(self._engine, self._guard, self._commits)
        self._ends = EndOffsets(self._engine.group, read_committed=settings.read_committed)
        self._silent = SilentPartitions(self._engine)
        self._rates = RateWatch(self._engine, self._engine.rate_takers)
        self._woken = False

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
        callbacks = {
            CallBackKind.ASSIGNED: on_assigned,
            CallBackKind.REVOKED: on_revoked,
            CallBackKind.LOST: on_lost or on_revoked,
        }
        self._subscription.subscribe(topics, callbacks)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without joining a group; a second call replaces the first.

        Partitions that stay keep their position. New ones begin at the group's committed offset where `group_id` is
        set, else by the reset policy. No callbacks are called. Nothing at all is as `unsubscribe`.
        Raises SubscriptionConflict after `subscribe`, SettingsRefused as `subscribe`.
        """
        self._subscription.assign(partitions)

    def unsubscribe(self) -> None:
        """Give everything back and leave the group (a static member only stops taking part); `subscribe` joins again.

        Calls `on_revoked` or `on_lost` as `close` does; what it raises is raised after the group was left.
        """
        self._subscription.unsubscribe()

    def enforce_rebalance(self, reason: str = "") -> None:
        """Make the group rebalance with the next `poll`s, for example because an assignor's user data changed.

        `reason` is for the broker's log. Raises NotSubscribed.
        """
        self._subscription.enforce_rebalance(reason)

    def poll(self, timeout_s: float, *, max_records: int | None = None) -> Records:
        """Hand out at most `max_records` records, as soon as any are there, after at most `timeout_s` seconds.

        `max_records` is `max_poll_records` by default. 0 hands out nothing and costs no read-ahead, as pausing would:
        it keeps the membership of a caller that is still busy with the last records.

        Runs callbacks that are due. Moves positions past what it returns, commits nothing. Must be called again within
        `max_poll_interval_ms`. Returns empty-handed at once after `wakeup`, and when all that it did was to move a
        position over offsets that hold no record to read (`Records.gaps`), at the end of a partition.
        Raises the errors of the background threads: FatalConsumerError, AssignorFailed, NoOffsetForPartition,
        OffsetLookupFailed, TopicAuthorizationFailed, and what callbacks and signal handlers raise. Records that were on
        their way then come again with the next poll.
        """
        guard, engine = self._guard, self._engine
        # Not `with`: a signal handler may raise between any two steps of a context manager, and would leave it open.
        # Between the end of a `finally` and a return, and between two plain assignments, none runs.
        guard.enter(nested=False)
        try:
            guard.check_usable(inside=False)
            positions = engine.started()
            self._subscription.check()
            limit = engine.settings.max_poll_records if max_records is None else max_records
            deadline = engine.clock.monotonic() + timeout_s
            while True:
                engine.group.polled_at = now = engine.clock.monotonic()
                # Cleared before looking: news that comes meanwhile sets it again and ends the wait.
                engine.signal.clear()
                self._take_news()
                engine.take_starts(positions)
                self._commits.auto_commit()
                # Once the session is over, others may be handing out the same.
                records = positions.take_records(limit) if engine.holds_session() else Records([])
                self._ends.refresh(positions.owned, now)
                self._rates.look(now)
                if limit:
                    self._silent.look(now)
                woken = self._woken
                if woken:
                    self._woken = False
                if records or records.gaps or woken or now >= deadline:
                    break
                left = min(deadline - now, LOOK_UP_S)
                if limit and engine.holds_session():
                    positions.wait(left, engine.signal)
                else:
                    engine.signal.wait(left)
        finally:
            guard.thread = None
            guard.lock.release()
        positions.unsettled = False
        return records

    def _take_news(self) -> None:
        """Handle the coordinator thread's news in order; callbacks are serial because they run here.

        An exception of one does not keep the others from running; the first is raised in the end, as in Java.
        """
        first: Exception | None = None
        queue = self._engine.group.news
        while queue:
            news = queue.popleft()
            try:
                if isinstance(news, CallBack):
                    self._subscription.call_back(news)
                elif isinstance(news, FinishCommit):
                    self._commits.finish(news)
                else:
                    self._engine.fail(news.error)
            except Exception as error:
                first = first or error
        if first is not None:
            raise first

    def membership(self) -> Membership:
        """The membership as of now. Any thread."""
        return self._engine.membership()

    def holds_session(self) -> bool:
        """True while the last good heartbeat is younger than the session timeout; False: others may own our partitions.

        Always True after `assign`: nobody takes those partitions away. Cheap enough to ask before every record of a
        batch. Any thread.
        """
        return self._engine.holds_session()

    def group_metadata(self) -> bytes:
        """This member and its generation, for `send_offsets_to_transaction` of confluent-kafka's `Producer`.

        Take it anew for each transaction: it holds until the next rebalance.
        Raises CommitFailed while this consumer is no member (Java gives out metadata that no broker checks then),
        GroupMetadataUnknown when this librdkafka uses another format.
        """
        return self._commits.group_metadata()

    def wakeup(self) -> None:
        """Make a `poll` that waits, or the next one, return at once. Any thread, also signal handlers."""
        self._woken = True
        self._engine.signal.set()

    def close(self, timeout_s: float = 30.0, leave: str = "default") -> None:
        """Revoke, then leave or remain, then stop all threads; at most about `timeout_s` seconds. Idempotent.

        `leave` (KIP-1092): `leave` notifies the coordinator at once, also for a static member; `remain` lets the
        session time out; `default` is leave for dynamic and remain for static members. Commits nothing by itself,
        unless `auto_commit_interval_ms` says so: `on_revoked` is called first, as in a rebalance. What a callback
        raises is raised after everything has been closed.
        """
        if leave not in LEAVE_WORDS:
            raise ValueError(f"leave is {leave!r}; use one of {', '.join(LEAVE_WORDS)}")
        if self._guard.forked:
            return  # Nothing is open in this process, and nothing may change in the one that made the consumer.
        with self._guard.entered(closing=True, nested=False):
            if self._guard.closed:
                return
            self._guard.closed = True
            settings, clock = self._engine.settings, self._engine.clock
            deadline = clock.monotonic() + timeout_s
            try:
                self._subscription.give_back_all(timeout_s)
            finally:
                leaves = leave == "leave" or (leave == "default" and settings.group_instance_id is None)
                if not self._engine.close(deadline - clock.monotonic(), leave=leaves):
                    logger.warning("group %s: threads had not ended after %g s", settings.title, timeout_s)
                self._commits.take_results()

    # Commits.

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Commit and wait. Retries while that can help, at most `timeout_s` seconds.

        `offsets` None commits the positions of everything owned: all that polls have returned counts as done.
        After `assign` the broker takes commits as long as the group has no members. Raises CommitFailed (no longer
        ours: do not repeat), RebalanceInProgress, RetriableCommitFailed (time is up; unknown whether written),
        CommitRefused, TopicDeleted (the topic that was read; one of its name does not get these offsets),
        TopicAuthorizationFailed, GroupIdMissing, FatalConsumerError.
        """
        self._commits.commit(offsets, timeout_s)

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None, callback: CommitCallback | None = None
    ) -> None:
        """Commit without waiting or retrying; None as in `commit`.

        `callback(offsets, error or None)` runs inside a later `poll`, `commit` or `close`.
        """
        self._commits.commit_async(offsets, callback)

    # Positions.

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions owned now, from the caller's view: given by `on_assigned` and not taken away since."""
        return self._engine.owned

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset that poll would hand out; None while it is being looked up. Raises NotAssigned.

        Worth a commit even where nothing was handed out yet: under `latest`, the partition's next owner would otherwise
        start at what is the end by then.
        """
        with self._guard.entered():
            return self._engine.started().position(partition)

    def lag(self, partition: TopicPartition) -> int | None:
        """The distance from the position to the partition's end, in offsets; None while either is unknown.

        Never blocks: the first call has the end looked up in the background, and polls keep it fresh from then on
        (`EndOffsets`). Under `read_committed` the end is the last stable offset. Raises NotAssigned.
        """
        with self._guard.entered():
            positions = self._engine.started()
            position = positions.position(partition)
            end = self._ends.of(partition, positions.owned, self._engine.clock.monotonic())
            return None if position is None or end is None else max(0, end - position)

    def look_up_ends(self, partitions: Iterable[TopicPartition]) -> Ticket[dict[TopicPartition, int]]:
        """Have the ends of partitions looked up in one attempt, without blocking; those without an answer are left out.

        For threads beside the one that polls, which may be away with its records for long. Any thread.
        """
        return self._ends.look_up(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at `offset`; nothing that was read ahead before comes out. Raises NotAssigned."""
        with self._guard.entered():
            if offset < 0:
                raise ValueError(f"offset {offset} is negative")
            self._engine.started().seek(partition, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go on at the first offset that is there, in all owned partitions when none is named. Raises NotAssigned.

        The offset is looked up in the background; `position` is None until then, and nothing is handed out.
        """
        self._seek_to_edge(partitions, ResetPolicy.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go on behind the last record, in all owned partitions when none is named; under `read_committed` behind the
        last that is stable. As `seek_to_beginning`: the end counts that a broker has when it is asked.
        """
        self._seek_to_edge(partitions, ResetPolicy.LATEST)

    def _seek_to_edge(self, partitions: Iterable[TopicPartition], edge: ResetPolicy) -> None:
        with self._guard.entered():
            positions = self._engine.started()
            wanted = tuple(partitions) or tuple(sorted(positions.owned))
            if wanted:
                positions.seek_to_edge(wanted, edge)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions until `resume`; reassignment ends a pause. Raises NotAssigned."""
        with self._guard.entered():
            self._engine.started().pause(tuple(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End a pause. Raises NotAssigned."""
        with self._guard.entered():
            self._engine.started().resume(tuple(partitions))

    def paused(self) -> frozenset[TopicPartition]:
        positions = self._engine.positions
        return frozenset() if positions is None else positions.paused

    def out_of_range(self) -> OutOfRangeReport:
        """The OFFSET_OUT_OF_RANGE errors so far, and the offsets skipped."""
        positions = self._engine.positions
        return OutOfRangeReport() if positions is None else positions.out_of_range

    def unreadable(self) -> dict[TopicPartition, PartitionError]:
        """The partitions that stand at a batch which cannot be read, the next offset of each, and why. Any thread.

        Each is tried again every second or two; `seek` to its `batch_end` passes it.
        """
        fetch = self._engine.fetch
        return {} if fetch is None else fetch.unreadable

    def truncations(self) -> TruncationReport:
        """The truncations so far: logs that lost records after these were read."""
        positions = self._engine.positions
        return TruncationReport() if positions is None else positions.truncations
