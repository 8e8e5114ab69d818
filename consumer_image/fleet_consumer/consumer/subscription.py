"""The topics or partitions that a consumer reads, and the calls to the user's rebalance callbacks."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from fleet_consumer.consumer.commits import Commits
from fleet_consumer.consumer.engine import CallGuard, Engine
from fleet_consumer.contract.naming import TopicPattern
from fleet_consumer.group import errors
from fleet_consumer.group.messages import CallBack, CallBackKind
from fleet_consumer.record import TopicPartition

RebalanceCallback = Callable[[Sequence[TopicPartition]], None]


class Subscription:
    """Implements `Consumer.subscribe`, `assign` and `unsubscribe` (see their docstrings), and calls callbacks."""

    def __init__(self, engine: Engine, guard: CallGuard, commits: Commits) -> None:
        self._engine = engine
        self._guard = guard
        self._commits = commits
        self._callbacks: Mapping[CallBackKind, RebalanceCallback | None] = {}
        self._subscribed = False
        # The number of `unsubscribe` calls so far. Callbacks queued before the last such call are ignored.
        self._number = 0

    def subscribe(
        self, topics: Iterable[str] | TopicPattern, callbacks: Mapping[CallBackKind, RebalanceCallback | None]
    ) -> None:
        engine = self._engine
        with self._guard.entered():
            engine.check_group("subscribe")
            if engine.manual:
                raise errors.SubscriptionConflict("this consumer uses assign; unsubscribe first")
            pattern = topics if isinstance(topics, TopicPattern) else None
            names = () if isinstance(topics, TopicPattern) else _checked_names(topics)
            self._callbacks = callbacks
            engine.start()
            engine.group.polled_at = engine.clock.monotonic()
            engine.group.subscribe(names, pattern)
            self._subscribed = True

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = tuple(dict.fromkeys(TopicPartition(*part) for part in partitions))
        if not all(part.topic and part.partition >= 0 for part in wanted):
            raise ValueError(f"partitions must have a topic name and a number of at least 0, got {wanted!r}")
        with self._guard.entered(nested=False):
            if self._subscribed:
                raise errors.SubscriptionConflict("this consumer has subscribed to topics; unsubscribe first")
            if wanted:
                self._engine.start()
            owned = self._engine.owned
            going = tuple(sorted(owned.difference(wanted)))
            if going:
                self._take_away(CallBackKind.REVOKED, going, self._engine.settings.rebalance_timeout_s)
            self._engine.manual = bool(wanted)
            self._callbacks = {}
            if wanted:
                positions = self._engine.started()
                positions.assign([part for part in wanted if part not in owned], frozenset())
                positions.look_up_unknown()

    def unsubscribe(self) -> None:
        if self._engine.manual:
            self.assign(())
            return
        with self._guard.entered(nested=False):
            if not self._subscribed:
                return
            self._subscribed = False
            try:
                self.give_back_all(self._engine.settings.rebalance_timeout_s)
            finally:
                self._number += 1
                self._engine.group.unsubscribe()

    def enforce_rebalance(self, reason: str) -> None:
        with self._guard.entered():
            if not self._subscribed:
                raise errors.NotSubscribed("subscribe first: there is no group to rebalance")
            self._engine.group.enforce_rebalance(reason)

    def check(self) -> None:
        if not self._subscribed and not self._engine.manual:
            raise errors.NotSubscribed("subscribe or assign first")

    def call_back(self, callback: CallBack) -> None:
        if callback.subscription != self._number:
            return  # The callback was queued before `unsubscribe`, which has already run the user's callback.
        # The coordinator thread is notified even if the user's code raises, so that the rebalance continues.
        try:
            if callback.kind is CallBackKind.ASSIGNED:
                self._assign_new(callback)
            else:
                # The membership may have ended while the callback waited for this poll.
                generation = self._engine.group.snapshot.generation
                ours = self._engine.holds_session() and generation == callback.generation
                kind = callback.kind if ours else CallBackKind.LOST
                self._take_away(kind, callback.partitions, self._engine.settings.rebalance_timeout_s)
        finally:
            self._engine.group.called_back(callback)

    def give_back_all(self, timeout_s: float) -> None:
        """Remove all partitions: they count as revoked if the session is valid, otherwise as lost."""
        partitions = tuple(sorted(self._engine.owned))
        if partitions:
            kind = CallBackKind.REVOKED if self._engine.holds_session() else CallBackKind.LOST
            self._take_away(kind, partitions, timeout_s)

    def _assign_new(self, callback: CallBack) -> None:
        positions = self._engine.started()
        positions.assign(callback.partitions, callback.appeared)
        try:
            self._run_user_callback(CallBackKind.ASSIGNED, callback.partitions)
        finally:
            positions.look_up_unknown()

    def _take_away(self, kind: CallBackKind, partitions: Sequence[TopicPartition], timeout_s: float) -> None:
        positions = self._engine.started()
        positions.stop_delivery(partitions)
        try:
            if kind is CallBackKind.REVOKED:
                self._commits.auto_commit_revoked(partitions, timeout_s)
            self._run_user_callback(kind, partitions)
        finally:
            positions.discard_partitions(partitions)

    def _run_user_callback(self, kind: CallBackKind, partitions: Sequence[TopicPartition]) -> None:
        callback = self._callbacks.get(kind)
        if callback is not None:
            callback(partitions)


def _checked_names(topics: Iterable[str]) -> tuple[str, ...]:
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if isinstance(topics, str) or not names or not all(names):
        raise ValueError(f"topics must be a list of non-empty names or a compiled pattern, got {topics!r}")
    return names
