"""The heartbeat thread: it owns the network client and the group machine, and runs them against the clock.

The user's thread never touches either. It puts commands into one queue and finds news in another; a few values that
it reads all the time (the picture, the fence) are published as single attributes that only this thread writes.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fleet_consumer.assignors import Assignor
from fleet_consumer.clock import Clock
from fleet_consumer.contract.naming import TopicPattern
from fleet_consumer.coordinator.directory import Directory
from fleet_consumer.coordinator.flows import Ask, Flow, FlowRunner, Ticket, Where
from fleet_consumer.coordinator.lookups import Start
from fleet_consumer.coordinator.offsets import fetch_committed, list_offsets
from fleet_consumer.coordinator.rebalance_log import log_rebalance
from fleet_consumer.coordinator.remade import LogsSeen, see_logs
from fleet_consumer.coordinator.reset_policy import ResetPolicy
from fleet_consumer.coordinator.starts import StartRules, Starts, find_starts
from fleet_consumer.coordinator.topics import describe_topics, end_offsets
from fleet_consumer.group import errors
from fleet_consumer.group.classic import ClassicMembership
from fleet_consumer.group.membership import Membership, OffsetAndMetadata
from fleet_consumer.group.messages import (
    Action,
    Answered,
    CallBack,
    CalledBack,
    Channel,
    CloseRequested,
    Commit,
    CommitRequested,
    CoordinatorDoubted,
    CoordinatorWanted,
    Disconnect,
    Event,
    FinishCommit,
    LoginRefused,
    MembershipReport,
    PlanFailed,
    Planned,
    RebalanceRequested,
    RunAssignor,
    Send,
    Subscribed,
    Tick,
    Unanswered,
    Unsubscribed,
)
from fleet_consumer.group.planning import plan
from fleet_consumer.group.settings import GroupSettings
from fleet_consumer.group.sighting import lacks_topics
from fleet_consumer.group.timing import NEVER
from fleet_consumer.group.topics import PartitionInfo
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
LEAVE_GRACE_S = 0.25
"""How long LeaveGroup is waited for at least, also when no time was left for it: others need not wait for a session."""
LEAVE_TURNS = 3
"""Turns of I/O that a leave gets however late it is: one may only take up the wake-up, and a starved thread has no time
for a second."""

News = CallBack | MembershipReport | FinishCommit


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
        # Commits that have not ended: the user's thread adds, whoever ends one takes it out. They outlive the machine.
        self._commits: dict[Ticket[None], Commit] = {}
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
        # From when on the member leaves: until when the answer is waited for.
        self._leave_until: float | None = None
        self._leave_turns = 0
        self._ended = False
        self._end_reason: Exception = errors.ConsumerClosed("the consumer was closed")
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

    def subscribe(self, topics: Iterable[str], pattern: TopicPattern | None = None) -> None:
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

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: float | None,
        *,
        alone: bool = False,
        ids: Mapping[TopicPartition, UUID] | None = None,
    ) -> Ticket[None]:
        """Commit; retried until `deadline` (monotonic) or, with None, not at all. A FinishCommit follows in `news`.

        `alone`: without being a member, for partitions that the user assigned. `ids` are those of the topics whose
        records were read, as far as known.
        """
        ticket: Ticket[None] = Ticket()
        commit = Commit(dict(offsets), deadline, ticket, alone=alone, ids=dict(ids or {}))
        self._commits[ticket] = commit
        self._tell(CommitRequested(commit))
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
        lost: Mapping[TopicPartition, Start],
        remade: frozenset[TopicPartition] = frozenset(),
        former: Mapping[TopicPartition, UUID] | None = None,
        use_committed: bool = True,
        delay_s: float = 0.0,
    ) -> Ticket[Starts]:
        """Ask where partitions begin (`starts.find_starts`); without `use_committed` by the policy alone."""
        ticket: Ticket[Starts] = Ticket()
        rules = StartRules(policy, read_committed, appeared, round(self._clock.wall() * 1000))
        flow = find_starts(
            self._settings.group_id,
            partitions,
            rules,
            lost=lost,
            remade=remade,
            former=former,
            use_committed=use_committed,
            delay_s=delay_s,
        )
        if use_committed:
            # A consumer that assigned its partitions itself has asked for no coordinator so far.
            self._tell(CoordinatorWanted())
        self._tell(_Begin(flow, ticket))
        return ticket

    def see_logs(self, known: Mapping[TopicPartition, UUID | None], *, delay_s: float) -> Ticket[LogsSeen]:
        """Look at topics' ids and leader epochs after `delay_s` (`remade.see_logs`)."""
        ticket: Ticket[LogsSeen] = Ticket()
        self._tell(_Begin(see_logs(known, delay_s=delay_s), ticket))
        return ticket

    def list_offsets(
        self, times: Mapping[TopicPartition, int], *, read_committed: bool
    ) -> Ticket[dict[TopicPartition, Start]]:
        """Ask the partitions' leaders for offsets by time (`offsets.list_offsets`)."""
        ticket: Ticket[dict[TopicPartition, Start]] = Ticket()
        self._tell(_Begin(list_offsets(times, read_committed=read_committed), ticket))
        return ticket

    def end_offsets(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool
    ) -> Ticket[dict[TopicPartition, int]]:
        """Ask once for the ends of partitions (`topics.end_offsets`)."""
        ticket: Ticket[dict[TopicPartition, int]] = Ticket()
        self._tell(_Begin(end_offsets(tuple(partitions), read_committed=read_committed), ticket))
        return ticket

    def topics(self, names: Iterable[str] | None) -> Ticket[dict[str, tuple[PartitionInfo, ...]]]:
        """Ask for topics and their partitions, with None for all that may be seen (`topics.describe_topics`)."""
        ticket: Ticket[dict[str, tuple[PartitionInfo, ...]]] = Ticket()
        self._tell(_Begin(describe_topics(names), ticket))
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
                idle_s = IDLE_S if self._leave_until is None else LEAVE_GRACE_S
                due = min(self._machine.next_deadline(now), self._flows.next_deadline(now), now + idle_s)
                self._client.poll(max(0.0, due - self._clock.monotonic()))
                self._leave_turns += self._leave_until is not None
                self._take_answers()
        except BaseException as bug:  # SystemExit too: assignors are users' code
            logger.exception("the coordinator thread ended")
            self._end(errors.InternalFailure(f"group {self._settings.group_id!r}: {type(bug).__name__}: {bug}"))
        else:
            self._end(None)

    def _end(self, failure: Exception | None) -> None:
        self.fence_deadline = NEVER
        if failure is not None:
            self._tell_user(MembershipReport(failure))
        self._end_reason = failure or errors.ConsumerClosed("the consumer was closed")
        self._flows.abandon(self._end_reason)
        self._client.close()
        self._ended = True
        self._refuse_inbox()
        self._on_news()

    def _refuse_inbox(self) -> None:
        """End what nobody will work on any more: questions that were not begun, commits wherever they were."""
        while self._inbox:
            left = self._inbox.popleft()
            if isinstance(left, _Begin):
                left.ticket.end(None, self._end_reason)
        for commit in list(self._commits.values()):
            self._tell_user(FinishCommit(commit, self._end_reason))

    def _finished(self, now: float) -> bool:
        """Close in order: commits first, then LeaveGroup, each as long as there is time."""
        if self._closing is None:
            return False
        if self._machine.commits_pending and now < self._closing.deadline - CLOSE_GRACE_S:
            return False
        if self._leave_until is None:
            self._leave_until = max(self._closing.deadline, now + LEAVE_GRACE_S)
            self._feed(CloseRequested(self._closing.leave), now)
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
        ended = [entry for entry in self._calls if entry[0].done]
        if ended:
            self._calls = [entry for entry in self._calls if not entry[0].done]
        for call, on_answer in ended:
            if isinstance(call.error, (AuthenticationFailed, TlsFailed)) and not self._settings.retry_authentication:
                self._give_up(call.error)
            on_answer(call.error if call.error is not None else call.response)

    def _give_up(self, refusal: NetError) -> None:
        kind = errors.TlsFailed if isinstance(refusal, TlsFailed) else errors.AuthenticationFailed
        fatal = kind(f"group {self._settings.group_id!r}: {refusal}")
        self._feed(LoginRefused(fatal), self._clock.monotonic())
        self._flows.abandon(fatal)

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
        elif isinstance(action, Disconnect):
            for channel in Channel:
                self._client.disconnect(BrokerAddress(*action.address), lane=channel.value)
        elif isinstance(action, RunAssignor):
            threading.Thread(
                target=self._run_assignor, args=(action,), name=f"assignor-{self._settings.group_id}", daemon=True
            ).start()
        else:
            self._tell_user(action)

    def _tell_user(self, news: News) -> None:
        if isinstance(news, FinishCommit):
            if self._commits.pop(news.commit.ticket, None) is None:
                return  # Ended by another thread at the same moment.
            news.commit.ticket.end(None, news.error)
            if isinstance(news.error, errors.TopicDeleted):
                # Its asker may not look, and nobody has to act: the new topic is read from its beginning.
                logger.warning("%s", news.error)
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
            call = self._client.send(address, action.request, lane=action.channel.value, timeout_s=action.timeout_s)
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
                if lacks_topics(answer):
                    self._directory.failed(address)
            on_answer(answer)

        self._calls.append((call, on_done))

    def _doubt_coordinator(self) -> None:
        if self._machine.coordinator is not None:
            self._feed(CoordinatorDoubted(self._machine.coordinator), self._clock.monotonic())
