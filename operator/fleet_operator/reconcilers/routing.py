"""Determines which objects must be reconciled after an object has changed.

`Router` runs on the event loop for every watch event, so it only updates caches and queues keys. If only the status of
a custom resource has changed, nothing is queued, because the operator itself wrote the status. A status change of a pod
or StatefulSet queues its owner. The functions below `Router` find the objects that depend on a changed object of each
kind; `registry` uses these functions.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.model import HANDLER_LABEL
from fleet_operator.api.v1alpha1.refs import cluster_of, group_id_of, group_of, main_group_of, policy_of, source_of
from fleet_operator.clients import kinds
from fleet_operator.planning.labels import BACKFILL_LABEL, GROUP_LABEL, POLICY_LABEL, RECORD, REDRIVE_LABEL, label_of
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.runtime.cache import Change, Key, ObjectCache, WatchedKind, key_of, version_of
from fleet_operator.runtime.dispatcher import Queues
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.store import Store

HANDLER_SOURCE: Final = "true"
"""Value of the handler label on ConfigMaps in which users provide a handler's source."""
HANDLER_SELECTOR: Final = f"{HANDLER_LABEL} in ({HANDLER_SOURCE},{RECORD})"
"""Selects users' handler ConfigMaps and the operator's own ConfigMaps, so that one watch delivers all of them. Both
have a label with the same key, because a label selector has no "or" across keys."""

CALM_SECONDS: Final = 10.0
"""Delay in seconds before a group is reconciled if only its offsets changed, so that one reconcile handles several
changes."""

SETTLE_SECONDS: Final = 0.2
"""Delay in seconds before a changed child queues its owner, so that one reconcile handles several changes."""

OWNERS: Final = ((REDRIVE_LABEL, kinds.REDRIVE), (BACKFILL_LABEL, kinds.BACKFILL), (GROUP_LABEL, kinds.CONSUMER_GROUP))
"""Labels that name a child's owner, each with the owner's kind. If a child has several of these labels, the first
counts."""

RUNS: Final = (kinds.REDRIVE, kinds.BACKFILL, kinds.OFFSET_RESET)
STATE_OWNERS: Final = {
    kind.kind: kind for kind in (kinds.CONSUMER_GROUP, kinds.RETRY_POLICY, kinds.KAFKA_CLUSTER, *RUNS)
}
"""Kinds whose objects have an OperatorState, keyed by the kind's name."""

REFERENCES: Final[tuple[tuple[kinds.Kind, Callable[[kinds.JsonObject], Key | None]], ...]] = (
    (kinds.KAFKA_CLUSTER, cluster_of),
    (kinds.RETRY_POLICY, policy_of),
    (kinds.CONFIG_MAP, source_of),
)
"""The kinds that a ConsumerGroup refers to, each with a function that returns the referenced object's key."""

Address = tuple[kinds.Kind, Key]
Caches = Callable[[kinds.Kind], ObjectCache]


class Router:
    """Translates watch events and observations into queued keys. Implements the `Listener` of the observers."""

    def __init__(self, store: Store, watched: Iterable[WatchedKind], queues: Queues, metrics: Metrics) -> None:
        self.moved: list[Callable[[Key], bool]] = []
        """Functions that are called with a group whose offsets changed; each returns True if the group must be
        reconciled."""
        self._store = store
        self._watched = {each.kind: each for each in watched}
        self._queues = queues
        self._metrics = metrics

    def observed(self, kind: kinds.Kind, body: kinds.JsonObject, gone: bool) -> None:
        self._metrics.watch_events.labels(kind.kind).inc()
        cache = self._store.cache(kind)
        key, uid = key_of(body), body["metadata"]["uid"]
        self.changed(kind, body, cache.remove(key, uid, version_of(body)) if gone else cache.observe(body))

    def changed(self, kind: kinds.Kind, body: kinds.JsonObject, change: Change) -> None:
        """Queue the dependents of a changed object, and the object itself if its kind has a controller."""
        watched = self._watched[kind]
        if change is Change.NOTHING or (change is Change.STATUS and not watched.on_status):
            return
        if kind in self._queues:
            queue = self._queues[kind]
            (queue.add_new if change is Change.NEW else queue.add)(key_of(body))
        for of, key in watched.dependents(body, self._store.cache):
            # Changes of children come in bursts: a pod is created, starts, and is then counted in its StatefulSet's
            # status.
            self._queues[of].add_after(key, SETTLE_SECONDS if watched.on_status else 0.0)

    def cluster_changed(self, cluster: Key) -> None:
        self._queues[kinds.KAFKA_CLUSTER].add(cluster)

    def group_changed(self, group: Key, *, urgent: bool) -> None:
        if urgent:
            self._queues[kinds.CONSUMER_GROUP].add(group)
        elif not self.moved or any(moved(group) for moved in self.moved):
            self._queues[kinds.CONSUMER_GROUP].add_after(group, CALM_SECONDS)

    def cluster_polled(self, cluster: Key, observation: ClusterObservation, seconds: float) -> None:
        self._metrics.observation_seconds.labels(*cluster).observe(seconds)
        if observation.reachable:
            self._metrics.observed_at.labels(*cluster).set(observation.observed_at)
        else:
            self._metrics.observation_failures.labels(*cluster, observation.reason).inc()


def group_index(body: kinds.JsonObject) -> Hashable:
    """The index key of a child: namespace and name of the ConsumerGroup in its label; None without the label."""
    group = label_of(body, GROUP_LABEL)
    return None if group is None else (body["metadata"]["namespace"], group)


def record_index(body: kinds.JsonObject) -> Hashable:
    """The index key of a ConfigMap: the RetryPolicy whose content it stores or, for other ConfigMaps, the
    ConsumerGroup."""
    policy = label_of(body, POLICY_LABEL)
    return group_index(body) if policy is None else (kinds.RETRY_POLICY.kind, body["metadata"]["namespace"], policy)


def references_of_group(body: kinds.JsonObject) -> Iterator[Hashable]:
    """Yield the objects that a ConsumerGroup refers to, as index keys. When one of these objects changes, the groups
    that refer to it are found by its key."""
    for kind, referred_by in REFERENCES:
        try:
            referred = referred_by(body)
        except (KeyError, TypeError, AttributeError):  # the spec is invalid, which the group's own reconcile reports
            continue
        if referred is not None:
            yield kind, referred


def groups_that_refer(body: kinds.JsonObject, cache: Caches) -> Iterator[Address]:
    reference = (kinds.kind_of(body), key_of(body))
    return ((kinds.CONSUMER_GROUP, key) for key in cache(kinds.CONSUMER_GROUP).keys_having(reference))


def dependents_of_group(body: kinds.JsonObject, cache: Caches) -> Iterator[Address]:
    """Yield a ConsumerGroup's RetryPolicies, runs and rivals.

    All RetryPolicies of the namespace are included: after an edit, it is no longer known to which policy the group
    referred before. Rivals are other ConsumerGroups for the same Kafka groups. They are included, because a change of
    this ConsumerGroup may make a rival the owner of the Kafka group.
    """
    key, own = key_of(body), group_id_of(body)
    yield from ((kinds.RETRY_POLICY, policy) for policy in cache(kinds.RETRY_POLICY).keys_having(key[0]))
    for kind in RUNS:
        yield from ((kind, run) for run in cache(kind).keys_having(key))
    for group_id in {own, naming.retry_group(own), main_group_of(own)}:
        rivals = cache(kinds.CONSUMER_GROUP).keys_having(group_id)
        yield from ((kinds.CONSUMER_GROUP, rival) for rival in rivals if rival != key)


def group_of_run(body: kinds.JsonObject, _: Caches) -> Iterator[Address]:
    """Yield the ConsumerGroup of a run, because the run may stop the ConsumerGroup's workers."""
    yield kinds.CONSUMER_GROUP, group_of(body)


def owner_of_child(body: kinds.JsonObject, _: Caches) -> Iterator[Address]:
    """Yield the owner of a child: a run or a ConsumerGroup. A child of a run also has the label of the run's group."""
    for label, kind in OWNERS:
        if (name := label_of(body, label)) is not None:
            yield kind, (body["metadata"]["namespace"], name)
            return


def owner_of_state(body: kinds.JsonObject, _: Caches) -> Iterator[Address]:
    for reference in body["metadata"].get("ownerReferences") or ():
        kind = STATE_OWNERS.get(reference.get("kind"))
        if kind is not None:
            yield kind, (body["metadata"]["namespace"], reference["name"])


def dependents_of_config_map(body: kinds.JsonObject, cache: Caches) -> Iterator[Address]:
    """Yield the owner of a ConfigMap, and the groups whose handler source it contains."""
    yield from owner_of_child(body, cache)
    if label_of(body, HANDLER_LABEL) == HANDLER_SOURCE:
        yield from groups_that_refer(body, cache)
