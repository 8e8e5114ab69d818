"""Ownership when several ConsumerGroups claim one Kafka group, as `planning.claims` decides it.

They may be in one namespace or in two, and use one KafkaCluster or two. All that Kafka keeps for a group (commits,
retry topics) belongs to the owner of the group.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.refs import cluster_of, group_id_of, main_group_of, policy_of
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, POD, STATEFUL_SET, JsonObject
from fleet_operator.planning.claims import Claim, Use, inherits, older_owner
from fleet_operator.planning.fleet.parts import MAIN, RETRY
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.reconcilers.context import Context, is_owned_by
from fleet_operator.runtime.cache import key_of


def older_claim(context: Context, body: JsonObject) -> Claim | None:
    """The claim of the object that owns one of the same Kafka groups, if another one does.

    A group with retries needs two: its own, and that of its retry workers.
    """
    found = (older_owner(mine, [other]) for mine, other in _rivals(context, body))
    return min((claim for claim in found if claim), key=lambda claim: claim.rank, default=None)


def heir_of(context: Context, body: JsonObject) -> Claim | None:
    """The strongest other claim on one of the same Kafka groups, also when this object's own is stronger.

    When this object goes, that one takes over what is kept in Kafka.
    """
    found = (other for mine, other in _rivals(context, body) if inherits(mine, other))
    return min(found, key=lambda claim: claim.rank, default=None)


def _rivals(context: Context, body: JsonObject) -> Iterator[tuple[Claim, Claim]]:
    """This object's claims, each with another living object's claim on the same group, be it on another cluster."""
    groups = context.store.cache(CONSUMER_GROUP)
    mine = set(_groups_of(body))
    # Whoever shares one of them has the same group id, has ours for its retry group, or is called like our retry group.
    for group_id in sorted(mine | {main_group_of(group_id_of(body))}):
        for other in groups.having(group_id):
            if key_of(other) != key_of(body) and not other["metadata"].get("deletionTimestamp"):
                for shared in sorted(mine & set(_groups_of(other))):
                    yield _claim(context, body, shared), _claim(context, other, shared)


def _groups_of(body: JsonObject) -> Iterator[str]:
    """The Kafka groups that an object needs for itself."""
    yield group_id_of(body)
    if policy_of(body) is not None:
        yield naming.retry_group(group_id_of(body))


def _claim(context: Context, body: JsonObject, group_id: str) -> Claim:
    """A claim; two KafkaCluster objects for one Kafka cluster are the same once their cluster id is known.

    A cluster that does not answer us is still the one that it was when it did: its object says which, and also where
    another one answers by now.
    """
    cluster = cluster_of(body)
    seen = context.observers.latest(cluster)
    kafka = context.store.get(KAFKA_CLUSTER, cluster) or {}
    status = kafka.get("status") or {}
    known = status.get("clusterId")
    noted = not known or "answered" in status
    namespace, name = key_of(body)
    return Claim(
        cluster=known or (seen.cluster_id if seen else None) or "/".join(cluster),
        group_id=group_id,
        created_at=body["metadata"].get("creationTimestamp", ""),
        namespace=namespace,
        name=name,
        answered=frozenset({*(seen.answered if seen else ()), *status.get("answered", ())}) if noted else None,
        use=_use(context, body),
        may_read=_may_read(seen, body, group_id),
    )


def _may_read(seen: ClusterObservation | None, body: JsonObject, group_id: str) -> bool | None:
    group = seen.groups.get(group_id_of(body)) if seen is not None else None
    if group is None or group_id == group.group_id:
        return None if group is None else group.may_read
    return group.retry.may_read if group.retry is not None else None


def _use(context: Context, body: JsonObject) -> Use:
    """The use that an object makes of its Kafka groups, as its StatefulSets and pods show it.

    A StatefulSet that does not belong to this very object shows nothing, nor do its pods: anybody may have applied it.
    Pods of one that is gone count: an object that was made again finds those of its former fleet.
    """
    store, (namespace, name) = context.store, key_of(body)
    keys = ((namespace, part.child(name)) for part in (MAIN, RETRY))
    found = [fleet for key in keys if (fleet := store.get(STATEFUL_SET, key)) is not None]
    fleets = [fleet for fleet in found if is_owned_by(fleet, body)]
    strange = {fleet["metadata"]["uid"] for fleet in found if not is_owned_by(fleet, body)}
    pods = store.cache(POD).having((namespace, name))
    owners = (owner for pod in pods for owner in pod["metadata"].get("ownerReferences") or ())
    if any(owner.get("kind") == STATEFUL_SET.kind and owner.get("uid") not in strange for owner in owners):
        return Use.RUNS
    if any((fleet.get("spec") or {}).get("replicas", 1) != 0 for fleet in fleets):
        return Use.RUNS
    if fleets:
        return Use.RAN
    return Use.ASLEEP if body["spec"].get("suspend") else Use.NONE
