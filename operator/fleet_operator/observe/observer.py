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
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from fleet_consumer.clock import Clock
from fleet_consumer.net import NetError, NetworkClient
from fleet_operator.observe.doubt import REFUSALS, Doubt, failure
from fleet_operator.observe.glance import GLANCE_REST_FACTOR, GLANCE_SECONDS, Glance, GlanceAbandonedError
from fleet_operator.observe.group_folds import unobserved
from fleet_operator.observe.interests import GroupInterest, ObserverSettings
from fleet_operator.observe.look import Look, LookAbandonedError
from fleet_operator.observe.look_memory import ClusterMemory
from fleet_operator.observe.news import Observed, compare, earlier
from fleet_operator.observe.parts import GroupPart, GroupParts
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, TopicObservation

log = logging.getLogger(__name__)

T = TypeVar("T")

HURRY_SECONDS: Final = 1.0
"""The interval while a group has not been seen yet, or waits for nobody's record that becomes due."""
HURRY_MAX_SECONDS: Final = 120.0
"""Longest time for which one group may shorten the pauses: it may never be there."""
REST_FACTOR: Final = 9.0
"""Least pause after a look, as a multiple of the CPU time that it took."""
CALM_FACTOR: Final = 20.0
"""Least interval of the looks at a group, as a multiple of the CPU time of looks at all groups."""
SCALED_SECONDS: Final = 10.0
"""Longest interval for a group that is scaled: rates need several samples in a window."""
ASLEEP_SECONDS: Final = 2.0
"""The same for one without workers, whose first record waits for the look that sees it."""
INTERVAL_SECONDS_MAX: Final = 12.0
"""Longest interval that the load makes of a shorter one: decisions must not rest on older observations."""
ACTIONS_SECONDS_MAX: Final = 1.0
"""Longest time for which actions may delay a due look: a thousand new groups want their topics at once."""
REFUSED_SECONDS: Final = 30.0
"""The interval while the cluster refuses our credentials: repeating them quickly locks accounts and fills its logs."""
FAILED_PART_FACTOR: Final = 5.0
"""Pause of a part that alone cannot be looked at, as a multiple of what its look took: the others wait meanwhile."""
DOUBT_PAUSE_SECONDS: Final = 5.0
"""The longest pause between looks while it is not decided whether the cluster answers."""


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
    """Pauses between looks at one part of the groups. Pure: `now` is monotonic seconds."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval = interval_seconds
        self._unseen_since: dict[str, float] = {}

    def seconds(
        self, seen: ClusterObservation, interests: Mapping[str, GroupInterest], now: float, *, all_cpu_s: float = 0.0
    ) -> float:
        """The pause after a look; `all_cpu_s` is the CPU time of one look at every part.

        States are glanced at each second, so a rebalance is no reason for a look.
        """
        groups = {group_id: seen.groups.get(group_id) for group_id in interests}
        unseen = {group_id for group_id, group in groups.items() if group is None or group.error is not None}
        self._unseen_since = {group_id: self._unseen_since.get(group_id, now) for group_id in unseen}
        if any(now - since < HURRY_MAX_SECONDS for since in self._unseen_since.values()):
            return min(self._interval, HURRY_SECONDS)
        interval = min(self._interval, *(_scaling_interval(interest) for interest in interests.values()), float("inf"))
        calm = max(interval, min(INTERVAL_SECONDS_MAX, CALM_FACTOR * all_cpu_s))
        return min(calm, max(HURRY_SECONDS, _seconds_to_wake(groups.values(), seen.observed_at)))


def _scaling_interval(interest: GroupInterest) -> float:
    """Longest pause that the scaling of a group can do with."""
    if not interest.scaled:
        return float("inf")
    return ASLEEP_SECONDS if interest.asleep else SCALED_SECONDS


def pause_of_failure(seen: ClusterObservation, interval: float) -> float:
    """Seconds until a cluster is asked again that did not answer."""
    if seen.doubtful:
        return min(interval, DOUBT_PAUSE_SECONDS)
    return max(interval, REFUSED_SECONDS) if seen.reason in REFUSALS else interval


def _seconds_to_wake(groups: Iterable[GroupObservation | None], now: float) -> float:
    """Until the next record becomes due that nobody is there to handle; workers that are there need no look for it."""
    flows = (group.retry for group in groups if group is not None and group.retry is not None)
    due = (flow.next_due_at for flow in flows if not flow.members and flow.next_due_at is not None)
    return min(due, default=float("inf")) - now


@dataclass(slots=True)
class _Memory:
    """The thread's memory between looks; `last` is the newest observation, `notified` the newest without doubt.

    `begun` is the observation to begin with, which counts for parts that have not been looked at. At `survey_at` the
    facts of the whole cluster are asked for again; until `rest_until` nothing is looked at (both in monotonic seconds).
    """

    begun: ClusterObservation | None = None
    last: ClusterObservation | None = None
    notified: ClusterObservation | None = None
    parts: GroupParts = field(default_factory=GroupParts)
    cluster: ClusterMemory = field(default_factory=ClusterMemory)
    doubt: Doubt = field(default_factory=Doubt)
    survey_at: float = float("-inf")
    rest_until: float = float("-inf")
    _schedules: dict[GroupPart, LookSchedule] = field(default_factory=dict)
    _untidy: bool = False

    def schedule(self, part: GroupPart, interval_s: float) -> LookSchedule:
        """The schedule of a part."""
        return self._schedules.setdefault(part, LookSchedule(interval_s))

    def change(self, changes: Mapping[str, GroupInterest | None]) -> None:
        """Take in changed interests; a group that is of no interest any more is not observed any more."""
        self.parts.change(changes)
        self._untidy = True
        gone = {group_id for group_id, interest in changes.items() if interest is None}
        if gone:
            self.last, self.notified = _without(self.last, gone), _without(self.notified, gone)

    def tidy(self) -> None:
        """Forget topics and groups that are of no interest any more; not after each change, as that walks over all."""
        if not self._untidy:
            return
        self._untidy = False
        self._schedules = {part: self._schedules[part] for part in self.parts if part in self._schedules}
        interests = [interest for part in self.parts for interest in part.interests.values()]
        retry = (interest.retry.group_id for interest in interests if interest.retry is not None)
        groups = {*(interest.group_id for interest in interests), *retry}
        known = self.cluster.coordinators
        self.cluster.coordinators = {group_id: node_id for group_id, node_id in known.items() if group_id in groups}
        named = (topic for interest in interests for topic in interest.named_topics)
        matching = (topic for part in self.parts for names in part.matches.values() for topic in names)
        self.cluster.logs.retain({*named, *matching, *self._committed_topics(interests)})
        if all(part.turn for part in self.parts):
            self.begun = None
        if self.last is not None:
            self.last = replace(self.last, topics=self._topics(), matches=self._matches())

    def doubt_topics(self, topics: frozenset[str]) -> None:
        """Have the groups of topics looked at, of which nothing counts as known; without topics, all groups."""
        if not topics:
            self.parts.all_due()
        for part in self.parts.reading(topics):
            part.memory.flow.forget(topics)
            part.due_at = float("-inf")

    def merge(self, part: GroupPart, seen: ClusterObservation, seconds: float) -> Observed:
        """Put the observation of a part into that of the whole; returns what is new."""
        last, before, topics, matches = self.last, self.notified, part.topics, part.matches
        changed = self.parts.take(part, seen.topics, seen.matches)
        if changed or last is None or not _shows(last, seen):
            # Another part may have found the same change before: this part's groups have not heard of it.
            topics = earlier(seen.topics, last.topics if last is not None else {}, topics)
            matches = earlier(seen.matches, last.matches if last is not None else {}, matches)
            seen = replace(seen, topics=self._topics(), matches=self._matches())
            self._untidy = True
        else:
            seen = replace(seen, topics=last.topics, matches=last.matches)
            topics, matches = seen.topics, seen.matches
        self.last = replace(seen, groups={**last.groups, **seen.groups} if last is not None else seen.groups)
        if before is not None:
            before = replace(before, topics=topics, matches=matches)
        observed = compare(before, self.last, part.interests, seconds, first=part.unheard)
        self.notified, part.unheard = self.last, False
        return observed

    def glanced(self, seen: ClusterObservation) -> Observed:
        """Take in what a glance found; returns what is new."""
        before = self.last.groups if self.last is not None else {}
        changed = {group_id: True for group_id, group in seen.groups.items() if before.get(group_id) is not group}
        self.last = self.notified = seen
        return Observed(observation=seen, groups=changed)

    def fail_part(self, part: GroupPart, error: NetError, now: float) -> Observed:
        """Take in a failed look at a part of a cluster that others have seen; returns what is new. `now` is epoch
        seconds."""
        assert self.last is not None, "others have seen it"
        known = self.last.groups
        groups = {group_id: unobserved(group_id, known.get(group_id), error.reason, now) for group_id in part.interests}
        self.last = replace(self.last, groups={**known, **groups})
        observed = compare(self.notified, self.last, part.interests, None)
        self.notified = self.last
        return observed

    def fail(self, seen: ClusterObservation, seconds: float) -> Observed:
        """Take in a failed look; returns what is new."""
        self.last = seen
        observed = compare(self.notified, seen, {}, seconds)
        if not seen.doubtful:
            self.notified = seen
            for part in self.parts:
                part.unheard = True
        return observed

    def _topics(self) -> dict[str, TopicObservation]:
        begun = self.begun
        known = begun.topics if begun is not None and any(not part.turn for part in self.parts) else {}
        return {**known, **self.parts.topics()}

    def _matches(self) -> dict[str, tuple[str, ...]]:
        begun = self.begun
        known = begun.matches if begun is not None and any(not part.turn for part in self.parts) else {}
        return {**known, **self.parts.matches()}

    def _committed_topics(self, interests: Iterable[GroupInterest]) -> Iterator[str]:
        """The topics of groups that name none: those that they have commits for."""
        groups = self.last.groups if self.last is not None else {}
        unnamed = (interest.group_id for interest in interests if not interest.topics and interest.pattern is None)
        return (topic for group_id in unnamed if group_id in groups for topic, _ in groups[group_id].committed)


def _shows(whole: ClusterObservation, part: ClusterObservation) -> bool:
    """True if topics are in the whole observation as in that of a part."""
    return whole.topics.items() >= part.topics.items() and whole.matches.items() >= part.matches.items()


def _without(seen: ClusterObservation | None, gone: AbstractSet[str]) -> ClusterObservation | None:
    if seen is None:
        return None
    return replace(seen, groups={group_id: group for group_id, group in seen.groups.items() if group_id not in gone})


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
        self._actions: queue.SimpleQueue[Action[Any]] = queue.SimpleQueue()
        self._wishes: queue.SimpleQueue[Mapping[str, GroupInterest | None]] = queue.SimpleQueue()
        self._changed_topics: queue.SimpleQueue[frozenset[str]] = queue.SimpleQueue()
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
        """Change what is observed, by group id, None for nothing; what is new is looked at next."""
        self._wishes.put(changes)
        self._wake()

    def look(self, changed_topics: Iterable[str] = ()) -> None:
        """Look next at the groups of topics that were just changed, of which nothing is taken for known any more;
        without topics, at all groups."""
        self._changed_topics.put(frozenset(changed_topics))
        self._wake()

    def submit(self, run: Callable[[NetworkClient], T]) -> Future[T]:
        """Have something done on the thread, after the look that may be under way."""
        outcome: Future[T] = Future()
        self._actions.put(Action(run, outcome))
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
            except Exception:
                log.exception("observer died", extra={"cluster": self._name})
            finally:
                self._stopping.set()
                client.close()
                self._refuse_actions()

    def _observe(self, client: NetworkClient) -> None:
        memory = _Memory(begun=self._last, last=self._last)
        glance_due = self._clock.monotonic()
        while not self._stopping.is_set():
            self._take_changes(memory)
            part = memory.parts.due(self._clock.monotonic())
            due = max(part.due_at, memory.rest_until)
            self._carry_out_actions(client, until=max(due, self._clock.monotonic() + ACTIONS_SECONDS_MAX))
            now = self._clock.monotonic()
            if now >= due:
                try:
                    self._look(client, part, memory)
                except LookAbandonedError:
                    return
                continue
            if now >= glance_due:
                self._glance(client, memory)
                ended = self._clock.monotonic()
                glance_due = ended + max(GLANCE_SECONDS, GLANCE_REST_FACTOR * (ended - now))
                continue
            client.poll(min(due, glance_due) - now)

    def _take_changes(self, memory: _Memory) -> None:
        """Take in what the event loop wants by now."""
        changes = {group: interest for each in _drained(self._wishes) for group, interest in each.items()}
        if changes:
            memory.change(changes)
        for topics in _drained(self._changed_topics):
            memory.doubt_topics(topics)
            if memory.cluster.configs.forget(topics):
                memory.survey_at = float("-inf")

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
            self._publish(memory.glanced(seen))

    def _look(self, client: NetworkClient, part: GroupPart, memory: _Memory) -> None:
        """Look at one part of the groups, publish what is new, and set the time of the next look."""
        began, cpu = self._clock.monotonic(), time.thread_time()
        look = Look(
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
            seen = look.take()
        except NetError as error:
            ended = self._clock.monotonic()
            if memory.parts.fail(part) and memory.last is not None and memory.last.reachable:
                part.due_at = ended + max(self.settings.interval_seconds, FAILED_PART_FACTOR * (ended - began))
                self._publish(memory.fail_part(part, error, self._clock.wall()))
                return
            # The next look is at another part, if there is one, for this one may be to blame.
            memory.parts.all_due()
            proven = memory.doubt.failed(began, ended)
            seen = failure(error, memory.last, self._clock.wall(), proven=proven)
            memory.rest_until = ended + pause_of_failure(seen, self.settings.interval_seconds)
            self._publish(memory.fail(seen, ended - began))
            return
        memory.doubt.succeeded()
        ended, part.cpu_s = self._clock.monotonic(), time.thread_time() - cpu
        memory.rest_until = ended + REST_FACTOR * part.cpu_s
        self._publish(memory.merge(part, seen, ended - began))
        if look.survey:
            memory.survey_at = ended + self.settings.interval_seconds
            memory.tidy()
        pause = memory.schedule(part, self.settings.interval_seconds)
        part.due_at = ended + pause.seconds(seen, part.interests, ended, all_cpu_s=memory.parts.cpu_s)

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
