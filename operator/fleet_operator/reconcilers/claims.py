"""Ownership when several ConsumerGroups claim one Kafka group: the oldest wins.

They may be in one namespace or in two, and use one KafkaCluster or two. All that Kafka keeps for a group (commits,
retry topics) belongs to the owner of the group.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.refs import cluster_of, group_id_of, main_group_of, policy_of
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, JsonObject
from fleet_operator.planning.claims import Claim, are_rivals, older_owner
from fleet_operator.reconcilers.context import Context
from fleet_operator.runtime.cache import key_of


def older_claim(context: Context, body: JsonObject) -> Claim | None:
    """The older claim on one of the same Kafka groups, if another object has one.

    A group with retries needs two: its own, and that of its retry workers.
    """
    found = (older_owner(mine, [other]) for mine, other in _rivals(context, body))
    return min((claim for claim in found if claim), key=lambda claim: claim.created_at, default=None)


def heir_of(context: Context, body: JsonObject) -> Claim | None:
    """The oldest other claim on one of the same Kafka groups, also when this object's own is older.

    When this object goes, that one takes over what is kept in Kafka.
    """
    found = (other for mine, other in _rivals(context, body) if are_rivals(mine, other))
    return min(found, key=lambda claim: claim.age, default=None)


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
    )
