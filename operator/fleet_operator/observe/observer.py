"""The thread that watches one Kafka cluster and carries out actions there.

It owns its `NetworkClient`; nobody else touches that. The event loop hands in interests and actions and wakes the
thread up; observations leave through `publish`, which the thread calls and which must be safe to call from it.
"""

from __future__ import annotations

import logging
import queue
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from fleet_consumer.clock import Clock
from fleet_consumer.net import NetError, NetworkClient
from fleet_operator.observe.flow import FlowMemory
from fleet_operator.observe.glance import GLANCE_REST_FACTOR, GLANCE_SECONDS, Glance, GlanceAbandonedError
from fleet_operator.observe.interests import GroupInterest, ObserverSettings
from fleet_operator.observe.look import REFUSALS, ConfigFacts, Look, LookAbandonedError, failure
from fleet_operator.planning.observation import ClusterObservation, GroupObservation
from fleet_operator.planning.topic_pattern import TopicMatches

log = logging.getLogger(__name__)

T = TypeVar("T")

HURRY_SECONDS: Final = 1.0
"""The interval while a group is between states, so that a rebalance is seen with its steps."""
HURRY_MAX_SECONDS: Final = 120.0
"""Longest time for which one group may shorten the pauses: it may never become Stable."""
REST_FACTOR: Final = 4.0
"""Least pause after a look, as a multiple of its duration, up to the interval."""
ACTIONS_SECONDS_MAX: Final = 1.0
"""Longest time for which actions may delay a due look: a thousand new groups want their topics at once."""
REFUSED_SECONDS: Final = 30.0
"""The interval while the cluster refuses our credentials: repeating them quickly locks accounts and fills its logs."""
DOUBT_LOOKS: Final = 3
DOUBT_SECONDS: Final = 15.0
"""A cluster counts as unreachable when so many looks in a row, or all looks for so long, have failed."""
DOUBT_PAUSE_SECONDS: Final = 5.0
"""The longest pause between looks while that is not decided."""


class ObserverStoppedError(Exception):
    """The observer was stopped before it came to an action."""


@dataclass(frozen=True, slots=True)
class Action(Generic[T]):
    """Something to do with the client, and where its outcome goes."""

    run: Callable[[NetworkClient], T]
    outcome: Future[T]

    def carry_out(self, client: NetworkClient) -> None:
        """Run on the observer's thread; whatever it raises belongs to whoever asked."""
        if self.outcome.set_running_or_notify_cancel():
            try:
                self.outcome.set_result(self.run(client))
            except Exception as error:
                self.outcome.set_exception(error)


class LookSchedule:
    """Pauses between looks. Pure: `now` is monotonic seconds."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval = interval_seconds
        self._unsettled_since: dict[str, float] = {}

    def seconds(
        self, seen: ClusterObservation, interests: Mapping[str, GroupInterest], now: float, *, took: float = 0.0
    ) -> float:
        """The pause after a look that `took` so many seconds: hurry or not, looks must not fill the time."""
        return max(self._wanted(seen, interests, now), min(self._interval, REST_FACTOR * took))

    def _wanted(self, seen: ClusterObservation, interests: Mapping[str, GroupInterest], now: float) -> float:
        if seen.doubtful:
            return min(self._interval, DOUBT_PAUSE_SECONDS)
        if not seen.reachable:
            return max(self._interval, REFUSED_SECONDS) if seen.reason in REFUSALS else self._interval
        unsettled = {
            group_id
            for group_id, interest in interests.items()
            if _unsettled(seen.groups.get(group_id), interest.expects_members)
        }
        self._unsettled_since = {group_id: self._unsettled_since.get(group_id, now) for group_id in unsettled}
        if any(now - since < HURRY_MAX_SECONDS for since in self._unsettled_since.values()):
            return min(self._interval, HURRY_SECONDS)
        return min(self._interval, max(HURRY_SECONDS, _seconds_to_wake(seen)))


class Doubt:
    """Evidence from looks that failed in a row. Pure: times are monotonic seconds."""

    def __init__(self) -> None:
        self._failures = 0
        self._since = 0.0

    def failed(self, began: float, now: float) -> bool:
        """Take in a look that failed; whether that is enough to say that the cluster does not answer."""
        if not self._failures:
            self._since = began
        self._failures += 1
        return self._failures >= DOUBT_LOOKS or now - self._since >= DOUBT_SECONDS

    def succeeded(self) -> None:
        self._failures = 0


def _unsettled(group: GroupObservation | None, expects_members: bool) -> bool:
    """True if a group is between two states."""
    if group is None or group.error is not None:
        return True
    if group.state == "Stable":
        return not expects_members  # it was scaled to nothing and its members have not left yet
    return expects_members or group.state not in ("Empty", "Dead")


def _seconds_to_wake(seen: ClusterObservation) -> float:
    """Until the next record becomes due that nobody is there to handle; workers that are there need no look for it."""
    flows = (group.retry for group in seen.groups.values() if group.retry is not None and not group.retry.members)
    due = (flow.next_due_at for flow in flows if flow.next_due_at is not None)
    return min(due, default=float("inf")) - seen.observed_at


@dataclass(slots=True)
class _Memory:
    """The thread's memory between looks; `last` is the newest observation."""

    last: ClusterObservation | None = None
    configs: ConfigFacts = field(default_factory=ConfigFacts)
    flow: FlowMemory = field(default_factory=FlowMemory)
    matches: TopicMatches = field(default_factory=TopicMatches)
    doubt: Doubt = field(default_factory=Doubt)


class Observer:
    """One cluster's thread. `start` and `stop` once each, on the event loop; `submit` and `watch` in between."""

    def __init__(
        self,
        name: str,
        settings: ObserverSettings,
        clock: Clock,
        publish: Callable[[ClusterObservation, float | None], None],
        last: ClusterObservation | None = None,
    ) -> None:
        """`publish` gets each observation with the seconds that its look took, None for a glance; `last` is the
        observation to begin with, of the same brokers."""
        self.settings = settings
        self._name = name
        self._clock = clock
        self._publish = publish
        self._last = last
        # Written by the event loop, read by the thread: a frozen mapping that is replaced as a whole.
        self._interests: Mapping[str, GroupInterest] = {}
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._actions: queue.SimpleQueue[Action[Any]] = queue.SimpleQueue()
        self._changed_topics: queue.SimpleQueue[str] = queue.SimpleQueue()
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

    def watch(self, interests: Mapping[str, GroupInterest]) -> None:
        """Replace what is observed; the next look follows at once if anything is new."""
        if interests != self._interests:
            self._interests = interests
            self.look()

    def look(self, changed_topics: Iterable[str] = ()) -> None:
        """Have the next look follow at once, and take nothing for known of topics that were just changed."""
        for topic in changed_topics:
            self._changed_topics.put(topic)
        self._changed.set()
        self._wake()

    def submit(self, run: Callable[[NetworkClient], T]) -> Future[T]:
        """Have something done on the thread, after the look that may be under way."""
        outcome: Future[T] = Future()
        self._actions.put(Action(run, outcome))
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
            except Exception:
                log.exception("observer died", extra={"cluster": self._name})
            finally:
                self._stopping.set()
                client.close()
                self._refuse_actions()

    def _observe(self, client: NetworkClient) -> None:
        schedule = LookSchedule(self.settings.interval_seconds)
        memory = _Memory(last=self._last)
        due = glance_due = self._clock.monotonic()
        while not self._stopping.is_set():
            self._carry_out_actions(client, until=max(due, self._clock.monotonic() + ACTIONS_SECONDS_MAX))
            now = self._clock.monotonic()
            if now < due and not self._changed.is_set():
                if now >= glance_due:
                    self._glance(client, memory)
                    ended = self._clock.monotonic()
                    glance_due = ended + max(GLANCE_SECONDS, GLANCE_REST_FACTOR * (ended - now))
                    continue
                client.poll(min(due, glance_due) - now)
                continue
            self._changed.clear()
            interests = self._interests
            try:
                memory.last = seen = self._look(client, interests, memory)
            except LookAbandonedError:
                return
            ended = self._clock.monotonic()
            self._publish(seen, ended - now)
            due = ended + schedule.seconds(seen, interests, ended, took=ended - now)
            glance_due = ended + GLANCE_SECONDS

    def _glance(self, client: NetworkClient, memory: _Memory) -> None:
        """Note the groups whose state has changed since the last look; publish them, if there are any."""
        last = memory.last
        if last is None or not last.reachable or not last.groups:
            return
        try:
            seen = Glance(client=client, clock=self._clock, last=last, stopping=self._stopping.is_set).take()
        except GlanceAbandonedError:
            return
        if seen is not None:
            memory.last = seen
            self._publish(seen, None)

    def _look(
        self, client: NetworkClient, interests: Mapping[str, GroupInterest], memory: _Memory
    ) -> ClusterObservation:
        memory.flow.forget(set(_drained(self._changed_topics)))
        look = Look(
            client=client,
            clock=self._clock,
            interests=interests,
            last=memory.last,
            configs=memory.configs,
            memory=memory.flow,
            matches=memory.matches,
            stopping=self._stopping.is_set,
        )
        began = self._clock.monotonic()
        try:
            observation = look.take()
        except NetError as error:
            proven = memory.doubt.failed(began, self._clock.monotonic())
            return failure(error, memory.last, self._clock.wall(), proven=proven)
        memory.doubt.succeeded()
        return observation

    def _carry_out_actions(self, client: NetworkClient, *, until: float) -> None:
        """Until there are none, or a look should be taken again; what is left comes after it."""
        for action in _drained(self._actions, lambda: not self._stopping.is_set() and self._clock.monotonic() < until):
            action.carry_out(client)

    def _refuse_actions(self) -> None:
        for action in _drained(self._actions):
            if action.outcome.set_running_or_notify_cancel():
                action.outcome.set_exception(ObserverStoppedError(f"the observer of {self._name} was stopped"))


def _drained(items: queue.SimpleQueue[T], wanted: Callable[[], bool] = lambda: True) -> Iterator[T]:
    """The items of a queue until it is empty; none is taken while they are not wanted."""
    while wanted():
        try:
            yield items.get_nowait()
        except queue.Empty:
            return
