"""Finds the rivals of a ConsumerGroup: other ConsumerGroups that claim the same Kafka group. `planning.claims` decides
which ConsumerGroup owns the Kafka group. Rivals may be in different namespaces and refer to different KafkaClusters.
Only the owner uses the Kafka group's commits and retry topics.

Anybody may create any number of large objects for one Kafka group, and each reconcile of such an object searches for
rivals. Therefore the search reads only cached summaries. Rivals without workers are also reduced: of those with the
same namespace, KafkaCluster and Kafka group, only the strongest is compared.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.kafkacluster import ClusterIdentity
from fleet_operator.api.v1alpha1.refs import cluster_of, group_id_of, main_group_of, policy_of
from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, OPERATOR_STATE, POD, STATEFUL_SET, JsonObject
from fleet_operator.planning.claims import Claim, Use, inherits, may_inherit, owns_before
from fleet_operator.planning.fleet.parts import MAIN, RETRY
from fleet_operator.planning.objects import has_owner
from fleet_operator.planning.observation import ClusterObservation, GroupObservation, RetryObservation
from fleet_operator.planning.state.document import UnreadableStateError
from fleet_operator.reconcilers.context import Context
from fleet_operator.reconcilers.states import state_name
from fleet_operator.runtime.cache import Key, key_of

ASKED_SECONDS: Final = 300.0
"""Time after which the observer of a restarted operator counts as having queried every group of its KafkaCluster. It is
measured in seconds since the cluster became reachable."""


class Claimant(NamedTuple):
    """The facts that determine a ConsumerGroup's claims. `groups`: the claimed Kafka groups, which are the main group
    and, with retries, the group of the retry workers."""

    uid: str
    created_at: str
    cluster: Key
    group_id: str
    groups: tuple[str, ...]
    suspended: bool
    deleting: bool


def claimant_of(body: JsonObject) -> Claimant | None:
    """Summarize a ConsumerGroup. Return None if its spec is invalid, which the group's own reconcile reports."""
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
    """True if a ConsumerGroup's OperatorState shows that the group has ever published retry policies."""
    retries = (state.get("data") or {}).get("retries")
    return isinstance(retries, dict) and retries.get("published_at") is not None


def _with_past(context: Context, key: Key, claimant: Claimant) -> Claimant:
    """Add the retry group to the claimed groups of a ConsumerGroup that had retries earlier."""
    retry_group = naming.retry_group(claimant.group_id)
    state = (key[0], state_name(CONSUMER_GROUP, key[1]))
    if retry_group in claimant.groups or not context.store.cache(OPERATOR_STATE).summary_of(state):
        return claimant
    return claimant._replace(groups=(claimant.group_id, retry_group))


@dataclass(frozen=True, slots=True)
class Rivals:
    """Claims of other ConsumerGroups that affect one ConsumerGroup.

    - `older`: the strongest claim that has precedence over this object's own claim. The claims are on its main group
      or, with retries, on the group of its retry workers.
    - `heir`: the claim that takes over the commits and topics in Kafka when this object is deleted: the strongest claim
      of another object. It may be weaker than this object's own claim.
    - `unsure`: another object may be the heir, but the operator does not know yet if that object's credentials permit
      joining the group.
    """

    older: Claim | None = None
    heir: Claim | None = None
    unsure: bool = False


NO_RIVALS: Final = Rivals()


def find_rivals(context: Context, body: JsonObject) -> Rivals:
    """Find the rivals of a ConsumerGroup from the caches and the newest observations."""
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
        if owns_before(own[shared], theirs):
            older.append(theirs)
        if inherits(own[shared], theirs):
            heirs.append(theirs)
        unsure = unsure or may_inherit(own[shared], theirs)
    return Rivals(older=_strongest(older), heir=_strongest(heirs), unsure=unsure)


def _strongest(claims: Iterable[Claim]) -> Claim | None:
    return min(claims, key=lambda claim: claim.rank, default=None)


def _rivals(context: Context, own: Key, mine: Claimant) -> Iterator[tuple[Key, Claimant, str]]:
    """Yield each rival that is not being deleted, with the Kafka group id that both objects claim. The two objects may
    refer to different KafkaClusters."""
    groups, fleets, pods = (context.store.cache(kind) for kind in (CONSUMER_GROUP, STATEFUL_SET, POD))
    idle: dict[tuple[str, Key, str], tuple[bool, str, Key, Claimant]] = {}
    # A rival claims our main group or our retry group, or our main group is its retry group.
    for group_id in sorted({*mine.groups, main_group_of(mine.group_id)}):
        for key, other in groups.summaries_having(group_id):
            if key == own or other is None or other.deleting:
                continue
            other = _with_past(context, key, other)
            works = pods.has_any(key) or any((key[0], part.child(key[1])) in fleets for part in (MAIN, RETRY))
            for shared in (each for each in mine.groups if each in other.groups):
                if works:
                    yield key, other, shared
                    continue
                place, rank = (key[0], other.cluster, shared), (other.suspended, other.created_at, key, other)
                if place not in idle or rank < idle[place]:
                    idle[place] = rank
    for (_, _, shared), (_, _, key, other) in sorted(idle.items()):
        yield key, other, shared


class _Claims:
    """Builds claims; reads each KafkaCluster at most once."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clusters: dict[Key, tuple[ClusterIdentity, ClusterObservation | None]] = {}

    def make(self, key: Key, claimant: Claimant, group_id: str) -> Claim:
        """Build the claim of a ConsumerGroup on a Kafka group.

        Two KafkaCluster objects for one Kafka cluster count as the same cluster once the cluster id is known. The id
        comes from the KafkaCluster's stored state, so it is known even while the brokers do not answer, or while
        another Kafka cluster answers at their addresses.
        """
        identity, seen = self._cluster(claimant.cluster)
        known = identity.cluster_id
        consistent = not known or identity.answered is not None
        group = _observed(seen, claimant, group_id)
        return Claim(
            cluster=known or (seen.cluster_id if seen else None) or "/".join(claimant.cluster),
            group_id=group_id,
            created_at=claimant.created_at,
            namespace=key[0],
            name=key[1],
            answered=frozenset({*(seen.answered if seen else ()), *(identity.answered or ())}) if consistent else None,
            use=self._use(key, claimant),
            may_read=group.may_read if group is not None else None,
            coordinator=_coordinator(seen, group),
            asked=group is not None or _had_time(seen),
            joined=group is not None and bool(group.members),
        )

    def _cluster(self, key: Key) -> tuple[ClusterIdentity, ClusterObservation | None]:
        if key not in self._clusters:
            body, identity = self._context.store.get(KAFKA_CLUSTER, key), ClusterIdentity()
            if body is not None:
                with suppress(UnreadableStateError):  # the KafkaCluster's own reconcile reports the error
                    identity = self._context.states.read(body, ClusterIdentity)
            self._clusters[key] = identity, self._context.observers.latest(key)
        return self._clusters[key]

    def _use(self, key: Key, claimant: Claimant) -> Use:
        """Determine from a ConsumerGroup's StatefulSets and pods how it uses its Kafka groups.

        StatefulSets of other owners, and their pods, do not count, because anybody may have applied them. Pods whose
        StatefulSet no longer exists count, because they may belong to the former fleet of a recreated object.
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
    """The observation of the group `group_id`, which is the claimant's main group or the group of its retry workers;
    None if the group was not observed."""
    group = seen.groups.get(claimant.group_id) if seen is not None else None
    return group if group is None or group_id == group.group_id else group.retry


def _coordinator(seen: ClusterObservation | None, group: GroupObservation | RetryObservation | None) -> str:
    """The address of the coordinator that reported the group's observation; empty while unknown."""
    if seen is None or group is None:
        return ""
    return next((f"{each.host}:{each.port}" for each in seen.brokers if each.id == group.coordinator_id), "")


def _had_time(seen: ClusterObservation | None) -> bool:
    """True if the observer has had enough time to query every group (ASKED_SECONDS). Also True if the cluster is
    confirmed to be unreachable."""
    if seen is None or not seen.reachable:
        return seen is not None and not seen.unconfirmed
    return seen.reachable_since is not None and seen.observed_at - seen.reachable_since >= ASKED_SECONDS
