"""Ownership when several ConsumerGroups claim one Kafka group: the oldest wins, the others wait.

Between namespaces a claim needs evidence. A Kafka cluster is identified by the id that its brokers report, and any
broker can report any id. So a claim counts in another namespace only if one broker has answered in both, each time with
the credentials of the KafkaCluster there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One object's claim on a Kafka group.

    `cluster` is the Kafka cluster's id; before that is known, a text that is unique to the KafkaCluster object.
    `answered` has the addresses of the brokers that have answered; None where an older operator never recorded them.
    `created_at` is metadata's creationTimestamp (RFC 3339 text in UTC, which sorts by time).
    """

    cluster: str
    group_id: str
    created_at: str
    namespace: str
    name: str
    answered: frozenset[str] | None = None

    @property
    def age(self) -> tuple[str, str, str]:
        """Sort key, oldest first; claims of the same second by namespace and name, so that all operators agree."""
        return (self.created_at, self.namespace, self.name)


def are_rivals(one: Claim, other: Claim) -> bool:
    """True if two claims are on the same group of the same Kafka cluster."""
    if (one.cluster, one.group_id) != (other.cluster, other.group_id):
        return False
    if one.namespace == other.namespace or one.answered is None or other.answered is None:
        return True
    return bool(one.answered & other.answered)


def older_owner(claim: Claim, others: Iterable[Claim]) -> Claim | None:
    """The oldest claim on the same group that is older than `claim`, or None.

    Objects that are being deleted must not be passed: the next one may start at once, as static members keep the two
    apart in Kafka.
    """
    rivals = [other for other in others if are_rivals(claim, other) and other.age < claim.age]
    return min(rivals, key=lambda rival: rival.age, default=None)
