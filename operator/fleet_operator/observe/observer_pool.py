"""All observers of one operator, as the event loop sees them.

Everything here runs on the event loop; the observers' threads reach it through `call_soon_threadsafe`. An observation
is kept as it came (frozen), and the listener is notified of the groups that changed, and how urgently.
"""

from __future__ import annotations

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
from fleet_operator.observe.interests import GroupInterest, ObserverSettings
from fleet_operator.observe.kafka_admin import KafkaAdmin, change_cluster
from fleet_operator.observe.observer import Observer, ObserverStoppedError
from fleet_operator.planning.observation import ClusterObservation, as_of

log = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[str, str]
"""Namespace and name of an object."""

STOP_SECONDS: Final = 3.0
"""Time for which a stop waits for all threads together. One that waits for a broker ends with its calls' own time-outs,
or with the process."""
CHECK_SECONDS: Final = 30.0
"""Interval at which observers are checked for having hung."""
OBSERVERS_PER_NAMESPACE_MAX: Final = 20
OBSERVERS_MAX: Final = 400
"""Each has a thread and its connections, and all share one interpreter."""


class TooManyObserversError(Exception):
    """No further connection is observed; the message is for the owner of the KafkaCluster."""


class Listener(Protocol):
    """Receiver of changes, on the event loop."""

    def cluster_changed(self, cluster: Key) -> None:
        """A cluster became reachable or unreachable, or its own facts changed."""

    def group_changed(self, group: Key, *, urgent: bool) -> None:
        """A ConsumerGroup's Kafka group changed; not `urgent` when only offsets moved."""

    def looked(self, cluster: Key, observation: ClusterObservation, seconds: float) -> None:
        """A poll was taken; for metrics."""


@dataclass(slots=True, eq=False)
class _Post:
    """One observer, and the KafkaClusters that it serves: all with the same addresses and credentials.

    `groups` has the ConsumerGroups that each Kafka group concerns, with the KafkaCluster that they refer to. `stale` is
    set while observations stay away, and everybody has been notified of it.
    """

    observer: Observer
    clusters: set[Key] = field(default_factory=set)
    groups: dict[str, set[tuple[Key, Key]]] = field(default_factory=dict)
    stale: bool = False


@dataclass(slots=True)
class _Site:
    """One KafkaCluster: its observer and the newest observation, as it is shown for this object.

    `connection` is the KafkaCluster's, `identified` says that a cluster id was seen with it.
    """

    post: _Post
    connection: str
    identified: bool = False
    latest: ClusterObservation | None = None


class ObserverPool:
    """Starts, stops and asks observers. Belongs to the loop it was made on; `close` at the end.

    KafkaClusters with the same addresses and credentials share one observer, in however many namespaces they are. A
    cluster id alone makes none share: brokers report their own, and may report that of others.
    """

    def __init__(self, clock: Clock, listener: Listener) -> None:
        self._clock = clock
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._sites: dict[Key, _Site] = {}
        # Wishes for clusters that have no observer (yet): they outlive its restarts.
        self._wishes: dict[Key, dict[Key, GroupInterest]] = defaultdict(dict)
        self._cluster_of: dict[Key, Key] = {}
        # Clusters that cannot be observed for a reason found in Kubernetes, such as a missing Secret.
        self._refused: dict[Key, ClusterObservation] = {}
        self._ending: list[Observer] = []

    def ensure(self, cluster: Key, settings: ObserverSettings, connection: str = "") -> None:
        """Have this cluster observed with these settings; an observer with others is replaced.

        `connection` is `KafkaClusterSpec.connection`. With other addresses the replacement begins without an
        observation: they may be another cluster's. With renewed credentials it begins with the last one, in doubt.
        Raises TooManyObserversError for a connection that nobody uses yet; those that are observed already stay.
        """
        site = self._sites.get(cluster)
        if site is not None and site.post.observer.settings == settings and site.post.observer.alive:
            site.connection = connection
            site.latest = replace(site.latest, connection=connection) if site.latest is not None else None
            return
        shared = self._shared(settings)
        if shared is None:
            self._require_room(cluster)
        last = _in_doubt(site, settings, connection)
        if last is not None:  # an observer that was shared has seen the groups of others
            wanted = {interest.group_id for interest in self._wishes[cluster].values()}
            last = replace(last, groups={name: group for name, group in last.groups.items() if name in wanted})
        self.stop(cluster)
        post = shared or self._made(cluster, settings, last)
        if shared is not None and shared.observer.latest is not None:
            identified = any(self._sites[other].identified for other in shared.clusters)
            last = replace(shared.observer.latest, connection=connection, identified=identified)
        post.clusters.add(cluster)
        self._sites[cluster] = _Site(post, connection, last is not None and last.identified, latest=last)
        self._add(post, cluster, self._wishes[cluster])
        if shared is None:
            post.observer.start()
            log.info("observer started", extra={"cluster": "/".join(cluster)})

    def _shared(self, settings: ObserverSettings) -> _Post | None:
        """The observer of another KafkaCluster with the same settings."""
        posts = (site.post for site in self._sites.values())
        return next((post for post in posts if post.observer.settings == settings and post.observer.alive), None)

    def _require_room(self, cluster: Key) -> None:
        others = [(key[0], id(site.post)) for key, site in self._sites.items() if key != cluster]
        here = {post for namespace, post in others if namespace == cluster[0]}
        for posts, limit, where in (
            (here, OBSERVERS_PER_NAMESPACE_MAX, f"namespace {cluster[0]!r}"),
            ({post for _, post in others}, OBSERVERS_MAX, "all namespaces"),
        ):
            if len(posts) >= limit:
                raise TooManyObserversError(
                    f"KafkaClusters of {where} have {len(posts)} different connections already, and the operator "
                    "observes no more: refer to one that exists, or delete one; equal addresses, credentials and "
                    "intervals count once"
                )

    def _made(self, cluster: Key, settings: ObserverSettings, last: ClusterObservation | None) -> _Post:
        post: _Post

        def publish(observed: Observed) -> None:
            self._loop.call_soon_threadsafe(self._take, post, observed)

        post = _Post(Observer("/".join(cluster), settings, self._clock, publish, last))
        return post

    def refuse(self, cluster: Key, reason: str, message: str, connection: str = "") -> None:
        """Do not observe this cluster, and say why in the place of an observation; last known values are kept."""
        before = self._refused.get(cluster)
        if before and (before.reason, before.message, before.connection) == (reason, message, connection):
            return
        known = self.latest(cluster) or ClusterObservation(observed_at=self._clock.wall(), reachable=False)
        self.stop(cluster)
        self._refused[cluster] = replace(
            known,
            observed_at=self._clock.wall(),
            reachable=False,
            doubtful=False,
            reason=reason,
            message=message,
            connection=connection,
            identified=known.identified and known.connection == connection,
        )
        for group in self._wishes[cluster]:
            self._listener.group_changed(group, urgent=True)

    def stop(self, cluster: Key) -> None:
        """Stop observing a cluster; its observation is forgotten. The last one of an observer ends it."""
        self._refused.pop(cluster, None)
        site = self._sites.pop(cluster, None)
        if site is None:
            return
        post = site.post
        post.clusters.discard(cluster)
        if post.clusters:
            self._remove(post, cluster, self._wishes[cluster])
            return
        post.observer.stop()
        self._ending = [observer for observer in self._ending if not observer.join(0.0)]
        self._ending.append(post.observer)
        log.info("observer stopped", extra={"cluster": "/".join(cluster)})

    async def keep_checking(self) -> None:
        """Notify everybody concerned when an observer hangs: no poll of it will. Never returns."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for post in {site.post for site in self._sites.values()}:
                latest, interval = post.observer.latest, post.observer.settings.interval_seconds
                now_seen = as_of(latest, interval_s=interval, now=self._clock.wall())
                if now_seen is latest or post.stale:
                    continue
                post.stale = True
                for cluster in post.clusters:
                    self._listener.cluster_changed(cluster)
                self._notify(post, dict.fromkeys(post.groups, True))

    async def close(self) -> None:
        """Stop all observers and wait, within a bound, for their threads."""
        for cluster in list(self._sites):
            self.stop(cluster)
        deadline = self._clock.monotonic() + STOP_SECONDS
        for observer in self._ending:
            left = max(deadline - self._clock.monotonic(), 0.0)
            if not await asyncio.to_thread(observer.join, left):
                log.warning("observer did not stop in time")

    def watch(self, group: Key, cluster: Key, interest: GroupInterest) -> None:
        """Observe a ConsumerGroup's Kafka group on a cluster, now or once the cluster has an observer."""
        if self._cluster_of.get(group, cluster) != cluster:
            self.forget(group)
        before = self._wishes[cluster].get(group)
        if before == interest:
            return
        self._wishes[cluster][group] = interest
        self._cluster_of[group] = cluster
        site = self._sites.get(cluster)
        if site is None:
            return
        if before is not None and before.group_id != interest.group_id:
            self._remove(site.post, cluster, {group: before})
        self._add(site.post, cluster, {group: interest})

    def forget(self, group: Key) -> None:
        cluster = self._cluster_of.pop(group, None)
        if cluster is None:
            return
        gone = self._wishes[cluster].pop(group)
        site = self._sites.get(cluster)
        if site is not None:
            self._remove(site.post, cluster, {group: gone})

    def latest(self, cluster: Key) -> ClusterObservation | None:
        """The newest observation; None before the first, and for a cluster that is not observed."""
        site = self._sites.get(cluster)
        return site.latest if site else self._refused.get(cluster)

    def look(self, cluster: Key, changed_topics: Iterable[str] = ()) -> None:
        """Poll a cluster now rather than when its interval is over: something there was just changed by us."""
        site = self._sites.get(cluster)
        if site is not None:
            site.post.observer.poll_soon(changed_topics)

    async def act(self, cluster: Key, run: Callable[[NetworkClient], T]) -> T:
        """Have something asked on the cluster's thread. Raises what it raises, or ObserverStoppedError."""
        site = self._sites.get(cluster)
        if site is None:
            raise ObserverStoppedError(f"KafkaCluster {'/'.join(cluster)} is not observed: see its conditions")
        return await asyncio.wrap_future(site.post.observer.submit(run))

    async def change(self, cluster: Key, cluster_id: str | None, run: Callable[[KafkaAdmin], T]) -> T:
        """Change something on the Kafka cluster with this id, on its thread; see `change_cluster`.

        An action decided from an observation may come to the thread of another observer: a KafkaCluster's addresses can
        be edited at any time.
        """
        return await self.act(cluster, lambda client: change_cluster(client, cluster_id, run))

    def _add(self, post: _Post, cluster: Key, wishes: Mapping[Key, GroupInterest]) -> None:
        for group, interest in wishes.items():
            post.groups.setdefault(interest.group_id, set()).add((cluster, group))
        self._pass_on(post, {interest.group_id for interest in wishes.values()})

    def _remove(self, post: _Post, cluster: Key, wishes: Mapping[Key, GroupInterest]) -> None:
        for group, interest in wishes.items():
            concerned = post.groups[interest.group_id]
            concerned.discard((cluster, group))
            if not concerned:
                del post.groups[interest.group_id]
        self._pass_on(post, {interest.group_id for interest in wishes.values()})

    def _pass_on(self, post: _Post, group_ids: Iterable[str]) -> None:
        """Have the observer take up the changed interests in Kafka groups."""
        changes = {group_id: self._merged(post, group_id) for group_id in group_ids}
        if changes:
            post.observer.watch(changes)

    def _merged(self, post: _Post, group_id: str) -> GroupInterest | None:
        """The interest in a Kafka group; where several objects name it, that of its owner first."""
        wishes = [(self._wishes[cluster][group], group) for cluster, group in post.groups.get(group_id, ())]
        wishes.sort(key=lambda wish: (wish[0].waits, wish[1]))
        return reduce(_both, (interest for interest, _ in wishes)) if wishes else None

    def _take(self, post: _Post, observed: Observed) -> None:
        """An observation has arrived; one of an observer that was replaced meanwhile is dropped."""
        if not post.clusters:
            return
        post.observer.latest = observed.observation
        if post.stale:
            post.stale = False
            observed = replace(observed, cluster=True, groups=dict.fromkeys(post.groups, True))
        for cluster in post.clusters:
            self._show(self._sites[cluster], observed.observation)
            if observed.seconds is not None:
                self._listener.looked(cluster, observed.observation, observed.seconds)
            if observed.cluster:
                self._listener.cluster_changed(cluster)
        if observed.lost:
            self._notify(post, dict.fromkeys(post.groups, True))
        self._notify(post, observed.groups)

    def _show(self, site: _Site, observation: ClusterObservation) -> None:
        site.identified = site.identified or (observation.reachable and observation.cluster_id is not None)
        site.latest = replace(observation, connection=site.connection, identified=site.identified)

    def _notify(self, post: _Post, changed: Mapping[str, bool]) -> None:
        """Tell of changed Kafka groups; those that are True are urgent."""
        for group_id, urgent in changed.items():
            for _, group in post.groups.get(group_id, ()):
                self._listener.group_changed(group, urgent=urgent)


def _both(one: GroupInterest, two: GroupInterest) -> GroupInterest:
    """The interest of `one`, the owner of a Kafka group, with that of `two` as far as it takes nothing from it.

    Scaling sums up all partitions of the observation, so the topics of `two` only have to exist.
    """
    others = dict.fromkeys((*one.other_topics, *two.topics, *two.other_topics))
    return replace(one, other_topics=tuple(others), retry=one.retry or two.retry)


def _in_doubt(site: _Site | None, settings: ObserverSettings, connection: str) -> ClusterObservation | None:
    """The observation that an observer with renewed credentials begins with; None where the last one proves nothing.

    One that found the cluster unreachable is not kept: in doubt it would count as reachable.
    """
    last = site.latest if site is not None else None
    if site is None or last is None or site.post.observer.settings.bootstrap_servers != settings.bootstrap_servers:
        return None
    if not (last.reachable or last.doubtful):
        return None
    return replace(
        last,
        reachable=False,
        doubtful=True,
        reason=conditions.NOT_YET_OBSERVED,
        message="the brokers have not been observed since the connection was renewed: wait",
        connection=connection,
        identified=last.identified and site.connection == connection,
    )
