"""The commits of one consumer, requested and automatic, and their callbacks."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fleet_consumer.clock import Clock
from fleet_consumer.consumer.engine import CallGuard, Engine
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.thread import Change
from fleet_consumer.group import errors
from fleet_consumer.group.commits import commit_parts
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.messages import FinishCommit
from fleet_consumer.librdkafka.producer import group_metadata
from fleet_consumer.record import TopicPartition

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback = Callable[[Offsets, Exception | None], None]


@dataclass(slots=True, eq=False)
class _Request:
    """A commit, split into requests. `parts` has the offsets of each request, keyed by ticket; `open` has the
    unfinished tickets."""

    offsets: Offsets
    callback: CommitCallback | None = None
    parts: dict[Ticket[None], Offsets] = field(default_factory=dict)
    open: set[Ticket[None]] = field(default_factory=set)

    def wait(self, until: float, clock: Clock) -> bool:
        """Wait until all requests have ended. Returns False if they have not ended by `until` (monotonic seconds)."""
        return all(ticket.wait(max(0.0, until - clock.monotonic())) for ticket in self.parts)

    @property
    def error(self) -> Exception | None:
        """The first fatal error or, without fatal errors, the first error. None if all requests succeeded. The error's
        `not_committed` covers all failed requests."""
        failed = [(ticket.error, part) for ticket, part in self.parts.items() if ticket.error is not None]
        if not failed:
            return None
        first = min((error for error, _ in failed), key=lambda error: not isinstance(error, errors.FatalConsumerError))
        if isinstance(first, errors.ConsumerError):
            missing: dict[TopicPartition, errors.Refusal | None] = {}
            for error, part in failed:
                known = error.not_committed if isinstance(error, errors.ConsumerError) else None
                missing |= dict.fromkeys(part) if known is None else known
            first.not_committed = missing
        return first


class Commits:
    """Implements `Consumer.commit` and related methods; see their docstrings."""

    def __init__(self, engine: Engine, guard: CallGuard) -> None:
        self._engine = engine
        self._guard = guard
        self._requests: dict[Ticket[None], _Request] = {}
        self._interval_ms = engine.settings.auto_commit_interval_ms
        self._auto_commit_at = engine.clock.monotonic() + (self._interval_ms or 0) / 1000
        self._auto_commit_in_flight = False

    def commit(self, offsets: Offsets | None, timeout_s: float) -> None:
        with self._guard.entered():
            chosen = self._chosen("commit", offsets)
            if not chosen:
                return
            request = self._request(chosen, timeout_s)
            if not self._ended(request, timeout_s):
                group_id = self._engine.settings.group_id
                raise errors.RetriableCommitFailed(f"group {group_id!r}: commit not confirmed in time; commit again")
            self.take_results()
            if request.error is not None:
                raise request.error

    def commit_async(self, offsets: Offsets | None, callback: CommitCallback | None) -> None:
        with self._guard.entered():
            chosen = self._chosen("commit_async", offsets)
            if chosen:
                self._request(chosen, None, callback)

    def group_metadata(self) -> bytes:
        with self._guard.entered():
            self._engine.check_group("group_metadata")
            self._engine.started()
            member = self._engine.group.snapshot
            if member.generation < 0 or not member.member_id:
                raise errors.CommitFailed(
                    f"group {member.group_id!r}: this consumer is currently not a member; poll until it has partitions"
                )
            return group_metadata(member.group_id, member.generation, member.member_id, member.instance_id)

    def auto_commit(self) -> None:
        """Commit the positions reached by earlier polls, if the auto-commit interval has passed."""
        now = self._engine.clock.monotonic()
        if self._interval_ms is None or now < self._auto_commit_at or self._auto_commit_in_flight:
            return
        self._auto_commit_at = now + self._interval_ms / 1000
        offsets = self._engine.started().committable()
        if offsets:
            self._auto_commit_in_flight = True
            self._request(offsets, None, self._auto_committed)

    def _auto_committed(self, _offsets: Offsets, error: Exception | None) -> None:
        self._auto_commit_in_flight = False
        if error is not None:
            logger.info(
                "group %s: automatic commit failed and will be repeated: %s", self._engine.settings.group_id, error
            )

    def auto_commit_revoked(self, partitions: Iterable[TopicPartition], timeout_s: float) -> None:
        """Commit the positions of revoked partitions and wait for the result. Does nothing without automatic
        commits."""
        if self._interval_ms is None:
            return
        going = frozenset(partitions)
        offsets = {part: entry for part, entry in self._engine.started().committable().items() if part in going}
        if not offsets:
            return
        request = self._request(offsets, timeout_s)
        if not self._ended(request, timeout_s) or request.error is not None:
            logger.warning(
                "group %s: automatic commit of %d revoked partitions failed; their next owner repeats records: %s",
                *(self._engine.settings.group_id, len(offsets), request.error),
            )

    def take_results(self) -> None:
        """Run the callbacks of finished commits, then raise the first exception.

        Rebalance callbacks stay in the queue, even after an exception: the rebalance waits for them, and this commit
        may have been called inside a rebalance callback.
        """
        kept: list[Change] = []
        first: Exception | None = None
        changes = self._engine.group.changes
        try:
            while changes:
                each = changes.popleft()
                if isinstance(each, FinishCommit):
                    try:
                        self.finish(each)
                    except Exception as error:
                        first = first or error
                else:
                    kept.append(each)
        finally:
            changes.extendleft(reversed(kept))
        if first is not None:
            raise first

    def finish(self, change: FinishCommit) -> None:
        request = self._requests.pop(change.commit.ticket, None)
        if request is None:
            return
        request.open.discard(change.commit.ticket)
        if not request.open and request.callback is not None:
            request.callback(request.offsets, request.error)

    def _chosen(self, call: str, offsets: Offsets | None) -> Offsets:
        self._engine.check_group(call)
        return self._engine.started().committable() if offsets is None else offsets

    def _request(self, offsets: Offsets, timeout_s: float | None, callback: CommitCallback | None = None) -> _Request:
        """Start a commit, with retries for `timeout_s` seconds (None: no retries)."""
        engine, request = self._engine, _Request(offsets, callback)
        ids = {} if engine.positions is None else engine.positions.topic_ids(offsets)
        deadline = None if timeout_s is None else engine.clock.monotonic() + timeout_s
        for part in commit_parts(offsets):
            known = {each: ids[each] for each in part if each in ids}
            ticket = engine.group.commit(part, deadline, alone=engine.manual, ids=known)
            request.parts[ticket] = part
        request.open = set(request.parts)
        self._requests |= dict.fromkeys(request.parts, request)
        return request

    def _ended(self, request: _Request, timeout_s: float) -> bool:
        """Wait for the end of the commit, up to one second longer than the timeout, because the coordinator thread may
        be busy."""
        clock = self._engine.clock
        return request.wait(clock.monotonic() + timeout_s + 1.0, clock)
