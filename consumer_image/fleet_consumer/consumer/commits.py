"""The commits of one consumer: requested ones, automatic ones, and their callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from fleet_consumer.consumer.call_guard import CallGuard
from fleet_consumer.consumer.engine import Engine
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.messages import FinishCommit
from fleet_consumer.librdkafka.group_metadata import group_metadata
from fleet_consumer.record import TopicPartition

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback = Callable[[Offsets, Exception | None], None]


class Commits:
    """`Consumer.commit` and its relatives; their docstrings are there."""

    def __init__(self, engine: Engine, guard: CallGuard) -> None:
        self._engine = engine
        self._guard = guard
        self._callbacks: dict[Ticket[None], CommitCallback] = {}
        self._interval_ms = engine.settings.auto_commit_interval_ms
        self._auto_commit_at = engine.clock.monotonic() + (self._interval_ms or 0) / 1000
        self._auto_commit_in_flight = False

    def commit(self, offsets: Offsets | None, timeout_s: float) -> None:
        with self._guard.entered():
            chosen = self._chosen("commit", offsets)
            if not chosen:
                return
            ticket = self._request(chosen, timeout_s)
            # The thread ends the ticket at its deadline; the second on top is for a thread that is busy.
            if not ticket.wait(timeout_s + 1.0):
                group_id = self._engine.settings.group_id
                raise errors.RetriableCommitFailed(f"group {group_id!r}: commit not confirmed in time")
            self.take_results()
            if ticket.error is not None:
                raise ticket.error

    def commit_async(self, offsets: Offsets | None, callback: CommitCallback | None) -> None:
        with self._guard.entered():
            chosen = self._chosen("commit_async", offsets)
            if chosen:
                ticket = self._request(chosen, None)
                if callback is not None:
                    self._callbacks[ticket] = callback

    def group_metadata(self) -> bytes:
        with self._guard.entered():
            self._engine.check_group("group_metadata")
            self._engine.started()
            member = self._engine.group.snapshot
            if member.generation < 0 or not member.member_id:
                raise errors.CommitFailed(
                    f"group {member.group_id!r}: this consumer is no member now; poll until it has partitions"
                )
            return group_metadata(member.group_id, member.generation, member.member_id, member.instance_id)

    def auto_commit(self) -> None:
        """Commit the positions when the interval is over: in `poll`, what earlier polls returned counts as done."""
        now = self._engine.clock.monotonic()
        if self._interval_ms is None or now < self._auto_commit_at or self._auto_commit_in_flight:
            return
        self._auto_commit_at = now + self._interval_ms / 1000
        offsets = self._engine.started().committable()
        if offsets:
            self._auto_commit_in_flight = True
            self._callbacks[self._request(offsets, None)] = self._auto_committed

    def _auto_committed(self, _offsets: Offsets, error: Exception | None) -> None:
        self._auto_commit_in_flight = False
        if error is not None:
            logger.info(
                "group %s: automatic commit failed, the next one follows: %s", self._engine.settings.group_id, error
            )

    def auto_commit_revoked(self, partitions: Iterable[TopicPartition], timeout_s: float) -> None:
        """Commit the positions of partitions that are given back, if commits are automatic, and wait."""
        if self._interval_ms is None:
            return
        going = frozenset(partitions)
        offsets = {part: entry for part, entry in self._engine.started().committable().items() if part in going}
        if not offsets:
            return
        ticket = self._request(offsets, timeout_s)
        if not ticket.wait(timeout_s + 1.0) or ticket.error is not None:
            logger.warning(
                "group %s: automatic commit of %d partitions that are given back failed; their next owner repeats "
                "records: %s",
                *(self._engine.settings.group_id, len(offsets), ticket.error),
            )

    def take_results(self) -> None:
        """Run the callbacks of finished commits and no others: a commit in a callback must not run callbacks."""
        kept = []
        news = self._engine.group.news
        while news:
            each = news.popleft()
            if isinstance(each, FinishCommit):
                self.finish(each)
            else:
                kept.append(each)
        news.extendleft(reversed(kept))

    def finish(self, news: FinishCommit) -> None:
        """Run the callback of a commit that has ended."""
        callback = self._callbacks.pop(news.commit.ticket, None)
        if callback is not None:
            callback(news.commit.offsets, news.error)

    def _chosen(self, call: str, offsets: Offsets | None) -> Offsets:
        self._engine.check_group(call)
        return self._engine.started().committable() if offsets is None else offsets

    def _request(self, offsets: Offsets, timeout_s: float | None) -> Ticket[None]:
        """Begin a commit, retried for `timeout_s`, or not at all with None."""
        engine = self._engine
        ids = {} if engine.positions is None else engine.positions.topic_ids(offsets)
        deadline = None if timeout_s is None else engine.clock.monotonic() + timeout_s
        return engine.group.commit(offsets, deadline, alone=engine.manual, ids=ids)
