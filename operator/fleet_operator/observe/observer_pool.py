"""Manages all observers of one operator. Runs on the event loop; the observers' threads call `call_soon_threadsafe`.

The pool keeps the newest observation of each KafkaCluster, and notifies the listener of changed groups and of the
urgency of each change.

KafkaClusters share an observer only if their addresses and credentials are equal. Equal cluster ids are not sufficient,
because the id is what the brokers report. A hostile broker could pretend to be another tenant's cluster, or receive
that tenant's credentials.

Decision: docs/decisions/0048-thousands-of-groups.md.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final, Protocol, TypeVar

from fleet_consumer.clock import Clock
from fleet_consumer.net import NetworkClient
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.observe.changes import Observed
from fleet_operator.observe.kafka_admin import KafkaAdmin, change_cluster
from fleet_operator.observe.observer import Observer, ObserverStoppedError
from fleet_operator.observe.subscriptions import GroupSubscription, ObserverSettings
from fleet_operator.planning.observation import ClusterObservation, as_of

log = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[str, str]
"""Namespace and name of an object."""

STOP_SECONDS: Final = 3.0
"""Longest time in seconds for which `close` waits for all threads. A thread that is waiting for a broker may end later,
when its calls time out or the process ends."""
CHECK_SECONDS: Final = 30.0
"""Interval in seconds between two checks for hanging observers."""
OBSERVERS_PER_NAMESPACE_MAX: Final = 20
OBSERVERS_MAX: Final = 400
"""Largest number of observers of one operator; OBSERVERS_PER_NAMESPACE_MAX limits the observers of one namespace. Each
observer has a thread and connections, and all observers share one Python interpreter."""


class TooManyObserversError(Exception):
    """The limit of observed connections is reached; the KafkaCluster's condition shows the message."""


class Listener(Protocol):
    """The interface through which the pool reports changes, on the event loop."""

    def cluster_changed(self, cluster: Key) -> None:
        """A cluster became reachable or unreachable, or facts about the cluster itself changed."""

    def group_changed(self, group: Key, *, urgent: bool) -> None:
        """The Kafka group of a ConsumerGroup changed; not `urgent` if only offsets changed."""

    def cluster_polled(self, cluster: Key, observation: ClusterObservation, seconds: float) -> None:
        """A poll has ended; used for metrics."""


@dataclass(slots=True, eq=False)
class _Post:
    """One observer and its KafkaClusters, which have the same addresses and credentials.

    `groups`: for each Kafka group id, the keys of the ConsumerGroups that observe this group, each with the key of its
    KafkaCluster. `stale`: observations are overdue, and the listener has already been notified of this.
    """

    observer: Observer
    clusters: set[Key] = field(default_factory=set)
    groups: dict[str, set[tuple[Key, Key]]] = field(default_factory=dict)
    stale: bool = False


@dataclass(slots=True)
class _Slot:
    """The observer and the newest observation of one KafkaCluster.

    `connection`: the connection from the KafkaCluster's spec; `identified`: a cluster id was observed over this
    connection.
    """

    post: _Post
    connection: str
    identified: bool = False
    latest: ClusterObservation | None = None


class ObserverPool:
    """Starts, stops and calls observers. Used only on the event loop that created it; call `close` at the end."""

    def __init__(self, clock: Clock, listener: Listener) -> None:
        self._clock = clock
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._slots: dict[Key, _Slot] = {}
        # Keyed by cluster, including clusters without an observer, so that subscriptions survive an observer's restart.
        self._subscriptions: dict[Key, dict[Key, GroupSubscription]] = defaultdict(dict)
        self._cluster_of: dict[Key, Key] = {}
        # KafkaClusters that cannot be observed because of a problem in Kubernetes, for example a missing Secret.
        self._refused: dict[Key, ClusterObservation] = {}
        self._ending: list[Observer] = []

    def ensure(self, cluster: Key, settings: ObserverSettings, connection: str = "") -> None:
        """Observe a cluster with these settings; an observer with other settings is replaced.

        `connection` is `KafkaClusterSpec.connection`. If the addresses differ, the new observer starts without an
        observation, because the addresses may belong to another cluster. If only the credentials differ, it starts with
        the last observation, marked as unconfirmed. The status then shows this observation, but decisions do not use
        it.

        Raises TooManyObserversError if a new connection would exceed a limit. Existing observers are never stopped
        because of a limit.
        """
        slot = self._slots.get(cluster)
        if slot is not None and slot.post.observer.settings == settings and slot.post.observer.alive:
            slot.connection = connection
            slot.latest = replace(slot.latest, connection=connection) if slot.latest is not None else None
            return
        shared = self._shared(settings)
        if shared is None:
            self._require_room(cluster)
        last = _unconfirmed(slot, settings, connection)
        if last is not None:  # a shared observer has also observed groups of other KafkaClusters
            wanted = {subscription.group_id for subscription in self._subscriptions[cluster].values()}
            last = replace(last, groups={name: group for name, group in last.groups.items() if name in wanted})
        self.stop(cluster)
        post = shared or self._made(cluster, settings, last)
        if shared is not None and shared.observer.latest is not None:
            identified = any(self._slots[other].identified for other in shared.clusters)
            last = replace(shared.observer.latest, connection=connection, identified=identified)
        post.clusters.add(cluster)
        self._slots[cluster] = _Slot(post, connection, last is not None and last.identified, latest=last)
        self._add(post, cluster, self._subscriptions[cluster])
        if shared is None:
            post.observer.start()
            log.info("observer started", extra={"cluster": "/".join(cluster)})

    def _shared(self, settings: ObserverSettings) -> _Post | None:
        posts = (slot.post for slot in self._slots.values())
        return next((post for post in posts if post.observer.settings == settings and post.observer.alive), None)

    def _require_room(self, cluster: Key) -> None:
        others = [(key[0], id(slot.post)) for key, slot in self._slots.items() if key != cluster]
        here = {post for namespace, post in others if namespace == cluster[0]}
        for posts, limit, where in (
            (here, OBSERVERS_PER_NAMESPACE_MAX, f"namespace {cluster[0]!r}"),
            ({post for _, post in others}, OBSERVERS_MAX, "all namespaces"),
        ):
            if len(posts) >= limit:
                raise TooManyObserversError(
                    f"KafkaClusters of {where} have {len(posts)} different connections already, the most that the "
                    "operator observes: use the same connection as another KafkaCluster, or delete a KafkaCluster; "
                    "equal addresses, credentials and intervals count as one connection"
                )

    def _made(self, cluster: Key, settings: ObserverSettings, last: ClusterObservation | None) -> _Post:
        post: _Post

        def publish(observed: Observed) -> None:
            self._loop.call_soon_threadsafe(self._receive, post, observed)

        post = _Post(Observer("/".join(cluster), settings, self._clock, publish, last))
        return post

    def refuse(self, cluster: Key, reason: str, message: str, connection: str = "") -> None:
        """Stop observing a cluster. `latest` still returns the last known values, marked unreachable for this
        reason."""
        before = self._refused.get(cluster)
        if before and (before.reason, before.message, before.connection) == (reason, message, connection):
            return
        known = self.latest(cluster) or ClusterObservation(observed_at=self._clock.wall(), reachable=False)
        self.stop(cluster)
        self._refused[cluster] = replace(
            known,
            observed_at=self._clock.wall(),
            reachable=False,
            unconfirmed=False,
            reason=reason,
            message=message,
            connection=connection,
            identified=known.identified and known.connection == connection,
        )
        for group in self._subscriptions[cluster]:
            self._listener.group_changed(group, urgent=True)

    def stop(self, cluster: Key) -> None:
        """Stop observing a cluster and drop its observation. An observer without clusters stops."""
        self._refused.pop(cluster, None)
        slot = self._slots.pop(cluster, None)
        if slot is None:
            return
        post = slot.post
        post.clusters.discard(cluster)
        if post.clusters:
            self._remove(post, cluster, self._subscriptions[cluster])
            return
        post.observer.stop()
        self._ending = [observer for observer in self._ending if not observer.join(0.0)]
        self._ending.append(post.observer)
        log.info("observer stopped", extra={"cluster": "/".join(cluster)})

    async def keep_checking(self) -> None:
        """Notify the listener of hanging observers, because a hanging observer publishes nothing. Never returns."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for post in {slot.post for slot in self._slots.values()}:
                latest, interval = post.observer.latest, post.observer.settings.interval_seconds
                now_seen = as_of(latest, interval_s=interval, now=self._clock.wall())
                if now_seen is latest or post.stale:
                    continue
                post.stale = True
                for cluster in post.clusters:
                    self._listener.cluster_changed(cluster)
                self._notify(post, dict.fromkeys(post.groups, True))

    async def close(self) -> None:
        for cluster in list(self._slots):
            self.stop(cluster)
        deadline = self._clock.monotonic() + STOP_SECONDS
        for observer in self._ending:
            left = max(deadline - self._clock.monotonic(), 0.0)
            if not await asyncio.to_thread(observer.join, left):
                log.warning("observer did not stop in time")

    def watch(self, group: Key, cluster: Key, subscription: GroupSubscription) -> None:
        """Observe the Kafka group of a ConsumerGroup on a cluster: now, or as soon as the cluster has an observer."""
        if self._cluster_of.get(group, cluster) != cluster:
            self.unwatch(group)
        before = self._subscriptions[cluster].get(group)
        if before == subscription:
            return
        self._subscriptions[cluster][group] = subscription
        self._cluster_of[group] = cluster
        slot = self._slots.get(cluster)
        if slot is None:
            return
        if before is not None and before.group_id != subscription.group_id:
            self._remove(slot.post, cluster, {group: before})
        self._add(slot.post, cluster, {group: subscription})

    def unwatch(self, group: Key) -> None:
        cluster = self._cluster_of.pop(group, None)
        if cluster is None:
            return
        gone = self._subscriptions[cluster].pop(group)
        slot = self._slots.get(cluster)
        if slot is not None:
            self._remove(slot.post, cluster, {group: gone})

    def latest(self, cluster: Key) -> ClusterObservation | None:
        """The newest observation of a cluster; None before the first observation, and if the cluster is not
        observed."""
        slot = self._slots.get(cluster)
        return slot.latest if slot else self._refused.get(cluster)

    def poll_soon(self, cluster: Key, changed_topics: Iterable[str] = ()) -> None:
        """Poll a cluster before its poll interval ends, because the operator has just made a change in Kafka."""
        slot = self._slots.get(cluster)
        if slot is not None:
            slot.post.observer.poll_soon(changed_topics)

    async def act(self, cluster: Key, run: Callable[[NetworkClient], T]) -> T:
        """Run a function on the thread of the cluster's observer. Raises the function's errors, and
        ObserverStoppedError."""
        slot = self._slots.get(cluster)
        if slot is None:
            raise ObserverStoppedError(f"KafkaCluster {'/'.join(cluster)} is not observed: see its conditions")
        return await asyncio.wrap_future(slot.post.observer.submit(run))

    async def change(self, cluster: Key, cluster_id: str | None, run: Callable[[KafkaAdmin], T]) -> T:
        """Run a change of the Kafka cluster with this id on the thread of its observer. `change_cluster` checks the id,
        because the KafkaCluster's addresses, and so its observer, may have changed since the decision."""
        return await self.act(cluster, lambda client: change_cluster(client, cluster_id, run))

    def _add(self, post: _Post, cluster: Key, subscriptions: Mapping[Key, GroupSubscription]) -> None:
        for group, subscription in subscriptions.items():
            post.groups.setdefault(subscription.group_id, set()).add((cluster, group))
        self._pass_on(post, {subscription.group_id for subscription in subscriptions.values()})

    def _remove(self, post: _Post, cluster: Key, subscriptions: Mapping[Key, GroupSubscription]) -> None:
        for group, subscription in subscriptions.items():
            concerned = post.groups[subscription.group_id]
            concerned.discard((cluster, group))
            if not concerned:
                del post.groups[subscription.group_id]
        self._pass_on(post, {subscription.group_id for subscription in subscriptions.values()})

    def _pass_on(self, post: _Post, group_ids: Iterable[str]) -> None:
        changes = {group_id: self._merged(post, group_id) for group_id in group_ids}
        if changes:
            post.observer.watch(changes)

    def _merged(self, post: _Post, group_id: str) -> GroupSubscription | None:
        """Merge all ConsumerGroups' subscriptions to a Kafka group, starting with the owner's subscription; None
        without a subscription."""
        subscriptions = [
            (self._subscriptions[cluster][group], group) for cluster, group in post.groups.get(group_id, ())
        ]
        subscriptions.sort(key=lambda each: (each[0].waits, each[1]))
        return reduce(_both, (subscription for subscription, _ in subscriptions)) if subscriptions else None

    def _receive(self, post: _Post, observed: Observed) -> None:
        """Record an observation and notify the listener. An observation from a replaced observer is dropped."""
        if not post.clusters:
            return
        post.observer.latest = observed.observation
        if post.stale:
            post.stale = False
            observed = replace(observed, cluster=True, groups=dict.fromkeys(post.groups, True))
        for cluster in post.clusters:
            slot, seen = self._slots[cluster], observed.observation
            slot.identified = slot.identified or (seen.reachable and seen.cluster_id is not None)
            slot.latest = replace(seen, connection=slot.connection, identified=slot.identified)
            if observed.seconds is not None:
                self._listener.cluster_polled(cluster, observed.observation, observed.seconds)
            if observed.cluster:
                self._listener.cluster_changed(cluster)
        if observed.lost:
            self._notify(post, dict.fromkeys(post.groups, True))
        self._notify(post, observed.groups)

    def _notify(self, post: _Post, changed: Mapping[str, bool]) -> None:
        """Notify the listener of changed Kafka groups. `changed` is keyed by group id; True means an urgent change."""
        for group_id, urgent in changed.items():
            for _, group in post.groups.get(group_id, ()):
                self._listener.group_changed(group, urgent=urgent)


def _both(one: GroupSubscription, two: GroupSubscription) -> GroupSubscription:
    """Merge subscription `two` into `one`, which is the subscription of the Kafka group's owner. The topics of `two`
    are only checked for existence; otherwise, the owner's scaling would count their partitions too."""
    others = dict.fromkeys((*one.other_topics, *two.topics, *two.other_topics))
    return replace(one, other_topics=tuple(others), retry=one.retry or two.retry)


def _unconfirmed(slot: _Slot | None, settings: ObserverSettings, connection: str) -> ClusterObservation | None:
    """The initial observation for an observer with renewed credentials; None if the last observation cannot be used.
    The observation of an unreachable cluster cannot be used: marking it as unconfirmed would hide the outage."""
    last = slot.latest if slot is not None else None
    if slot is None or last is None or slot.post.observer.settings.bootstrap_servers != settings.bootstrap_servers:
        return None
    if not (last.reachable or last.unconfirmed):
        return None
    return replace(
        last,
        reachable=False,
        unconfirmed=True,
        reason=conditions.NOT_YET_OBSERVED,
        message="the brokers have not been observed since the connection was renewed: wait",
        connection=connection,
        identified=last.identified and slot.connection == connection,
    )
