"""From "this object changed" to "these objects should be reconciled".

Runs on the event loop, for every watch event, so it does little: caches take the object in, keys are queued. Status
changes of our own kinds are nobody's news (we wrote them), those of pods and StatefulSets are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.model import HANDLER_LABEL
from fleet_operator.api.v1alpha1.refs import cluster_of, group_id_of, main_group_of, policy_of, source_of
from fleet_operator.clients.kinds import (
    CONFIG_MAP,
    CONSUMER_GROUP,
    JOB,
    KAFKA_CLUSTER,
    POD,
    REDRIVE,
    RETRY_POLICY,
    STATEFUL_SET,
    JsonObject,
    Kind,
)
from fleet_operator.planning.labels import GROUP_LABEL, POLICY_LABEL, RECORD, REDRIVE_LABEL
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.runtime.cache import Change, Index, Key, group_index, key_of, version_of
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.store import Store

HANDLER_SOURCE: Final = "true"
"""Value of the handler label on what users write."""
HANDLER_RECORD: Final = RECORD
HANDLER_SELECTOR: Final = f"{HANDLER_LABEL} in ({HANDLER_SOURCE},{HANDLER_RECORD})"
"""One watch delivers both: a label selector has no "or" across keys, so both carry the same key."""

WATCHED: Final = {
    KAFKA_CLUSTER: "",
    CONSUMER_GROUP: "",
    RETRY_POLICY: "",
    REDRIVE: "",
    STATEFUL_SET: GROUP_LABEL,
    JOB: REDRIVE_LABEL,
    POD: GROUP_LABEL,
    CONFIG_MAP: HANDLER_SELECTOR,
}
"""What is watched, with the label selector that the API server filters by."""


def record_index(body: JsonObject) -> Hashable:
    """ConfigMaps: the group whose child they are, or the RetryPolicy whose content they keep."""
    policy = (body["metadata"].get("labels") or {}).get(POLICY_LABEL)
    return group_index(body) if policy is None else (RETRY_POLICY.kind, body["metadata"]["namespace"], policy)


INDEXES: Final[dict[Kind, Index]] = {
    KAFKA_CLUSTER: lambda body: None,
    CONSUMER_GROUP: group_id_of,
    RETRY_POLICY: lambda body: body["metadata"]["namespace"],
    REDRIVE: lambda body: (body["metadata"]["namespace"], body["spec"]["groupRef"]["name"]),
    STATEFUL_SET: group_index,
    JOB: group_index,
    POD: group_index,
    CONFIG_MAP: record_index,
}
"""By what the cached objects of each kind are found."""

CALM_SECONDS: Final = 10.0
"""How long news that is only about offsets may wait, so that it is taken up together."""


@dataclass(frozen=True, slots=True)
class Queues:
    """Where keys go: `group_later` takes the seconds that a group's reconcile may wait."""

    cluster: Callable[[Key], None]
    group: Callable[[Key], None]
    group_later: Callable[[Key, float], None]
    policy: Callable[[Key], None]
    redrive: Callable[[Key], None]


class Router:
    """Turns watch events and observations into keys. Implements the observers's `Listener`."""

    def __init__(self, store: Store, queues: Queues, metrics: Metrics) -> None:
        self._store = store
        self._queues = queues
        self._metrics = metrics

    def observed(self, kind: Kind, body: JsonObject, gone: bool) -> None:
        """A watch delivered an object."""
        self._metrics.watch_events.labels(kind.kind).inc()
        cache = self._store.cache(kind)
        key, uid = key_of(body), body["metadata"]["uid"]
        self.changed(kind, body, cache.remove(key, uid, version_of(body)) if gone else cache.observe(body))

    def changed(self, kind: Kind, body: JsonObject, change: Change) -> None:
        """An object of a cache changed; queue whoever depends on it."""
        if change is Change.NOTHING:
            return
        key = key_of(body)
        match kind.kind:
            case KAFKA_CLUSTER.kind if change is not Change.STATUS:
                self._queues.cluster(key)
                self._groups_of_cluster(key)
            case CONSUMER_GROUP.kind if change is not Change.STATUS:
                self._queues.group(key)
                self._policies_beside(key)
                self._redrives_of_group(key)
                self._rivals(key, body)
            case RETRY_POLICY.kind if change is not Change.STATUS:
                self._queues.policy(key)
                self._groups_of_policy(key)
            case REDRIVE.kind if change is not Change.STATUS:
                self._queues.redrive(key)
            case STATEFUL_SET.kind | POD.kind | JOB.kind:
                self._owner_of_child(body)
            case CONFIG_MAP.kind:
                self._group_of_child(body)
                if body["metadata"].get("labels", {}).get(HANDLER_LABEL) == HANDLER_SOURCE:
                    self._groups_of_source(key)

    def cluster_changed(self, cluster: Key) -> None:
        self._queues.cluster(cluster)

    def group_changed(self, group: Key, *, urgent: bool) -> None:
        if urgent:
            self._queues.group(group)
        else:
            self._queues.group_later(group, CALM_SECONDS)

    def looked(self, cluster: Key, observation: ClusterObservation, seconds: float) -> None:
        name = "/".join(cluster)
        self._metrics.observation_seconds.labels(name).observe(seconds)
        if observation.reachable:
            self._metrics.observed_at.labels(name).set(observation.observed_at)
        else:
            self._metrics.observation_failures.labels(name, observation.reason).inc()

    def _owner_of_child(self, body: JsonObject) -> None:
        """A Redrive's Job and pods carry the group's label as well, but are none of its fleet's business."""
        redrive = body["metadata"].get("labels", {}).get(REDRIVE_LABEL)
        if redrive is not None:
            self._queues.redrive((body["metadata"]["namespace"], redrive))
        else:
            self._group_of_child(body)

    def _group_of_child(self, body: JsonObject) -> None:
        group = body["metadata"].get("labels", {}).get(GROUP_LABEL)
        if group is not None:
            self._queues.group((body["metadata"]["namespace"], group))

    def _redrives_of_group(self, group: Key) -> None:
        for body in self._store.cache(REDRIVE).having(group):
            self._queues.redrive(key_of(body))

    def _groups_of_cluster(self, cluster: Key) -> None:
        for body in self._store.cache(CONSUMER_GROUP):
            if cluster_of(body) == cluster:
                self._queues.group(key_of(body))

    def _groups_of_source(self, source: Key) -> None:
        for body in self._store.cache(CONSUMER_GROUP):
            if source_of(body) == source:
                self._queues.group(key_of(body))

    def _policies_beside(self, group: Key) -> None:
        """A group may have come to a policy or left one; the one that it left is not known any more."""
        for policy in self._store.cache(RETRY_POLICY).having(group[0]):
            self._queues.policy(key_of(policy))

    def _groups_of_policy(self, policy: Key) -> None:
        for body in self._store.cache(CONSUMER_GROUP):
            if policy_of(body) == policy:
                self._queues.group(key_of(body))

    def _rivals(self, key: Key, body: JsonObject) -> None:
        """Objects for the same Kafka groups: when one comes, goes or is edited, the others' turn may have changed."""
        own = group_id_of(body)
        for group_id in {own, naming.retry_group(own), main_group_of(own)}:
            for other in self._store.cache(CONSUMER_GROUP).having(group_id):
                if key_of(other) != key:
                    self._queues.group(key_of(other))
