"""The coordinator thread, which runs the network client and the group machine, and gives the machine the time.

The user's thread uses neither client nor machine. It appends commands to one queue, and takes changes from another.
Values that the user's thread reads often (the snapshot, the fence deadline) are attributes that only the coordinator
thread writes.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from uuid import UUID

from fleet_consumer.clock import Clock
from fleet_consumer.contract.naming import TopicPattern
from fleet_consumer.coordinator import requests
from fleet_consumer.coordinator.assignor_calls import AssignorCalls
from fleet_consumer.coordinator.damage import find_silent
from fleet_consumer.coordinator.flows import Flow, FlowRunner, Ticket
from fleet_consumer.coordinator.lookups import LogsSeen, see_logs
from fleet_consumer.coordinator.requests import Requests
from fleet_consumer.coordinator.starts import StartQuery, Starts, find_starts
from fleet_consumer.group import errors, messages
from fleet_consumer.group.membership import GroupSettings, Membership, OffsetAndMetadata
from fleet_consumer.group.messages import Action, Address, Event
from fleet_consumer.group.timing import NEVER
from fleet_consumer.net import AuthenticationFailed, ConnectionSettings, NetError, NetworkClient, TlsFailed
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.groups import JoinGroupRequest


class GroupMachine(Protocol):
    """One member of one group as a state machine without I/O: gets events with their time, and returns actions. Only
    one thread at a time may call its methods. No user code runs inside `handle`: calls to callbacks and assignors are
    actions."""

    @property
    def closed(self) -> bool:
        """True once closing is complete and nothing is in flight."""

    @property
    def fatal(self) -> Exception | None:
        """The error that ended the member, or None."""

    @property
    def commits_pending(self) -> bool:
        """True while a commit is unfinished."""

    @property
    def fence_deadline(self) -> float:
        """Time until which no other member can own the member's partitions; `timing.NEVER` without a membership."""

    @property
    def coordinator(self) -> Address | None:
        """The coordinator's address, or None while it is unknown."""

    def handle(self, event: Event, now: float) -> list[Action]:
        """Process one event; returns the actions to execute, in order."""

    def next_deadline(self, now: float) -> float:
        """Return the time after `now` at which a Tick is due."""

    def snapshot(self) -> Membership:
        """Return an immutable copy of the membership, for other threads."""


T = TypeVar("T")

logger = logging.getLogger(__name__)

IDLE_S = 1.0
"""Maximum seconds of one wait for I/O; also the maximum interval of Ticks."""
CLOSE_GRACE_S = 1.0
"""Seconds at the end of the timeout of `close` that are reserved for LeaveGroup, even if commits take long. If the
thread has not ended when the timeout has passed, `close` waits for it for the same number of seconds."""
LEAVE_GRACE_S = 0.75
"""Minimum seconds to wait for the LeaveGroup response, even after the timeout of `close`. A new connection needs
several I/O polls, and without LeaveGroup the group would wait for the session timeout."""
LOOKUP_GRACE_S = 2.0
"""Maximum seconds for a leaving member to look up its coordinator: about the duration of a leader election. An
unreachable cluster must not delay the end of a process."""
LEAVE_POLLS = 3
"""Minimum number of I/O polls for a LeaveGroup, even if the time is up. The first poll may only consume the wake-up,
and a thread with little CPU time might have no time for a second poll."""
NAMED_MAX = 20
"""Maximum number of partitions named in a log line."""

Change = messages.CallBack | messages.MembershipReport | messages.FinishCommit


@dataclass(frozen=True, slots=True)
class _Begin:
    flow: Flow[Any]
    ticket: Ticket[Any]


@dataclass(frozen=True, slots=True)
class _Close:
    """The command to close by `deadline` (monotonic seconds); `leave` sends a LeaveGroup."""

    leave: bool
    deadline: float


class CoordinatorThread:
    """Keeps one membership alive. The thread calls `on_change` when it has added to `changes`, and when a ticket has
    ended.

    The constructor does not start the thread: call `start` first and `close` last. Only the user's thread may call the
    methods. Any thread may read `snapshot`, `fence_deadline` and `polled_at`.
    """

    def __init__(
        self,
        connection: ConnectionSettings,
        settings: GroupSettings,
        machine: GroupMachine,
        *,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_change = on_change
        # The user's thread appends to the inbox and pops from `changes`; the coordinator thread does the reverse.
        self._inbox: deque[messages.Event | _Begin | _Close] = deque()
        self.changes: deque[Change] = deque()
        # Unfinished commits, including commits that remain after the end of the machine. The user's thread adds
        # commits; the thread that ends a commit removes it.
        self._commits: dict[Ticket[None], messages.Commit] = {}
        # The time of the last poll; only the user's thread writes it.
        self.polled_at = clock.monotonic()
        # Only the coordinator thread writes the snapshot and the fence deadline; any thread reads them.
        self.snapshot = machine.snapshot()
        self.fence_deadline = NEVER
        # Only the coordinator thread uses the attributes below.
        self._client = NetworkClient(connection, clock)
        self._requests = Requests(self._client, connection.bootstrap_addresses)
        self._machine = machine
        self._assignors = AssignorCalls(settings.group_id, self._post, self._notify_user)
        self._flows = FlowRunner(
            lambda ask, on_answer: self._requests.ask(ask, machine.coordinator, on_answer), self._suspect_coordinator
        )
        self._closing: _Close | None = None
        # Time at which the wait for the LeaveGroup response ends; None unless the member is leaving.
        self._leave_until: float | None = None
        self._leave_polls = 0
        self._ended = False
        self._end_reason: Exception = errors.ConsumerClosed("the consumer was closed")
        self._thread = threading.Thread(target=self._run, name=f"coordinator-{settings.group_id}", daemon=True)

    # Called by the user's thread.

    def start(self) -> None:
        self._thread.start()

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    def subscribe(self, topics: Iterable[str], pattern: TopicPattern | None = None) -> None:
        self._post(messages.Subscribed(tuple(topics), pattern))

    def unsubscribe(self) -> None:
        self._post(messages.Unsubscribed())

    def enforce_rebalance(self, reason: str) -> None:
        self._post(messages.RebalanceRequested(reason))

    def called_back(self, callback: messages.CallBack) -> None:
        self._post(messages.CalledBack(callback))

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: float | None,
        *,
        alone: bool = False,
        ids: Mapping[TopicPartition, UUID] | None = None,
    ) -> Ticket[None]:
        """Commit, with retries until `deadline` (monotonic seconds; None: no retries). A FinishCommit follows in
        `changes`.

        `alone`: commit without a membership, for partitions that the user assigned manually. `ids` are the known ids of
        the topics whose records were read.
        """
        ticket: Ticket[None] = Ticket()
        commit = messages.Commit(dict(offsets), deadline, ticket, alone=alone, ids=dict(ids or {}))
        self._commits[ticket] = commit
        self._post(messages.CommitRequested(commit))
        return ticket

    def committed(
        self, partitions: Iterable[TopicPartition] | None
    ) -> Ticket[dict[TopicPartition, OffsetAndMetadata | None]]:
        wanted = None if partitions is None else tuple(partitions)
        self._post(messages.CoordinatorWanted())
        return self.start_flow(requests.fetch_committed(self._settings.group_id, wanted))

    def find_starts(self, query: StartQuery) -> Ticket[Starts]:
        if query.use_committed:
            # After `assign` the machine has not looked for a coordinator yet.
            self._post(messages.CoordinatorWanted())
        return self.start_flow(find_starts(self._settings.group_id, query, now_ms=round(self._clock.wall() * 1000)))

    def see_logs(self, known: Mapping[TopicPartition, UUID | None], *, delay_s: float) -> Ticket[LogsSeen]:
        return self.start_flow(see_logs(known, delay_s=delay_s))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool
    ) -> Ticket[dict[TopicPartition, int]]:
        return self.start_flow(requests.end_offsets(tuple(partitions), read_committed=read_committed))

    def find_silent(
        self, places: Mapping[TopicPartition, int], *, read_committed: bool
    ) -> Ticket[frozenset[TopicPartition]]:
        return self.start_flow(find_silent(places, read_committed=read_committed))

    def close(self, *, leave: bool, timeout_s: float) -> bool:
        """Finish commits, send LeaveGroup if `leave`, and end the thread. Returns False if the thread has not ended in
        time."""
        if self._thread.ident is None:
            self._client.close()
            return True
        self._post(_Close(leave, self._clock.monotonic() + timeout_s))
        self._thread.join(timeout_s + CLOSE_GRACE_S)
        return not self._thread.is_alive()

    def start_flow(self, flow: Flow[T]) -> Ticket[T]:
        ticket: Ticket[T] = Ticket()
        self._post(_Begin(flow, ticket))
        return ticket

    def _post(self, what: messages.Event | _Begin | _Close) -> None:
        self._inbox.append(what)
        self._client.wakeup()
        if self._ended:
            # The coordinator thread sets `_ended`, then empties the inbox for the last time, possibly before this item
            # was added.
            self._refuse_inbox()

    # On the coordinator thread.

    def _run(self) -> None:
        try:
            while True:
                now = self._clock.monotonic()
                self._take_inbox(now)
                if self._finished(now):
                    break
                self._feed(messages.Tick(self.polled_at), now)
                self._flows.advance(now)
                idle_s = IDLE_S if self._leave_until is None else LEAVE_GRACE_S
                due = min(self._machine.next_deadline(now), self._flows.next_deadline(now), now + idle_s)
                self._client.poll(max(0.0, due - self._clock.monotonic()))
                self._leave_polls += self._leave_until is not None
                self._take_answers()
        except BaseException as bug:  # SystemExit too: assignors may be user code
            logger.exception("the coordinator thread ended")
            self._end(errors.InternalFailure(f"group {self._settings.group_id!r}: {type(bug).__name__}: {bug}"))
        else:
            self._end(None)

    def _end(self, failure: Exception | None) -> None:
        self.fence_deadline = NEVER
        if failure is not None:
            self._notify_user(messages.MembershipReport(failure))
        self._end_reason = failure or errors.ConsumerClosed("the consumer was closed")
        self._flows.abandon(self._end_reason)
        self._client.close()
        self._ended = True
        self._refuse_inbox()
        self._on_change()

    def _refuse_inbox(self) -> None:
        """End the flows that were not started, and all unfinished commits. The user's thread, an assignor's thread and
        the coordinator thread may call this concurrently, because taking an item from the inbox is atomic."""
        while True:
            try:
                left = self._inbox.popleft()
            except IndexError:
                break
            if isinstance(left, _Begin):
                left.ticket.end(None, self._end_reason)
        for commit in list(self._commits.values()):
            self._notify_user(messages.FinishCommit(commit, self._end_reason))

    def _finished(self, now: float) -> bool:
        """If closing was requested: finish commits, then leave the group. Returns True when this is complete or when
        the time is up."""
        if self._closing is None:
            return False
        if self._machine.commits_pending and now < self._closing.deadline - CLOSE_GRACE_S:
            return False
        if self._leave_until is None:
            found = self._machine.coordinator is not None
            until = self._closing.deadline if found else min(self._closing.deadline, now + LOOKUP_GRACE_S)
            self._leave_until = max(until, now + LEAVE_GRACE_S)
            self._feed(messages.CloseRequested(self._closing.leave), now)
        return self._machine.closed or (now >= self._leave_until and self._leave_polls >= LEAVE_POLLS)

    def _take_inbox(self, now: float) -> None:
        while self._inbox:
            what = self._inbox.popleft()
            if isinstance(what, _Begin) and self._machine.fatal is not None:
                what.ticket.end(None, self._machine.fatal)
                self._on_change()
            elif isinstance(what, _Begin):
                self._flows.start(what.flow, what.ticket, self._on_change, now)
            elif isinstance(what, _Close):
                self._closing = what
            else:
                self._feed(what, now)

    def _take_answers(self) -> None:
        for call, on_answer in self._requests.take_ended():
            if isinstance(call.error, (AuthenticationFailed, TlsFailed)) and not self._settings.retry_authentication:
                self._give_up(call.error)
            on_answer(call.error if call.error is not None else call.response)

    def _give_up(self, refusal: NetError) -> None:
        kind = errors.TlsFailed if isinstance(refusal, TlsFailed) else errors.AuthenticationFailed
        fatal = kind(f"group {self._settings.group_id!r}: {refusal}")
        self._feed(messages.LoginRefused(fatal), self._clock.monotonic())
        self._flows.abandon(fatal)

    def _feed(self, event: messages.Event, now: float) -> None:
        actions = self._machine.handle(event, now)
        # The snapshot is published before the changes, so that a callback sees the matching state.
        self.snapshot = self._machine.snapshot()
        self.fence_deadline = self._machine.fence_deadline
        for action in actions:
            self._act(action)

    def _act(self, action: messages.Action) -> None:
        self._log_rebalance(action)
        if isinstance(action, messages.Send):
            self._send(action)
        elif isinstance(action, messages.Disconnect):
            self._requests.disconnect(action.address)
        elif isinstance(action, messages.CallBack | messages.MembershipReport | messages.FinishCommit):
            self._notify_user(action)
        else:
            self._assignors.carry_out(action)

    def _send(self, action: messages.Send) -> None:
        context = action.context

        def on_answer(answer: Any) -> None:
            event: messages.Event = messages.Answered(context, answer)
            if isinstance(answer, NetError):
                event = messages.Unanswered(context, answer, isinstance(answer, (AuthenticationFailed, TlsFailed)))
            self._feed(event, self._clock.monotonic())

        self._requests.send(action, on_answer)

    def _suspect_coordinator(self) -> None:
        if self._machine.coordinator is not None:
            self._feed(messages.CoordinatorSuspected(self._machine.coordinator), self._clock.monotonic())

    def _notify_user(self, change: Change) -> None:
        if isinstance(change, messages.FinishCommit):
            if self._commits.pop(change.commit.ticket, None) is None:
                return  # Another thread has already ended this commit.
            change.commit.ticket.end(None, change.error)
            if isinstance(change.error, errors.TopicDeleted):
                # Logged because callers may ignore this error: the new topic is read from its beginning anyway.
                logger.warning("%s", change.error)
        self.changes.append(change)
        self._on_change()

    def _log_rebalance(self, action: messages.Action) -> None:
        """Log the reason for a join, and the partitions gained or lost. Brokers log only the reason (KIP-800)."""
        group_id = self._settings.group_id
        if isinstance(action, messages.Send) and isinstance(action.request, JoinGroupRequest):
            request = action.request
            logger.info("group %s: joining as %s: %s", group_id, request.member_id or "a new member", request.reason)
        elif isinstance(action, messages.CallBack) and action.partitions:
            named = ", ".join(f"{topic}-{number}" for topic, number in action.partitions[:NAMED_MAX])
            more = len(action.partitions) - NAMED_MAX
            suffix = f" and {more} more" if more > 0 else ""
            logger.info(
                "group %s, generation %d: %s %s%s", group_id, action.generation, action.kind.value, named, suffix
            )
