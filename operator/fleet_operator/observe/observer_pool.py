"""All observers of one operator, as the event loop sees them.

Everything here runs on the event loop; the observers' threads reach it through `call_soon_threadsafe`. An observation
is kept as it came (frozen), and the listener is notified of the groups that changed, and how urgently.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from fleet_consumer.clock import Clock
from fleet_consumer.net import NetworkClient
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.observe import folding
from fleet_operator.observe.interests import GroupInterest, ObserverSettings
from fleet_operator.observe.kafka_admin import KafkaAdmin
from fleet_operator.observe.observer import Observer, ObserverStoppedError
from fleet_operator.planning.observation import ClusterObservation

log = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[str, str]
"""Namespace and name of an object."""

STOP_SECONDS: Final = 3.0
"""Time for which a stop waits for all threads together. One that waits for a broker ends with its calls' own time-outs,
or with the process."""


class Listener(Protocol):
    """Receiver of changes, on the event loop."""

    def cluster_changed(self, cluster: Key) -> None:
        """A cluster became reachable or unreachable, or its own facts changed."""

    def group_changed(self, group: Key, *, urgent: bool) -> None:
        """A ConsumerGroup's Kafka group changed; not `urgent` when only offsets moved."""

    def looked(self, cluster: Key, observation: ClusterObservation, seconds: float) -> None:
        """A look was taken; for metrics."""


@dataclass(slots=True)
class _Site:
    """One KafkaCluster: its observer, the newest observation, and the newest one that the listener was notified of.

    `connection` is the KafkaCluster's, `identified` says that a cluster id was seen with it.
    """

    observer: Observer
    connection: str
    identified: bool = False
    latest: ClusterObservation | None = None
    notified: ClusterObservation | None = None


class ObserverPool:
    """Starts, stops and asks observers. Belongs to the loop it was made on; `close` at the end."""

    def __init__(self, clock: Clock, listener: Listener) -> None:
        self._clock = clock
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._sites: dict[Key, _Site] = {}
        # Wishes for clusters that have no observer (yet): they outlive its restarts.
        self._wishes: dict[Key, dict[Key, GroupInterest]] = defaultdict(dict)
        # Clusters that cannot be observed for a reason found in Kubernetes, such as a missing Secret.
        self._refused: dict[Key, ClusterObservation] = {}
        self._ending: list[Observer] = []

    def ensure(self, cluster: Key, settings: ObserverSettings, connection: str = "") -> None:
        """Have this cluster observed with these settings; an observer with others is replaced.

        `connection` is `KafkaClusterSpec.connection`. With other addresses the replacement begins without an
        observation: they may be another cluster's. With renewed credentials it begins with the last one, in doubt.
        """
        site = self._sites.get(cluster)
        if site is not None and site.observer.settings == settings and site.observer.alive:
            site.connection = connection
            site.latest = replace(site.latest, connection=connection) if site.latest is not None else None
            return
        last = _in_doubt(site, settings, connection)
        self.stop(cluster)
        observer: Observer

        def publish(observation: ClusterObservation, seconds: float | None) -> None:
            self._loop.call_soon_threadsafe(self._take, cluster, observer, observation, seconds)

        observer = Observer("/".join(cluster), settings, self._clock, publish, last)
        self._sites[cluster] = _Site(observer, connection, last is not None and last.identified, latest=last)
        observer.watch(self._merged(cluster))
        observer.start()
        log.info("observer started", extra={"cluster": "/".join(cluster)})

    def refuse(self, cluster: Key, reason: str, message: str, connection: str = "") -> None:
        """Do not observe this cluster, and say why in the place of an observation; last known values are kept."""
        refused = self._refused.get(cluster)
        if refused is not None and (refused.reason, refused.message, refused.connection) == (
            reason,
            message,
            connection,
        ):
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
        """Stop observing a cluster; its observation is forgotten."""
        self._refused.pop(cluster, None)
        site = self._sites.pop(cluster, None)
        if site is not None:
            site.observer.stop()
            self._ending = [observer for observer in self._ending if not observer.join(0.0)]
            self._ending.append(site.observer)
            log.info("observer stopped", extra={"cluster": "/".join(cluster)})

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
        for other, wishes in self._wishes.items():
            if other != cluster and wishes.pop(group, None) is not None:
                self._pass_on(other)
        if self._wishes[cluster].get(group) != interest:
            self._wishes[cluster][group] = interest
            self._pass_on(cluster)

    def forget(self, group: Key) -> None:
        """Observe a ConsumerGroup no more."""
        for cluster, wishes in self._wishes.items():
            if wishes.pop(group, None) is not None:
                self._pass_on(cluster)

    def latest(self, cluster: Key) -> ClusterObservation | None:
        """The newest observation; None before the first, and for a cluster that is not observed."""
        site = self._sites.get(cluster)
        return site.latest if site else self._refused.get(cluster)

    def look(self, cluster: Key, changed_topics: Iterable[str] = ()) -> None:
        """Look at a cluster now rather than when its interval is over: something there was just changed by us."""
        site = self._sites.get(cluster)
        if site is not None:
            site.observer.look(changed_topics)

    async def act(self, cluster: Key, run: Callable[[NetworkClient], T]) -> T:
        """Have something asked on the cluster's thread. Raises what it raises, or ObserverStoppedError."""
        site = self._sites.get(cluster)
        if site is None:
            raise ObserverStoppedError(f"KafkaCluster {'/'.join(cluster)} is not observed: see its conditions")
        return await asyncio.wrap_future(site.observer.submit(run))

    async def change(self, cluster: Key, cluster_id: str | None, run: Callable[[KafkaAdmin], T]) -> T:
        """Change something on the Kafka cluster with this id, on its thread. Raises AnotherClusterError too.

        An action decided from an observation may come to the thread of another observer: a KafkaCluster's addresses can
        be edited at any time.
        """
        return await self.act(cluster, lambda client: run(KafkaAdmin(client, cluster_id)))

    def _pass_on(self, cluster: Key) -> None:
        site = self._sites.get(cluster)
        if site is not None:
            site.observer.watch(self._merged(cluster))

    def _merged(self, cluster: Key) -> Mapping[str, GroupInterest]:
        """Interests by Kafka group; where two objects name the same group, what both want."""
        merged: dict[str, GroupInterest] = {}
        for _, interest in sorted(self._wishes[cluster].items(), key=lambda wish: (wish[1].waits, wish[0])):
            other = merged.get(interest.group_id)
            merged[interest.group_id] = interest if other is None else _both(other, interest)
        return merged

    def _take(self, cluster: Key, observer: Observer, observation: ClusterObservation, seconds: float | None) -> None:
        """An observation has arrived; one of an observer that was replaced meanwhile is dropped. `seconds` is the time
        that its look took, None for a glance.

        A look or two that failed are no news yet: who looks finds the observation, and nobody is woken up.
        """
        site = self._sites.get(cluster)
        if site is None or site.observer is not observer:
            return
        site.identified = site.identified or (observation.reachable and observation.cluster_id is not None)
        observation = replace(observation, connection=site.connection, identified=site.identified)
        site.latest = observation
        if seconds is not None:
            self._listener.looked(cluster, observation, seconds)
        if observation.doubtful:
            return
        before, site.notified = site.notified, observation
        turned = before is None or (before.reachable, before.reason) != (observation.reachable, observation.reason)
        if turned or _cluster_shape(before) != _cluster_shape(observation):
            self._listener.cluster_changed(cluster)
        for group, interest in self._wishes[cluster].items():
            self._notify(group, interest, before, observation, turned=turned)

    def _notify(
        self,
        group: Key,
        interest: GroupInterest,
        before: ClusterObservation | None,
        after: ClusterObservation,
        *,
        turned: bool,
    ) -> None:
        old = before.groups.get(interest.group_id) if before else None
        new = after.groups.get(interest.group_id)
        if turned or _topics(before, interest) != _topics(after, interest):
            self._listener.group_changed(group, urgent=True)
        elif new is not None and after.reachable:
            if folding.differs(old, new):
                self._listener.group_changed(group, urgent=True)
            elif folding.moved(old, new):
                self._listener.group_changed(group, urgent=False)


def _both(one: GroupInterest, two: GroupInterest) -> GroupInterest:
    """The interests of two objects in one Kafka group. Where only one can count, it is that of `one`: its owner."""
    topics = tuple(dict.fromkeys((*one.topics, *two.topics)))
    return GroupInterest(
        group_id=one.group_id,
        topics=topics,
        pattern=one.pattern or two.pattern,
        other_topics=tuple(dict.fromkeys((*one.other_topics, *two.other_topics))),
        failed_topic=one.failed_topic or two.failed_topic,
        read_committed=one.read_committed,
        expects_members=one.expects_members or two.expects_members,
        retry=one.retry or two.retry,
    )


def _in_doubt(site: _Site | None, settings: ObserverSettings, connection: str) -> ClusterObservation | None:
    """The observation that an observer with renewed credentials begins with; None where the last one proves nothing.

    One that found the cluster unreachable is not kept: in doubt it would count as reachable.
    """
    last = site.latest if site is not None else None
    if site is None or last is None or site.observer.settings.bootstrap_servers != settings.bootstrap_servers:
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


def _cluster_shape(seen: ClusterObservation | None) -> tuple[object, ...] | None:
    """The facts in the status of a KafkaCluster, apart from times."""
    if seen is None:
        return None
    return (
        seen.cluster_id,
        seen.brokers,
        seen.offsets_topic,
        seen.broker_offsets_partitions,
        seen.group_count,
        dict(seen.groups_per_coordinator),
    )


def _topics(seen: ClusterObservation | None, interest: GroupInterest) -> list[object]:
    if seen is None:
        return []
    matching = seen.matches.get(interest.pattern.text, ()) if interest.pattern else ()
    return [(topic, seen.topics.get(topic)) for topic in (*interest.named_topics, *matching)]
