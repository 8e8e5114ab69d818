"""Ownership when several ConsumerGroups claim one Kafka group, as `planning.claims` decides it.

They may be in one namespace or in two, and use one KafkaCluster or two. All that Kafka keeps for a group (commits,
retry topics) belongs to the owner of the group.

Anybody may write any number of objects for one Kafka group, each as large as a spec may be, and each reconcile of any
of them looks for its rivals. So rivals are found by summaries in the cache, and of those in one namespace that have no
workers only the strongest is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.kafkacluster import ClusterIdentity
from fleet_operator.api.v1alpha1.refs import cluster_of, group_id_of, main_group_of, policy_of
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, OPERATOR_STATE, POD, STATEFUL_SET, JsonObject
from fleet_operator.planning.claims import Claim, Use, inherits, may_inherit, older_owner
from fleet_operator.planning.fleet.parts import MAIN, RETRY
from fleet_operator.planning.objects import has_owner
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, RetryObservation
from fleet_operator.planning.state.document import UnreadableStateError
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.states import state_name
from fleet_operator.runtime.cache import Key, key_of

ASKED_SECONDS: Final = 300.0
"""Time of good observations after which every group of a KafkaCluster has been observed, also after a restart."""


class Claimant(NamedTuple):
    """The facts of a ConsumerGroup that its claims rest on.

    `groups` are the Kafka groups that it needs for itself: its own, and with retries that of its retry workers.
    """

    uid: str
    created_at: str
    cluster: Key
    group_id: str
    groups: tuple[str, ...]
    suspended: bool
    deleting: bool


def claimant_of(body: JsonObject) -> Claimant | None:
    """The summary of a ConsumerGroup; None for a spec that the CRD refuses, which its reconcile reports."""
    metadata = body["metadata"]
    try:
        group_id = group_id_of(body)
        return Claimant(
            uid=metadata["uid"],
            created_at=metadata.get("creationTimestamp", ""),
            cluster=cluster_of(body),
            group_id=group_id,
            groups=(group_id, naming.retry_group(group_id)) if policy_of(body) is not None else (group_id,),
            suspended=bool(body["spec"].get("suspend")),
            deleting="deletionTimestamp" in metadata,
        )
    except (KeyError, TypeError, AttributeError):
        return None


def had_retries(state: JsonObject) -> bool:
    """The summary of an OperatorState: True for that of a ConsumerGroup that published retry policies."""
    retries = (state.get("data") or {}).get("retries")
    return isinstance(retries, dict) and retries.get("published_at") is not None


def _with_past(context: Context, key: Key, claimant: Claimant) -> Claimant:
    """A claimant with the retry group that it has since it had retries."""
    retry_group = naming.retry_group(claimant.group_id)
    state = (key[0], state_name(CONSUMER_GROUP, key[1]))
    if retry_group in claimant.groups or not context.store.cache(OPERATOR_STATE).summary_of(state):
        return claimant
    return claimant._replace(groups=(claimant.group_id, retry_group))


@dataclass(frozen=True, slots=True)
class Rivals:
    """The claims of others that matter to an object.

    - `older`: that of the object which owns one of the same Kafka groups, if another one does. A group with retries
      needs two: its own, and that of its retry workers.
    - `heir`: the strongest other claim, also when this object's own is stronger: when it goes, that one takes over what
      is kept in Kafka.
    - `unsure`: there may be an heir whose right has not been asked for yet.
    """

    older: Claim | None = None
    heir: Claim | None = None
    unsure: bool = False


NO_RIVALS: Final = Rivals()


def find_rivals(context: Context, body: JsonObject) -> Rivals:
    """The rivals of a ConsumerGroup, by the caches and the newest observations."""
    found = claimant_of(body)
    if found is None:
        return NO_RIVALS
    mine = _with_past(context, key_of(body), found)
    claims, older, heirs, unsure = _Claims(context), list[Claim](), list[Claim](), False
    own: dict[str, Claim] = {}
    for key, other, shared in _rivals(context, key_of(body), mine):
        if shared not in own:
            own[shared] = claims.make(key_of(body), mine, shared)
        theirs = claims.make(key, other, shared)
        if (owner := older_owner(own[shared], [theirs])) is not None:
            older.append(owner)
        if inherits(own[shared], theirs):
            heirs.append(theirs)
        unsure = unsure or may_inherit(own[shared], theirs)
    return Rivals(older=_strongest(older), heir=_strongest(heirs), unsure=unsure)


def _strongest(claims: Iterable[Claim]) -> Claim | None:
    return min(claims, key=lambda claim: claim.rank, default=None)


def _rivals(context: Context, own: Key, mine: Claimant) -> Iterator[tuple[Key, Claimant, str]]:
    """Other living objects with a Kafka group that they share with this one, be it on another cluster."""
    groups = context.store.cache(CONSUMER_GROUP)
    idle: dict[tuple[str, Key, str], tuple[bool, str, Key, Claimant]] = {}
    # Whoever shares one of them has the same group id, has ours for its retry group, or is called like our retry group.
    for group_id in sorted({*mine.groups, main_group_of(mine.group_id)}):
        for key, other in groups.summaries_having(group_id):
            if key == own or other is None or other.deleting:
                continue
            other = _with_past(context, key, other)
            works = _has_children(context, key)
            for shared in (each for each in mine.groups if each in other.groups):
                if works:
                    yield key, other, shared
                    continue
                place, standing = (key[0], other.cluster, shared), (other.suspended, other.created_at, key, other)
                if place not in idle or standing < idle[place]:
                    idle[place] = standing
    for (_, _, shared), (_, _, key, other) in sorted(idle.items()):
        yield key, other, shared


def _has_children(context: Context, key: Key) -> bool:
    """True if there are objects that may be the workers of a ConsumerGroup."""
    stateful_sets = context.store.cache(STATEFUL_SET)
    found = any((key[0], part.child(key[1])) in stateful_sets for part in (MAIN, RETRY))
    return found or context.store.cache(POD).has_any(key)


class _Claims:
    """Claims, of which many may be on one KafkaCluster."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clusters: dict[Key, tuple[ClusterIdentity, ClusterObservation | None]] = {}

    def make(self, key: Key, claimant: Claimant, group_id: str) -> Claim:
        """The claim of an object on a group; two KafkaCluster objects for one Kafka cluster are the same once their
        cluster id is known.

        A cluster that does not answer us is still the one that it was when it did: its state says which, and also
        where another one answers by now.
        """
        identity, seen = self._cluster(claimant.cluster)
        known = identity.cluster_id
        noted = not known or identity.answered is not None
        group = _observed(seen, claimant, group_id)
        return Claim(
            cluster=known or (seen.cluster_id if seen else None) or "/".join(claimant.cluster),
            group_id=group_id,
            created_at=claimant.created_at,
            namespace=key[0],
            name=key[1],
            answered=frozenset({*(seen.answered if seen else ()), *(identity.answered or ())}) if noted else None,
            use=self._use(key, claimant),
            may_read=group.may_read if group is not None else None,
            coordinator=_coordinator(seen, group),
            asked=group is not None or _had_time(seen),
            joined=group is not None and bool(group.members),
        )

    def _cluster(self, key: Key) -> tuple[ClusterIdentity, ClusterObservation | None]:
        """The identity of a KafkaCluster, and its newest observation."""
        if key not in self._clusters:
            body, identity = self._context.store.get(KAFKA_CLUSTER, key), ClusterIdentity()
            if body is not None:
                with suppress(UnreadableStateError):  # its own reconcile reports it in a condition
                    identity = self._context.states.read(body, ClusterIdentity)
            self._clusters[key] = identity, self._context.observers.latest(key)
        return self._clusters[key]

    def _use(self, key: Key, claimant: Claimant) -> Use:
        """The use that an object makes of its Kafka groups, as its StatefulSets and pods show it.

        A StatefulSet that does not belong to this very object shows nothing, nor do its pods: anybody may have applied
        it. Pods of one that is gone count: an object that was made again finds those of its former fleet.
        """
        store, (namespace, name) = self._context.store, key
        names = {part.child(name) for part in (MAIN, RETRY)}
        found = [fleet for each in names if (fleet := store.get(STATEFUL_SET, (namespace, each))) is not None]
        fleets = [fleet for fleet in found if has_owner(fleet, claimant.uid)]
        strange = {fleet["metadata"]["uid"] for fleet in found if not has_owner(fleet, claimant.uid)}
        pods = store.cache(POD).having(key)
        owners = (owner for pod in pods for owner in pod["metadata"].get("ownerReferences") or ())
        ours = (owner for owner in owners if owner.get("kind") == STATEFUL_SET.kind and owner.get("name") in names)
        if any(owner.get("uid") not in strange for owner in ours):
            return Use.RUNS
        if any((fleet.get("spec") or {}).get("replicas", 1) != 0 for fleet in fleets):
            return Use.RUNS
        if fleets:
            return Use.RAN
        return Use.ASLEEP if claimant.suspended else Use.NONE


def _observed(
    seen: ClusterObservation | None, claimant: Claimant, group_id: str
) -> GroupObservation | RetryObservation | None:
    """The observation of a claimed group: the claimant's own one, or that of its retry workers."""
    group = seen.groups.get(claimant.group_id) if seen is not None else None
    return group if group is None or group_id == group.group_id else group.retry


def _coordinator(seen: ClusterObservation | None, group: GroupObservation | RetryObservation | None) -> str:
    """The address of the broker that told what is known of a group; empty while unknown."""
    if seen is None or group is None:
        return ""
    return next((f"{each.host}:{each.port}" for each in seen.brokers if each.id == group.coordinator_id), "")


def _had_time(seen: ClusterObservation | None) -> bool:
    """True if a group that is missing from the observations is so for a reason of its own."""
    if seen is None or not seen.reachable:
        return seen is not None and not seen.doubtful
    return seen.reachable_since is not None and seen.observed_at - seen.reachable_since >= ASKED_SECONDS
