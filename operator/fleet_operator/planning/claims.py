"""Ownership of a Kafka group that several ConsumerGroups claim: one of them owns it, the others wait.

A running fleet keeps its Kafka group. A fleet that has run has precedence over a fleet that has never run. In all other
cases, the oldest object owns the Kafka group. So an unused claim never stops a fleet. This is true even if the claim is
older than the fleet's object, which may have been recreated.

A claim from another namespace counts only with evidence, because any broker can report any cluster id. The same broker
must have answered with the credentials of both KafkaClusters, and the claim's credentials must not be known to lack the
permission to join the group.

Decision: docs/decisions/0026-untrusted-inputs.md.
"""

from dataclasses import dataclass
from enum import IntEnum


class Use(IntEnum):
    """An object's use of a Kafka group. A lower value makes a stronger claim."""

    RUNS = 0  # the object, or a former object of its name, has workers, or its own StatefulSet wants workers
    RAN = 1  # the object has its own StatefulSet, without workers
    NONE = 2
    ASLEEP = 3  # the object does not use the group, and is suspended


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One object's claim on a Kafka group.

    - `cluster`: the Kafka cluster's id; until the id is known, a string unique to the KafkaCluster object.
    - `answered`: addresses of the brokers that have answered with the KafkaCluster's credentials; None if an older
      operator never recorded them.
    - `created_at`: the object's creationTimestamp (RFC 3339 in UTC, which sorts by time).
    - `may_read`: the KafkaCluster's credentials may join the group, as the broker at the address `coordinator`
      reported; None while unknown. Without an authorizer, all credentials may.
    - `asked`: False until this process has had time to query the group and the permission from Kafka.
    - `joined`: the group had members at its last observation.
    """

    cluster: str
    group_id: str
    created_at: str
    namespace: str
    name: str
    answered: frozenset[str] | None = None
    use: Use = Use.NONE
    may_read: bool | None = None
    coordinator: str = ""
    asked: bool = False
    joined: bool = False

    @property
    def rank(self) -> tuple[bool, bool, int, Use, str, str, str]:
        """Sort key for claims; the owner comes first.

        The order of two claims depends only on their own fields. Otherwise three claims could wait for each other in a
        circle. Fleets that run or have run come before all others. Their permission may be unknown, because after a
        restart of the operator all permissions are unknown."""
        known = 1 if self.may_read is None else 0 if self.may_read else 2
        ran = self.use <= Use.RAN
        return (self.use is not Use.RUNS, not ran, known, self.use, self.created_at, self.namespace, self.name)


def are_rivals(one: Claim, other: Claim) -> bool:
    """True if `other` claims the same group of the same cluster. A claim from another namespace needs evidence."""
    if (one.cluster, one.group_id) != (other.cluster, other.group_id):
        return False
    if one.namespace == other.namespace:
        return True
    if other.may_read is False:
        return False
    return one.answered is None or other.answered is None or bool(one.answered & other.answered)


def is_proven(claim: Claim, other: Claim) -> bool:
    """True if a broker that has also answered with the credentials of `other` reported the permission of `claim`. The
    report of any other broker proves nothing, because anybody can run a broker that grants the permission."""
    if claim.may_read is not True:
        return False
    if claim.answered is None or other.answered is None:
        return True
    return claim.coordinator in claim.answered & other.answered


def inherits(one: Claim, other: Claim) -> bool:
    """True if `other` takes over the data that the group of `one` has in Kafka, so that none of the data is deleted.

    A claim from another namespace whose permission is unknown inherits only if its fleet seems to run or to have run,
    because such a fleet may need the commits. So a fleet that only pretends to run can prevent the deletion of topics
    and commits. An Event names the fleet that prevented the deletion."""
    needed = one.namespace == other.namespace or is_proven(other, one) or other.use <= Use.RAN
    return needed and are_rivals(one, other)


def may_inherit(one: Claim, other: Claim) -> bool:
    """True while it is unknown if `other` inherits, because its permission is unknown. This lasts only for a short time
    after the operator starts."""
    return not inherits(one, other) and not other.asked and other.may_read is None and are_rivals(one, other)


def owns_before(claim: Claim, other: Claim) -> bool:
    """True if `other` owns the group instead of `claim`. Callers leave out objects that are being deleted, so that the
    next owner can start at once. Static membership keeps the two fleets apart in Kafka.

    A stronger claim from another namespace may lack a proven permission. Such a claim never takes the group from a
    running fleet. Once its permission has been queried, it also cannot take a group without members from a claim whose
    permission is proven. Otherwise anybody could take a group by faking StatefulSets and pods in their own
    namespace."""
    if not are_rivals(claim, other) or other.rank >= claim.rank:
        return False
    if other.namespace == claim.namespace or is_proven(other, claim):
        return True
    return claim.use is not Use.RUNS and not (is_proven(claim, other) and other.asked and not claim.joined)
