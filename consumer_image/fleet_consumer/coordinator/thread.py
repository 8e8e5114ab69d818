"""The coordinator thread: owns the network client and the group machine, and runs them against the clock.

The user's thread touches neither. It appends commands to one queue and takes news from another; a few values that it
reads all the time (the snapshot, the fence) are published as attributes that only this thread writes.
"""

from __future__ import annotations

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
    """One member of one group as a state machine without I/O: events with their time go in, actions come out.

    Calls come from one thread at a time. No user code runs inside `handle`: callbacks and assignors are actions.
    """

    @property
    def closed(self) -> bool:
        """True once closing is complete: nothing is in flight any more."""

    @property
    def fatal(self) -> Exception | None:
        """The error that ended the member, else None."""

    @property
    def commits_pending(self) -> bool:
        """True while a commit is unfinished."""

    @property
    def fence_deadline(self) -> float:
        """End of certain ownership of the partitions; `timing.NEVER` without a membership."""

    @property
    def coordinator(self) -> Address | None:
        """The coordinator's address; None while it is unknown."""

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event; return actions to carry out in order."""

    def next_deadline(self, now: float) -> float:
        """The time after `now` at which a Tick is due."""

    def snapshot(self) -> Membership:
        """The membership as other threads may see it."""


T = TypeVar("T")

logger = logging.getLogger(__name__)

IDLE_S = 1.0
"""The longest sleep of the loop."""
CLOSE_GRACE_S = 1.0
"""Time kept for LeaveGroup while closing, when commits take long."""
LEAVE_GRACE_S = 0.75
"""The shortest wait for LeaveGroup, even with no time left: otherwise the group waits for a session timeout. A
connection that has to be made again needs several turns; `close` waits CLOSE_GRACE_S beyond its time, which is longer.
"""
LOOKUP_GRACE_S = 2.0
"""Time for a member that leaves to find its coordinator. Elections take about as long; a cluster that is away must not
hold up the end of a process."""
LEAVE_TURNS = 3
"""Turns of I/O for a leave, however late it is: one may only take up the wake-up, and a starved thread has no time
for a second."""
NAMED_MAX = 20
"""Partitions that a log line names."""

News = messages.CallBack | messages.MembershipReport | messages.FinishCommit


@dataclass(frozen=True, slots=True)
class _Begin:
    flow: Flow[Any]
    ticket: Ticket[Any]


@dataclass(frozen=True, slots=True)
class _Close:
    """Close until `deadline`; `leave`: send LeaveGroup."""

    leave: bool
    deadline: float


class CoordinatorThread:
    """One membership, kept alive. `on_news` is called, on this thread, when `news` grew or a ticket ended.

    Constructing starts nothing: `start` comes first, `close` last. One thread may call these methods; `snapshot`,
    `fence_deadline` and `polled_at` may be read by any.
    """

    def __init__(
        self,
        connection: ConnectionSettings,
        settings: GroupSettings,
        machine: GroupMachine,
        *,
        clock: Clock,
        on_news: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_news = on_news
        # The two queues: the user's thread appends to one, this thread to the other; the other side pops.
        self._inbox: deque[messages.Event | _Begin | _Close] = deque()
        self.news: deque[News] = deque()
        # Unfinished commits: the user's thread adds one, the thread that ends one removes it. They outlive the machine.
        self._commits: dict[Ticket[None], messages.Commit] = {}
        # Written by the user's thread alone, read here: the time of its last poll.
        self.polled_at = clock.monotonic()
        # Written here alone, read by any thread.
        self.snapshot = machine.snapshot()
        self.fence_deadline = NEVER
        # This thread's own.
        self._client = NetworkClient(connection, clock)
        self._requests = Requests(self._client, connection.bootstrap_addresses)
        self._machine = machine
        self._assignors = AssignorCalls(settings.group_id, self._post, self._notify_user)
        self._flows = FlowRunner(
            lambda ask, on_answer: self._requests.ask(ask, machine.coordinator, on_answer), self._doubt_coordinator
        )
        self._closing: _Close | None = None
        # While the member leaves: the end of the wait for the LeaveGroup response.
        self._leave_until: float | None = None
        self._leave_turns = 0
        self._ended = False
        self._end_reason: Exception = errors.ConsumerClosed("the consumer was closed")
        self._thread = threading.Thread(target=self._run, name=f"coordinator-{settings.group_id}", daemon=True)

    # The user's side.

    def start(self) -> None:
        self._thread.start()

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    def subscribe(self, topics: Iterable[str], pattern: TopicPattern | None = None) -> None:
        """Be a member with a subscription to these topics, or with `pattern` to all that match."""
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
        """Commit; retried until `deadline` (monotonic) or, with None, not at all. A FinishCommit follows in `news`.

        `alone`: without a membership, for partitions that the user assigned. `ids` are the known ids of the topics
        whose records were read.
        """
        ticket: Ticket[None] = Ticket()
        commit = messages.Commit(dict(offsets), deadline, ticket, alone=alone, ids=dict(ids or {}))
        self._commits[ticket] = commit
        self._post(messages.CommitRequested(commit))
        return ticket

    def committed(
        self, partitions: Iterable[TopicPartition] | None
    ) -> Ticket[dict[TopicPartition, OffsetAndMetadata | None]]:
        """Read the group's committed offsets, with None all of them."""
        wanted = None if partitions is None else tuple(partitions)
        self._post(messages.CoordinatorWanted())
        return self.begin(requests.fetch_committed(self._settings.group_id, wanted))

    def find_starts(self, query: StartQuery) -> Ticket[Starts]:
        """Find where partitions begin (`starts.find_starts`)."""
        if query.use_committed:
            # A consumer that assigned its partitions itself has no coordinator so far.
            self._post(messages.CoordinatorWanted())
        return self.begin(find_starts(self._settings.group_id, query, now_ms=round(self._clock.wall() * 1000)))

    def see_logs(self, known: Mapping[TopicPartition, UUID | None], *, delay_s: float) -> Ticket[LogsSeen]:
        """Read topics' ids and leader epochs after `delay_s` (`lookups.see_logs`)."""
        return self.begin(see_logs(known, delay_s=delay_s))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool
    ) -> Ticket[dict[TopicPartition, int]]:
        """Read the ends of partitions in one attempt (`requests.end_offsets`)."""
        return self.begin(requests.end_offsets(tuple(partitions), read_committed=read_committed))

    def find_silent(
        self, places: Mapping[TopicPartition, int], *, read_committed: bool
    ) -> Ticket[frozenset[TopicPartition]]:
        """Find partitions at which leaders fail without a word (`damage.find_silent`)."""
        return self.begin(find_silent(places, read_committed=read_committed))

    def close(self, *, leave: bool, timeout_s: float) -> bool:
        """Finish commits, leave if so wished, end the thread. False if it did not end within about `timeout_s`."""
        if self._thread.ident is None:
            self._client.close()
            return True
        self._post(_Close(leave, self._clock.monotonic() + timeout_s))
        self._thread.join(timeout_s + CLOSE_GRACE_S)
        return not self._thread.is_alive()

    def begin(self, flow: Flow[T]) -> Ticket[T]:
        ticket: Ticket[T] = Ticket()
        self._post(_Begin(flow, ticket))
        return ticket

    def _post(self, what: messages.Event | _Begin | _Close) -> None:
        self._inbox.append(what)
        self._client.wakeup()
        if self._ended:
            # The flag is set before the thread's last look at the inbox: this ends what that look missed.
            self._refuse_inbox()

    # The thread.

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
                self._leave_turns += self._leave_until is not None
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
        self._on_news()

    def _refuse_inbox(self) -> None:
        """End flows that were not begun, and all unfinished commits.

        The user's thread, an assignor's thread and this one may be here at once: each takes an item or finds none.
        """
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
        """Close in order, commits first, then LeaveGroup, each as long as there is time. True when both are done."""
        if self._closing is None:
            return False
        if self._machine.commits_pending and now < self._closing.deadline - CLOSE_GRACE_S:
            return False
        if self._leave_until is None:
            found = self._machine.coordinator is not None
            until = self._closing.deadline if found else min(self._closing.deadline, now + LOOKUP_GRACE_S)
            self._leave_until = max(until, now + LEAVE_GRACE_S)
            self._feed(messages.CloseRequested(self._closing.leave), now)
        return self._machine.closed or (now >= self._leave_until and self._leave_turns >= LEAVE_TURNS)

    def _take_inbox(self, now: float) -> None:
        while self._inbox:
            what = self._inbox.popleft()
            if isinstance(what, _Begin) and self._machine.fatal is not None:
                what.ticket.end(None, self._machine.fatal)
                self._on_news()
            elif isinstance(what, _Begin):
                self._flows.start(what.flow, what.ticket, self._on_news, now)
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
        # The snapshot goes out before the news, so that a callback sees the state that belongs to it.
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

    def _doubt_coordinator(self) -> None:
        if self._machine.coordinator is not None:
            self._feed(messages.CoordinatorDoubted(self._machine.coordinator), self._clock.monotonic())

    def _notify_user(self, news: News) -> None:
        if isinstance(news, messages.FinishCommit):
            if self._commits.pop(news.commit.ticket, None) is None:
                return  # Another thread ended it at the same moment.
            news.commit.ticket.end(None, news.error)
            if isinstance(news.error, errors.TopicDeleted):
                # The caller may ignore the error, and nothing has to be done: the new topic is read from its beginning.
                logger.warning("%s", news.error)
        self.news.append(news)
        self._on_news()

    def _log_rebalance(self, action: messages.Action) -> None:
        """Log the reason of a join, and the partitions that a rebalance moves. Brokers log less (KIP-800)."""
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
