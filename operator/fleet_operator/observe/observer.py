"""The thread that observes one Kafka cluster and runs the operator's actions on the cluster.

Only this thread uses its `NetworkClient`. The event loop passes subscriptions and actions to the thread, and wakes it.
The thread passes observations to `publish`, which must be safe to call from this thread.
"""

import logging
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from fleet_consumer.clock import Clock
from fleet_consumer.net import AllBrokersUnreachable, AuthenticationFailed, NetError, NetworkClient, TlsFailed, listed
from fleet_operator.observe.calls import PollAbandonedError
from fleet_operator.observe.changes import Observed
from fleet_operator.observe.observer_memory import GroupPart, ObserverMemory, pause_s
from fleet_operator.observe.poll import Poll
from fleet_operator.observe.state_poll import STATE_POLL_REST_FACTOR, STATE_POLL_SECONDS, StatePoll
from fleet_operator.observe.subscriptions import GroupSubscription, ObserverSettings
from fleet_operator.planning.observation import ClusterObservation

log = logging.getLogger(__name__)

T = TypeVar("T")

REST_FACTOR: Final = 9.0
"""Shortest pause after a poll, as a multiple of the CPU time of that poll."""
ACTIONS_SECONDS_MAX: Final = 1.0
"""Longest time in seconds for which actions may delay a due poll, for example while topics of a thousand new groups are
created."""
REFUSED_SECONDS: Final = 30.0
"""Shortest interval in seconds between polls while the cluster refuses the operator's credentials, because frequent
attempts lock accounts and fill the brokers' logs."""
FAILED_PART_FACTOR: Final = 5.0
"""Shortest pause after a failed poll of a group part, as a multiple of the poll's duration. It applies while polls of
other parts succeed, and limits the share of time in which failing polls delay the other parts."""
REFUSALS: Final = frozenset({"AuthenticationFailed", "TlsFailed"})
"""Reasons of an unreachable cluster that mean that its brokers refuse the operator's credentials."""
UNCONFIRMED_PAUSE_SECONDS: Final = 5.0
"""Longest pause in seconds between polls during a suspected outage."""


class ObserverStoppedError(Exception):
    """The observer was stopped before it ran an action, or the cluster has no observer."""


def failure(error: NetError, last: ClusterObservation | None, now: float, *, proven: bool = True) -> ClusterObservation:
    """Return the observation after a failed poll of the cluster: the last known values, marked unreachable, with the
    reason.

    `proven`: polls have failed for long enough to confirm the outage. Without `proven`, the observation is marked as
    unconfirmed, because brokers that do not answer may only be restarting. If all brokers refuse the credentials, the
    outage counts as confirmed immediately.
    """
    base = last or ClusterObservation(observed_at=now, reachable=False)
    message = str(error)
    if isinstance(error, AllBrokersUnreachable):
        message = f"no broker answers: {listed(error.failures)}"
    # The reason shows only the kind of error, because the API defines only a few reasons. The message has the details.
    causes = error.failures if isinstance(error, AllBrokersUnreachable) else (error,)
    refusals = [cause for cause in causes if isinstance(cause, AuthenticationFailed | TlsFailed)]
    refused_by_all = bool(refusals) and len(refusals) == len(causes)
    reason = "BrokerUnreachable"
    if refusals:
        of_login = any(isinstance(cause, AuthenticationFailed) for cause in refusals)
        reason = "AuthenticationFailed" if of_login else "TlsFailed"
    return replace(
        base,
        observed_at=now,
        reachable=False,
        reason=reason,
        message=message,
        unconfirmed=not proven and not refused_by_all and base.last_good_at is not None,
        reachable_since=None,
    )


def pause_of_failure(seen: ClusterObservation, interval: float, cpu_s: float) -> float:
    """Seconds until the next poll of a cluster, after a failed poll that took `cpu_s` seconds of CPU time."""
    if seen.unconfirmed:
        pause = min(interval, UNCONFIRMED_PAUSE_SECONDS)
    else:
        pause = max(interval, REFUSED_SECONDS) if seen.reason in REFUSALS else interval
    # Brokers may be hostile: a large response with an error at its end takes as much CPU time as a valid response.
    return max(pause, REST_FACTOR * cpu_s)


class Observer:
    """Controls the thread of one cluster. On the event loop, call `start` once, then `submit` and `watch`, then `stop`
    once."""

    def __init__(
        self,
        name: str,
        settings: ObserverSettings,
        clock: Clock,
        publish: Callable[[Observed], None],
        last: ClusterObservation | None = None,
    ) -> None:
        """`last` is the initial observation. It must have been made with the same bootstrap brokers; None without such
        an observation."""
        self.settings = settings
        self._name = name
        self._clock = clock
        self._publish = publish
        self._last = last
        self.latest: ClusterObservation | None = None
        """The newest observation; set and read on the event loop."""
        self._stopping = threading.Event()
        # The event loop puts items into these queues, and the thread takes them out.
        self._actions: queue.SimpleQueue[tuple[Callable[[NetworkClient], Any], Future[Any]]] = queue.SimpleQueue()
        self._subscription_changes: queue.SimpleQueue[Mapping[str, GroupSubscription | None]] = queue.SimpleQueue()
        self._changed_topics: queue.SimpleQueue[frozenset[str]] = queue.SimpleQueue()
        self._rests_until = float("-inf")
        """End of the current pause (monotonic seconds), until which changed subscriptions cause no poll. The thread
        sets this before it pauses."""
        # The thread sets this before it can block; `_wake` reads it.
        self._client: NetworkClient | None = None
        self._thread = threading.Thread(target=self._run, name=f"observer-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end, without waiting for it. Pending actions fail with ObserverStoppedError."""
        self._stopping.set()
        self._wake()

    @property
    def alive(self) -> bool:
        """True while the thread runs. A crashed thread is replaced at the next reconcile of its cluster."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; returns False if it has not ended in time. Blocks."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def watch(self, changes: Mapping[str, GroupSubscription | None]) -> None:
        """Set the subscriptions in `changes`, which is keyed by group id; None removes a subscription. New groups are
        polled next. If the thread is in the pause after a poll, it reads the changes only when the pause ends."""
        self._subscription_changes.put(changes)
        if self._clock.monotonic() >= self._rests_until:
            self._wake()

    def poll_soon(self, changed_topics: Iterable[str] = ()) -> None:
        """Discard cached facts about these changed topics, and poll the groups of these topics next. Without topics,
        poll all groups next."""
        self._changed_topics.put(frozenset(changed_topics))
        self._wake()

    def submit(self, run: Callable[[NetworkClient], T]) -> Future[T]:
        """Run an action on the thread; returns its future. If a poll is running, the action runs after that poll."""
        outcome: Future[T] = Future()
        self._actions.put((run, outcome))
        if self._stopping.is_set():  # the thread may already have failed the pending actions
            self._refuse_actions()
        self._wake()
        return outcome

    def _wake(self) -> None:
        client = self._client
        if client is not None:
            client.wakeup()

    def _run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="fleet-observer-") as directory:
            client = NetworkClient(self.settings.connection(Path(directory)), self._clock)
            self._client = client
            try:
                self._observe(client)
            except PollAbandonedError:
                pass  # stopped
            except Exception:
                log.exception("observer died", extra={"cluster": self._name})
            finally:
                self._stopping.set()
                client.close()
                self._refuse_actions()

    def _observe(self, client: NetworkClient) -> None:
        memory = ObserverMemory(last=self._last)
        states_due = self._clock.monotonic()
        while not self._stopping.is_set():
            self._take_changes(memory)
            part = memory.parts.due(self._clock.monotonic())
            due = max(part.due_at, memory.rest_until)
            self._carry_out_actions(client, until=max(due, self._clock.monotonic() + ACTIONS_SECONDS_MAX))
            now = self._clock.monotonic()
            if now >= due:
                self._poll(client, part, memory)
                continue
            if now >= states_due:
                self._poll_states(client, memory)
                ended = self._clock.monotonic()
                states_due = ended + max(STATE_POLL_SECONDS, STATE_POLL_REST_FACTOR * (ended - now))
                continue
            self._rests_until = memory.rest_until
            # Changes made before this line have woken the client. Changes made later wait for the end of the pause.
            rest_ends = memory.rest_until if memory.rest_until > now else float("inf")
            client.poll(min(due, states_due, rest_ends) - now)

    def _take_changes(self, memory: ObserverMemory) -> None:
        changes = {
            group: subscription for each in _drained(self._subscription_changes) for group, subscription in each.items()
        }
        if changes:
            memory.change(changes)
        for topics in _drained(self._changed_topics):
            memory.invalidate_topics(topics)

    def _poll_states(self, client: NetworkClient, memory: ObserverMemory) -> None:
        last = memory.last
        if last is None or not last.reachable or not last.groups:
            return
        seen = StatePoll(client=client, clock=self._clock, last=last, stopping=self._stopping.is_set).run()
        if seen is not None:
            self._publish(memory.merge_states(seen))

    def _poll(self, client: NetworkClient, part: GroupPart, memory: ObserverMemory) -> None:
        began, cpu = self._clock.monotonic(), time.thread_time()
        poll = Poll(
            client=client,
            clock=self._clock,
            subscriptions=dict(part.subscriptions),
            last=memory.last,
            cluster=memory.cluster,
            part=part.memory,
            stopping=self._stopping.is_set,
            survey=began >= memory.survey_at,
            awaits_offsets_topic=self.settings.awaits_offsets_topic,
        )
        try:
            seen = poll.run()
        except NetError as error:
            ended, cpu_s = self._clock.monotonic(), time.thread_time() - cpu
            if memory.parts.fail(part) and memory.last is not None and memory.last.reachable:
                part.due_at = ended + max(self.settings.interval_seconds, FAILED_PART_FACTOR * (ended - began))
                memory.rest_until = ended + REST_FACTOR * cpu_s
                self._publish(memory.fail_part(part, error, self._clock.wall()))
                return
            # If there are several group parts, poll a different part next, because this part may be the cause of the
            # failure.
            memory.parts.all_due()
            proven = memory.is_proven(began, ended)
            seen = failure(error, memory.last, self._clock.wall(), proven=proven)
            memory.rest_until = ended + pause_of_failure(seen, self.settings.interval_seconds, cpu_s)
            self._publish(memory.fail(seen, ended - began))
            return
        ended, cpu_s = self._clock.monotonic(), time.thread_time() - cpu
        part.rest(ended, cpu_s)
        memory.rest_until = ended + REST_FACTOR * cpu_s
        self._publish(memory.merge(part, seen, ended - began))
        if poll.survey:
            memory.survey_at = ended + self.settings.interval_seconds
            memory.tidy()
        interval = self.settings.interval_seconds
        part.due_at = ended + pause_s(part, interval, seen, ended, all_cpu_s=memory.parts.cpu_s)

    def _carry_out_actions(self, client: NetworkClient, *, until: float) -> None:
        for run, outcome in _drained(
            self._actions, lambda: not self._stopping.is_set() and self._clock.monotonic() < until
        ):
            if outcome.set_running_or_notify_cancel():
                try:
                    outcome.set_result(run(client))
                except Exception as error:  # the caller of `submit` gets the error
                    outcome.set_exception(error)

    def _refuse_actions(self) -> None:
        for _, outcome in _drained(self._actions):
            if outcome.set_running_or_notify_cancel():
                outcome.set_exception(ObserverStoppedError(f"the observer of {self._name} was stopped"))


def _drained(items: queue.SimpleQueue[T], wanted: Callable[[], bool] = lambda: True) -> Iterator[T]:
    """Yield the items of a queue until the queue is empty or `wanted` returns False."""
    while wanted():
        try:
            yield items.get_nowait()
        except queue.Empty:
            return
