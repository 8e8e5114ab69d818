"""The heartbeat thread: it owns the network client and the group machine, and runs them against the clock.

The user's thread never touches either. It puts commands into one queue and finds news in another; a few values that
it reads all the time (the picture, the fence) are published as single attributes that only this thread writes.
"""

from __future__ import annotations

import logging
import random
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_consumer.assignors import Assignor
from fleet_consumer.clock import Clock
from fleet_consumer.coordinator.directory import Directory
from fleet_consumer.coordinator.flows import Ask, Flow, FlowRunner, Ticket, Where
from fleet_consumer.coordinator.offsets import Start, Starts, fetch_committed, find_starts, list_offsets
from fleet_consumer.coordinator.rebalance_log import log_rebalance
from fleet_consumer.coordinator.reset_policy import ResetPolicy
from fleet_consumer.group import errors
from fleet_consumer.group.classic import ClassicMembership
from fleet_consumer.group.membership import Membership, OffsetAndMetadata
from fleet_consumer.group.messages import (
    Action,
    Answered,
    CallBack,
    CalledBack,
    CloseRequested,
    Commit,
    CommitRequested,
    CoordinatorDoubted,
    CoordinatorWanted,
    Event,
    FinishCommit,
    PlanFailed,
    Planned,
    RebalanceRequested,
    Report,
    RunAssignor,
    Send,
    Subscribed,
    Tick,
    Unanswered,
    Unsubscribed,
)
from fleet_consumer.group.planning import plan
from fleet_consumer.group.settings import GroupSettings
from fleet_consumer.group.timing import NEVER
from fleet_consumer.net import (
    AuthenticationFailed,
    BrokerAddress,
    Call,
    ConnectionSettings,
    NetError,
    NetworkClient,
    TlsFailed,
)
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.metadata import MetadataResponse

logger = logging.getLogger(__name__)

DIRECTORY_LANE = "directory"
"""Questions that any broker can answer have a connection of their own: a slow one must not delay heartbeats."""
DIRECTORY_TIMEOUT_S = 10.0
"""After this the next broker is asked."""
IDLE_S = 1.0
"""The longest sleep: the loop looks at time at least this often."""
CLOSE_GRACE_S = 1.0
"""How much of the time for closing is kept for LeaveGroup, when commits take long."""

News = CallBack | Report | FinishCommit


@dataclass(frozen=True, slots=True)
class _Begin:
    """Run a flow for somebody."""

    flow: Flow[Any]
    ticket: Ticket[Any]


@dataclass(frozen=True, slots=True)
class _Close:
    """Close until `deadline`; `leave`: tell the coordinator."""

    leave: bool
    deadline: float


class CoordinatorThread:
    """One membership, kept alive. `on_news` is called, on this thread, when `news` grew or a ticket ended.

    Constructing starts nothing. `start`, then everything else; `close` and `join` at the end. One thread may call
    these methods; `picture`, `fence_deadline` and `polled_at` may be read by any.
    """

    def __init__(
        self,
        connection: ConnectionSettings,
        settings: GroupSettings,
        assignors: tuple[Assignor, ...],
        *,
        clock: Clock,
        on_news: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_news = on_news
        # The two queues: the user's thread appends to one, this thread to the other; the other side pops.
        self._inbox: deque[Event | _Begin | _Close] = deque()
        self.news: deque[News] = deque()
        # Written by the user's thread alone, read here: when it was last seen in poll.
        self.polled_at = clock.monotonic()
        # Written here alone, read by anybody.
        self.picture = Membership(group_id=settings.group_id, instance_id=settings.instance_id)
        self.fence_deadline = NEVER
        # This thread's own.
        self._client = NetworkClient(connection, clock)
        self._directory = Directory(connection.bootstrap_addresses)
        chance = random.Random()
        self._machine = ClassicMembership(settings, assignors, lambda: chance.uniform(0.8, 1.2))
        self._flows = FlowRunner(self._send_ask, self._doubt_coordinator)
        self._calls: list[tuple[Call[Any], Callable[[Any], None]]] = []
        self._closing: _Close | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"coordinator-{settings.group_id}", daemon=True)

    # The user's side.

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._thread.ident is not None

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def subscribe(self, topics: Iterable[str], pattern: re.Pattern[str] | None = None) -> None:
        """Be a member that wants these topics, or with `pattern` whatever matches it."""
        self._tell(Subscribed(tuple(topics), pattern))

    def unsubscribe(self) -> None:
        """Be no member any more."""
        self._tell(Unsubscribed())

    def enforce_rebalance(self, reason: str) -> None:
        """Join again."""
        self._tell(RebalanceRequested(reason))

    def called_back(self, callback: CallBack) -> None:
        """The user's callback has run."""
        self._tell(CalledBack(callback))

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float | None) -> Ticket[None]:
        """Commit; retried until `deadline` (monotonic) or, with None, not at all. A FinishCommit follows in `news`."""
        ticket: Ticket[None] = Ticket()
        self._tell(CommitRequested(Commit(dict(offsets), deadline, ticket)))
        return ticket

    def committed(
        self, partitions: Iterable[TopicPartition] | None
    ) -> Ticket[dict[TopicPartition, OffsetAndMetadata | None]]:
        """Ask for the group's committed offsets, with None for all of them."""
        ticket: Ticket[dict[TopicPartition, OffsetAndMetadata | None]] = Ticket()
        wanted = None if partitions is None else tuple(partitions)
        self._tell(CoordinatorWanted())
        self._tell(_Begin(fetch_committed(self._settings.group_id, wanted), ticket))
        return ticket

    def find_starts(
        self,
        partitions: tuple[TopicPartition, ...],
        *,
        appeared: frozenset[TopicPartition],
        policy: ResetPolicy,
        read_committed: bool,
        use_committed: bool = True,
        delay_s: float = 0.0,
    ) -> Ticket[Starts]:
        """Ask where partitions begin (`offsets.find_starts`)."""
        ticket: Ticket[Starts] = Ticket()
        flow = find_starts(
            self._settings.group_id,
            partitions,
            appeared=appeared,
            policy=policy,
            read_committed=read_committed,
            use_committed=use_committed,
            delay_s=delay_s,
            now_ms=round(self._clock.wall() * 1000),
        )
        self._tell(_Begin(flow, ticket))
        return ticket

    def list_offsets(
        self, times: Mapping[TopicPartition, int], *, read_committed: bool
    ) -> Ticket[dict[TopicPartition, Start]]:
        """Ask the partitions' leaders for offsets by time (`offsets.list_offsets`)."""
        ticket: Ticket[dict[TopicPartition, Start]] = Ticket()
        self._tell(_Begin(list_offsets(times, read_committed=read_committed), ticket))
        return ticket

    def nudge(self) -> None:
        """Look at time and `polled_at` now."""
        self._client.wakeup()

    def close(self, *, leave: bool, timeout_s: float) -> bool:
        """Finish commits, leave if so wished, end the thread; whether it ended within about `timeout_s`."""
        if self._thread.ident is None:
            self._client.close()
            return True
        self._tell(_Close(leave, self._clock.monotonic() + timeout_s))
        self._thread.join(timeout_s + CLOSE_GRACE_S)
        return not self._thread.is_alive()

    def _tell(self, what: Event | _Begin | _Close) -> None:
        self._inbox.append(what)
        self._client.wakeup()
        if self._ended:
            # The flag went up before the thread's last look at the inbox: what that did not see, this does.
            self._refuse_inbox()

    # The thread.

    def _run(self) -> None:
        try:
            while True:
                now = self._clock.monotonic()
                self._take_inbox(now)
                if self._finished(now):
                    break
                self._feed(Tick(self.polled_at), now)
                self._flows.advance(now)
                due = min(self._machine.next_deadline(now), self._flows.next_deadline(now), now + IDLE_S)
                self._client.poll(max(0.0, due - self._clock.monotonic()))
                self._take_answers()
        except Exception as bug:
            logger.exception("the coordinator thread ended")
            self._end(errors.InternalFailure(f"group {self._settings.group_id!r}: {type(bug).__name__}: {bug}"))
        else:
            self._end(None)

    def _end(self, failure: Exception | None) -> None:
        self.fence_deadline = NEVER
        if failure is not None:
            self._tell_user(Report(failure))
        self._flows.abandon(failure or errors.ConsumerClosed("the consumer was closed"))
        self._client.close()
        self._ended = True
        self._refuse_inbox()
        self._on_news()

    def _refuse_inbox(self) -> None:
        closed = errors.ConsumerClosed("the consumer was closed")
        while self._inbox:
            left = self._inbox.popleft()
            if isinstance(left, _Begin):
                left.ticket.end(None, closed)
            elif isinstance(left, CommitRequested):
                self._tell_user(FinishCommit(left.commit, closed))

    def _finished(self, now: float) -> bool:
        """Close in order: commits first, then LeaveGroup, each as long as there is time."""
        if self._closing is None:
            return False
        if self._machine.commits_pending and now < self._closing.deadline - CLOSE_GRACE_S:
            return False
        self._feed(CloseRequested(self._closing.leave), now)
        return self._machine.closed or now >= self._closing.deadline

    def _take_inbox(self, now: float) -> None:
        while self._inbox:
            what = self._inbox.popleft()
            if isinstance(what, _Begin):
                self._flows.start(what.flow, what.ticket, self._on_news, now)
            elif isinstance(what, _Close):
                self._closing = what
            else:
                self._feed(what, now)

    def _take_answers(self) -> None:
        ended = [entry for entry in self._calls if entry[0].done]
        if ended:
            self._calls = [entry for entry in self._calls if not entry[0].done]
        for call, on_answer in ended:
            on_answer(call.error if call.error is not None else call.response)

    def _feed(self, event: Event, now: float) -> None:
        actions = self._machine.handle(event, now)
        # The picture goes out before the news, so that whoever is called back sees the state that belongs to it.
        self.picture = self._machine.picture()
        self.fence_deadline = self._machine.fence_deadline
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        log_rebalance(self._settings.group_id, action)
        if isinstance(action, Send):
            self._send(action)
        elif isinstance(action, RunAssignor):
            threading.Thread(
                target=self._run_assignor, args=(action,), name=f"assignor-{self._settings.group_id}", daemon=True
            ).start()
        else:
            self._tell_user(action)

    def _tell_user(self, news: News) -> None:
        if isinstance(news, FinishCommit):
            news.commit.ticket.end(None, news.error)
        self.news.append(news)
        self._on_news()

    def _run_assignor(self, action: RunAssignor) -> None:
        """On a thread of its own: a plan may take seconds, and heartbeats must go on meanwhile."""
        event: Event
        try:
            assignments = plan(action.assignor, action.cluster, action.subscriptions, cooperative=action.cooperative)
            event = Planned(action.attempt, assignments)
        except Exception as cause:
            logger.exception("assignor %s failed", action.assignor.name)
            failure = errors.AssignorFailed(f"assignor {action.assignor.name!r}: {type(cause).__name__}: {cause}")
            event = PlanFailed(action.attempt, cause if isinstance(cause, errors.AssignorFailed) else failure)
        self._inbox.append(event)
        self._client.wakeup()

    # Requests.

    def _send(self, action: Send) -> None:
        context = action.context

        def on_answer(answer: Any) -> None:
            now = self._clock.monotonic()
            if isinstance(answer, NetError):
                self._feed(Unanswered(context, answer, isinstance(answer, (AuthenticationFailed, TlsFailed))), now)
            else:
                self._feed(Answered(context, answer), now)

        if action.address is None:
            self._ask_anyone(action.request, on_answer)
        else:
            address = BrokerAddress(*action.address)
            call = self._client.send(address, action.request, lane=action.lane.value, timeout_s=action.timeout_s)
            self._calls.append((call, on_answer))

    def _send_ask(self, ask: Ask, on_answer: Callable[[Any], None]) -> bool:
        if ask.where is Where.ANY:
            self._ask_anyone(ask.request, on_answer)
            return True
        address: BrokerAddress | None
        if ask.where is Where.COORDINATOR:
            coordinator = self._machine.coordinator
            address = BrokerAddress(*coordinator) if coordinator is not None else None
        else:
            address = self._directory.broker(int(ask.where))
        if address is None:
            return False
        self._calls.append((self._client.send(address, ask.request), on_answer))
        return True

    def _ask_anyone(self, request: Any, on_answer: Callable[[Any], None]) -> None:
        address = self._directory.anyone()
        call = self._client.send(address, request, lane=DIRECTORY_LANE, timeout_s=DIRECTORY_TIMEOUT_S)

        def on_done(answer: Any) -> None:
            if isinstance(answer, NetError):
                self._directory.failed(address)
            elif isinstance(answer, MetadataResponse):
                self._directory.learn(answer)
            on_answer(answer)

        self._calls.append((call, on_done))

    def _doubt_coordinator(self) -> None:
        if self._machine.coordinator is not None:
            self._feed(CoordinatorDoubted(self._machine.coordinator), self._clock.monotonic())
