"""`Consumer`: a member of a consumer group, or a reader of chosen partitions, with the semantics of Java's consumer.

The coordinator thread keeps the membership alive, the fetch thread serves librdkafka, and the caller's thread polls and
reads. Callbacks run on the caller's thread, inside `poll`, `unsubscribe` and `close`.

Decision: docs/decisions/0022-library-classes.md.
"""

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

LOOKUP_WAIT_S = 1.0
"""Maximum sleep in seconds of a waiting `poll`. After each sleep, `polled_at` is updated to show that the thread is
alive."""
LEAVE_WORDS = ("default", "leave", "remain")


class Consumer(Queries):
    """A member of a consumer group or, with `assign`, a reader without a membership. `subscribe` and `assign` start the
    consumer. End it with `close`, or use it as a context manager.

    Only one thread at a time may call the methods. `wakeup`, `membership`, `holds_session`, and methods whose
    docstrings say so may be called from any thread. Callbacks may call `commit`, `commit_async`, `committed`,
    `position`, `seek`, `pause`, `resume` and `assignment`, but never `poll`, `unsubscribe` or `close`. After a
    `FatalConsumerError`, every call except `close` raises the same error.
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

    def __enter__(self) -> "Consumer":
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
        """Join the group in the background, and read these topics; replaces an earlier subscription. Returns
        immediately.

        A compiled pattern must match whole topic names. It selects current and future topics, but neither the brokers'
        internal topics (`__…`) nor topics that Consumer Fleet creates (`_fleet.…`).

        - `on_revoked` gets partitions that this member owns until the callback returns, so the callback can commit.
        - `on_lost` gets partitions that other members may already own. If `on_lost` is None, `on_revoked` is called
          instead.
        - `on_assigned` gets new partitions before their first record is returned, so the callback can seek.

        In a cooperative group, callbacks get only the partitions that change; `on_assigned` also runs, without
        partitions, if none were added.
        Raises ValueError for topics without a name, SettingsRefused (a ValueError) for settings that librdkafka does
        not accept, SubscriptionConflict after `assign`, GroupIdMissing.
        """
        callbacks = {
            CallBackKind.ASSIGNED: on_assigned,
            CallBackKind.REVOKED: on_revoked,
            CallBackKind.LOST: on_lost or on_revoked,
        }
        self._subscription.subscribe(topics, callbacks)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without joining a group; replaces an earlier assignment.

        Partitions in both assignments keep their positions. New partitions start at the group's committed offset if
        `group_id` is set, otherwise by the reset policy. No callbacks run. An empty `partitions` is the same as
        `unsubscribe`. Raises SubscriptionConflict after `subscribe`, and SettingsRefused like `subscribe`.
        """
        self._subscription.assign(partitions)

    def unsubscribe(self) -> None:
        """Give up all partitions and leave the group; `subscribe` joins again.

        A static member sends no LeaveGroup, so it remains in the group until its session times out. Calls `on_revoked`
        or `on_lost` as `close` does, and raises the callback's exception at the end.
        """
        self._subscription.unsubscribe()

    def enforce_rebalance(self, reason: str = "") -> None:
        """Make the group rebalance during the next polls, for example because an assignor's user data changed. The
        broker logs `reason`. Raises NotSubscribed."""
        self._subscription.enforce_rebalance(reason)

    def poll(self, timeout_s: float, *, max_records: int | None = None) -> Records:
        """Return at most `max_records` records as soon as any are available, or no records after `timeout_s` seconds.

        `max_records` is `max_poll_records` by default. A caller that is still busy with earlier records passes 0 to
        keep its membership. Unlike a pause, this also keeps all prefetched records.

        Runs the callbacks that are due. Moves positions past the returned records; commits only if
        `auto_commit_interval_ms` is set. Must be called again within `max_poll_interval_ms`. Returns early, without
        records, after `wakeup`, or if it only moved positions past offsets without records (`Records.gaps`). Raises the
        errors of the background threads (FatalConsumerError, AssignorFailed, NoOffsetForPartition, OffsetLookupFailed,
        TopicAuthorizationFailed) and the exceptions of callbacks and signal handlers. After an exception, the next poll
        returns the records of the failed poll.
        """
        guard, engine = self._guard, self._engine
        # `with` is not used: a signal handler may raise an exception between two steps of a context manager, which is
        # then never exited. Python runs no signal handler between the end of a `finally` and a return, or between two
        # plain assignments.
        guard.enter(nested=False)
        try:
            guard.check_usable(inside=False)
            positions = engine.started()
            self._subscription.check()
            limit = engine.settings.max_poll_records if max_records is None else max_records
            deadline = engine.clock.monotonic() + timeout_s
            while True:
                engine.group.polled_at = now = engine.clock.monotonic()
                # Cleared first, so that a later change sets the signal again and ends the wait.
                engine.signal.clear()
                self._handle_changes()
                engine.take_starts(positions)
                self._commits.auto_commit()
                # After the session has expired, no records are returned, because other members may read them, too.
                records = positions.take_records(limit) if engine.holds_session() else Records([])
                self._ends.refresh(positions.owned, now)
                self._rates.update(now)
                if limit:
                    self._silent.ask(now)
                woken = self._woken
                if woken:
                    self._woken = False
                if records or records.gaps or woken or now >= deadline:
                    break
                left = min(deadline - now, LOOKUP_WAIT_S)
                if limit and engine.holds_session():
                    positions.wait(left, engine.signal)
                else:
                    engine.signal.wait(left)
        finally:
            guard.thread = None
            guard.lock.release()
        positions.unsettled = False
        return records

    def _handle_changes(self) -> None:
        """Handle all changes that the coordinator thread has queued, then raise the first exception, as in Java."""
        first: Exception | None = None
        queue = self._engine.group.changes
        while queue:
            change = queue.popleft()
            try:
                if isinstance(change, CallBack):
                    self._subscription.call_back(change)
                elif isinstance(change, FinishCommit):
                    self._commits.finish(change)
                else:
                    self._engine.fail(change.error)
            except Exception as error:
                first = first or error
        if first is not None:
            raise first

    def membership(self) -> Membership:
        """Return the current membership. May be called from any thread."""
        return self._engine.membership()

    def holds_session(self) -> bool:
        """True while no other member can own this member's partitions: the last successful heartbeat is younger than
        the session timeout, and no rebalance has gone on for longer than the rebalance timeout.

        Always True after `assign`, because no rebalance takes away such partitions. Cheap enough to call for every
        record. May be called from any thread.
        """
        return self._engine.holds_session()

    def group_metadata(self) -> bytes:
        """Return the group metadata (member and generation) for `send_offsets_to_transaction` of confluent-kafka's
        `Producer`.

        Call this method for each transaction, because the result is valid only until the next rebalance. Raises
        CommitFailed while this consumer is not a member (Java then returns metadata that no broker checks),
        GroupMetadataUnknown if the linked librdkafka uses another format.
        """
        return self._commits.group_metadata()

    def wakeup(self) -> None:
        """Make the current `poll`, or the next `poll` if none is running, return immediately. Any thread or signal
        handler may call this."""
        self._woken = True
        self._engine.signal.set()

    def close(self, timeout_s: float = 30.0, leave: str = "default") -> None:
        """Give up all partitions, leave the group or remain a member (`leave`), then stop all threads. Idempotent.

        `leave` (KIP-1092): with "leave", even a static member sends LeaveGroup. With "remain", no LeaveGroup is sent,
        and the session times out. With "default", a dynamic member leaves and a static member remains.

        Calls `on_revoked` first, or `on_lost` if the session has expired. Commits only if `auto_commit_interval_ms` is
        set. A callback's exception is raised after everything is closed. Takes at most about `timeout_s` seconds.
        """
        if leave not in LEAVE_WORDS:
            raise ValueError(f"leave is {leave!r}; use one of {', '.join(LEAVE_WORDS)}")
        if self._guard.forked:
            return  # A forked process has nothing to close, and must not affect the parent's consumer.
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
                    logger.warning("group %s: threads have not ended within %g s", settings.title, timeout_s)
                self._commits.take_results()

    # Commits.

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Commit and wait for the result. Temporary failures are retried for at most `timeout_s` seconds.

        If `offsets` is None, the positions of all owned partitions are committed, so all records returned by polls
        count as done. After `assign`, the broker accepts commits only while the group has no members.

        Raises CommitFailed (other members may own the partitions; do not retry), RebalanceInProgress,
        RetriableCommitFailed (the time is up, and it is unknown whether the offsets were stored), CommitRefused,
        TopicDeleted (the topic was deleted; a new topic with the same name does not get these offsets),
        TopicAuthorizationFailed, GroupIdMissing, FatalConsumerError.
        """
        self._commits.commit(offsets, timeout_s)

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None, callback: CommitCallback | None = None
    ) -> None:
        """Commit without waiting or retrying; `offsets` as in `commit`. `callback(offsets, error or None)` runs inside
        a later `poll`, `commit` or `close`."""
        self._commits.commit_async(offsets, callback)

    # Positions.

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the owned partitions: those that were assigned and have not been revoked or lost since."""
        return self._engine.owned

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next record that `poll` may return, or None while this offset is being looked up.
        Raises NotAssigned.

        Commit the position even before the first record: otherwise, under `latest`, the next owner would start at a
        later end offset and skip records.
        """
        with self._guard.entered():
            return self._engine.started().position(partition)

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the end offset minus the position, or None while either is unknown.

        Never blocks. The first call looks up the end offset in the background, and polls then keep it fresh
        (`EndOffsets`). Under `read_committed`, the end offset is the last stable offset. Raises NotAssigned.
        """
        with self._guard.entered():
            positions = self._engine.started()
            position = positions.position(partition)
            end = self._ends.end_of(partition, positions.owned, self._engine.clock.monotonic())
            return None if position is None or end is None else max(0, end - position)

    def look_up_ends(self, partitions: Iterable[TopicPartition]) -> Ticket[dict[TopicPartition, int]]:
        """Start one lookup of end offsets, without blocking. Any thread may call this, even while the polling thread is
        busy. The result has no entry for partitions whose leaders did not answer."""
        return self._ends.look_up(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue reading at `offset`, and drop prefetched records. Raises NotAssigned."""
        with self._guard.entered():
            if offset < 0:
                raise ValueError(f"offset {offset} is negative")
            self._engine.started().seek(partition, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue at the first existing offset of these partitions (empty: all owned partitions). Raises NotAssigned.

        The offset is looked up in the background. Until it is known, `position` is None and no records are returned.
        """
        self._seek_to_edge(partitions, ResetPolicy.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue at the end of these partitions (empty: all owned partitions). Raises NotAssigned.

        Under `read_committed`, the end is the last stable offset. The lookup is as in `seek_to_beginning`.
        """
        self._seek_to_edge(partitions, ResetPolicy.LATEST)

    def _seek_to_edge(self, partitions: Iterable[TopicPartition], edge: ResetPolicy) -> None:
        with self._guard.entered():
            positions = self._engine.started()
            wanted = tuple(partitions) or tuple(sorted(positions.owned))
            if wanted:
                positions.seek_to_edge(wanted, edge)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume` is called or they are revoked or lost. Raises
        NotAssigned."""
        with self._guard.entered():
            self._engine.started().pause(tuple(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End the pause of these partitions. Raises NotAssigned."""
        with self._guard.entered():
            self._engine.started().resume(tuple(partitions))

    def paused(self) -> frozenset[TopicPartition]:
        positions = self._engine.positions
        return frozenset() if positions is None else positions.paused

    def out_of_range(self) -> OutOfRangeReport:
        """Return a report of all OFFSET_OUT_OF_RANGE errors and skipped offsets so far."""
        positions = self._engine.positions
        return OutOfRangeReport() if positions is None else positions.out_of_range

    def unreadable(self) -> dict[TopicPartition, PartitionError]:
        """Return the partitions stopped at an unreadable batch, each with its next offset and error. Any thread may
        call this.

        Each of these partitions is retried every second or two; a `seek` to the result of `batch_end` skips the batch.
        """
        fetch = self._engine.fetch
        return {} if fetch is None else fetch.unreadable

    def truncations(self) -> TruncationReport:
        """Return a report of all truncations so far. A truncated log has lost records that this consumer had read."""
        positions = self._engine.positions
        return TruncationReport() if positions is None else positions.truncations
