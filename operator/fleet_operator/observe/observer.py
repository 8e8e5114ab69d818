"""The thread that watches one Kafka cluster and carries out actions there.

It owns its `NetworkClient`; nobody else touches that. The event loop hands in interests and actions and wakes the
thread up; observations leave through `publish`, which the thread calls and which must be safe to call from it.
"""

from __future__ import annotations

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
from fleet_operator.observe.interests import GroupInterest, ObserverSettings
from fleet_operator.observe.observer_memory import GroupPart, ObserverMemory, pause_s
from fleet_operator.observe.poll import Poll
from fleet_operator.observe.state_poll import STATE_POLL_REST_FACTOR, STATE_POLL_SECONDS, StatePoll
from fleet_operator.planning.observation import ClusterObservation

log = logging.getLogger(__name__)

T = TypeVar("T")

REST_FACTOR: Final = 9.0
"""Least pause after a poll, as a multiple of the CPU time that it took."""
ACTIONS_SECONDS_MAX: Final = 1.0
"""Longest time for which actions may delay a due poll: a thousand new groups want their topics at once."""
REFUSED_SECONDS: Final = 30.0
"""The interval while the cluster refuses our credentials: repeating them quickly locks accounts and fills its logs."""
FAILED_PART_FACTOR: Final = 5.0
"""Pause of a part that alone cannot be polled, as a multiple of what its poll took: the others wait meanwhile."""
REFUSALS: Final = frozenset({"AuthenticationFailed", "TlsFailed"})
"""Reasons of a cluster that answers, and will not have us."""
DOUBT_PAUSE_SECONDS: Final = 5.0
"""The longest pause between polls while it is not decided whether the cluster answers."""


class ObserverStoppedError(Exception):
    """The observer was stopped before it came to an action."""


def failure(error: NetError, last: ClusterObservation | None, now: float, *, proven: bool = True) -> ClusterObservation:
    """The observation after a poll that failed altogether: the last good values, not reachable, and why.

    `proven` says that polls have failed for long enough. An answer that refuses us needs no second one, unless other
    brokers gave none: they may be restarting, as all of them do when their certificates are renewed.
    """
    base = last or ClusterObservation(observed_at=now, reachable=False)
    message = str(error)
    if isinstance(error, AllBrokersUnreachable):
        message = f"no broker answers: {listed(error.failures)}"
    # The classes and not their finer reasons: people read those in the message, and conditions keep to few words.
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
        doubtful=not proven and not refused_by_all and base.last_good_at is not None,
        reachable_since=None,
    )


def pause_of_failure(seen: ClusterObservation, interval: float, cpu_s: float) -> float:
    """Seconds until a cluster is asked again that did not answer, or not well, after so much processor time."""
    if seen.doubtful:
        pause = min(interval, DOUBT_PAUSE_SECONDS)
    else:
        pause = max(interval, REFUSED_SECONDS) if seen.reason in REFUSALS else interval
    # Whoever owns the brokers chooses what they answer: large answers with an error at their end cost as much.
    return max(pause, REST_FACTOR * cpu_s)


class Observer:
    """One cluster's thread. `start` and `stop` once each, on the event loop; `submit` and `watch` in between."""

    def __init__(
        self,
        name: str,
        settings: ObserverSettings,
        clock: Clock,
        publish: Callable[[Observed], None],
        last: ClusterObservation | None = None,
    ) -> None:
        """`last` is the observation to begin with, of the same brokers."""
        self.settings = settings
        self._name = name
        self._clock = clock
        self._publish = publish
        self._last = last
        self.latest: ClusterObservation | None = None
        """The newest observation, as the event loop knows it; set and read there."""
        self._stopping = threading.Event()
        # The event loop puts, the thread takes.
        self._actions: queue.SimpleQueue[tuple[Callable[[NetworkClient], Any], Future[Any]]] = queue.SimpleQueue()
        self._wishes: queue.SimpleQueue[Mapping[str, GroupInterest | None]] = queue.SimpleQueue()
        self._changed_topics: queue.SimpleQueue[frozenset[str]] = queue.SimpleQueue()
        self._rests_until = float("-inf")
        """The time until which no wish has anything polled; set by the thread before it rests."""
        # Set by the thread before it can block, read by `_wake`.
        self._client: NetworkClient | None = None
        self._thread = threading.Thread(target=self._run, name=f"observer-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; returns at once. Actions it has not come to end with ObserverStoppedError."""
        self._stopping.set()
        self._wake()

    @property
    def alive(self) -> bool:
        """True while the thread runs; one that died of a bug is replaced at the next reconcile of its cluster."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; False when it has not. Blocks."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def watch(self, changes: Mapping[str, GroupInterest | None]) -> None:
        """Change what is observed, by group id, None for nothing; what is new is polled next.

        A thread that rests is not woken: it comes to it when the rest ends.
        """
        self._wishes.put(changes)
        if self._clock.monotonic() >= self._rests_until:
            self._wake()

    def poll_soon(self, changed_topics: Iterable[str] = ()) -> None:
        """Poll next the groups of topics that were just changed, of which nothing is taken for known any more;
        without topics, all groups."""
        self._changed_topics.put(frozenset(changed_topics))
        self._wake()

    def submit(self, run: Callable[[NetworkClient], T]) -> Future[T]:
        """Have something done on the thread, after the poll that may be under way."""
        outcome: Future[T] = Future()
        self._actions.put((run, outcome))
        if self._stopping.is_set():  # the thread may have refused its last action already
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
        memory = ObserverMemory(begun=self._last, last=self._last)
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
            # A wish that came before this line has woken the client; a later one waits for the end of the rest.
            rest_ends = memory.rest_until if memory.rest_until > now else float("inf")
            client.poll(min(due, states_due, rest_ends) - now)

    def _take_changes(self, memory: ObserverMemory) -> None:
        """Take in what the event loop wants by now."""
        changes = {group: interest for each in _drained(self._wishes) for group, interest in each.items()}
        if changes:
            memory.change(changes)
        for topics in _drained(self._changed_topics):
            memory.doubt_topics(topics)

    def _poll_states(self, client: NetworkClient, memory: ObserverMemory) -> None:
        """Note the groups whose state has changed since the last poll; publish them, if there are any."""
        last = memory.last
        if last is None or not last.reachable or not last.groups:
            return
        seen = StatePoll(client=client, clock=self._clock, last=last, stopping=self._stopping.is_set).take()
        if seen is not None:
            self._publish(memory.merge_states(seen))

    def _poll(self, client: NetworkClient, part: GroupPart, memory: ObserverMemory) -> None:
        """Poll one part of the groups, publish what is new, and set the time of the next poll."""
        began, cpu = self._clock.monotonic(), time.thread_time()
        poll = Poll(
            client=client,
            clock=self._clock,
            interests=dict(part.interests),
            last=memory.last,
            cluster=memory.cluster,
            part=part.memory,
            stopping=self._stopping.is_set,
            survey=began >= memory.survey_at,
            awaits_offsets_topic=self.settings.awaits_offsets_topic,
        )
        try:
            seen = poll.take()
        except NetError as error:
            ended, cpu_s = self._clock.monotonic(), time.thread_time() - cpu
            if memory.parts.fail(part) and memory.last is not None and memory.last.reachable:
                part.due_at = ended + max(self.settings.interval_seconds, FAILED_PART_FACTOR * (ended - began))
                memory.rest_until = ended + REST_FACTOR * cpu_s
                self._publish(memory.fail_part(part, error, self._clock.wall()))
                return
            # The next poll is at another part, if there is one, for this one may be to blame.
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
        """Until there are none, or a poll should be taken again; what is left comes after it."""
        for run, outcome in _drained(
            self._actions, lambda: not self._stopping.is_set() and self._clock.monotonic() < until
        ):
            if outcome.set_running_or_notify_cancel():
                try:
                    outcome.set_result(run(client))
                except Exception as error:  # whatever it is belongs to whoever asked
                    outcome.set_exception(error)

    def _refuse_actions(self) -> None:
        for _, outcome in _drained(self._actions):
            if outcome.set_running_or_notify_cancel():
                outcome.set_exception(ObserverStoppedError(f"the observer of {self._name} was stopped"))


def _drained(items: queue.SimpleQueue[T], wanted: Callable[[], bool] = lambda: True) -> Iterator[T]:
    """The items of a queue until it is empty; none is taken while they are not wanted."""
    while wanted():
        try:
            yield items.get_nowait()
        except queue.Empty:
            return
