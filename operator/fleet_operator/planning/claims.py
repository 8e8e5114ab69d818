"""Two ConsumerGroup objects for one Kafka group: the older one works, the younger waits and says so.

Between namespaces a claim must be backed. Kafka clusters are told apart by the id that their brokers report, and
anybody's own broker can report any id; so a claim counts in another namespace only if a broker that has answered there
has answered here as well, each time with the credentials of the KafkaCluster at hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One object's claim on a Kafka group.

    `cluster` identifies the Kafka cluster: its id once it is known, before that any text that is unique to the
    KafkaCluster object. `answered` has the addresses of the brokers that have answered; None where that was never
    noted, by an operator from before. `created_at` is metadata's creationTimestamp (RFC 3339 text in UTC, which sorts
    by time).
    """

    cluster: str
    group_id: str
    created_at: str
    namespace: str
    name: str
    answered: frozenset[str] | None = None

    @property
    def age(self) -> tuple[str, str, str]:
        """Sorts the oldest first; of the same second by namespace and name, so that all operators agree."""
        return (self.created_at, self.namespace, self.name)


def are_rivals(one: Claim, other: Claim) -> bool:
    """Whether two claims are on the same group of the same Kafka cluster."""
    if (one.cluster, one.group_id) != (other.cluster, other.group_id):
        return False
    if one.namespace == other.namespace or one.answered is None or other.answered is None:
        return True
    return bool(one.answered & other.answered)


def older_owner(claim: Claim, others: Iterable[Claim]) -> Claim | None:
    """The claim that goes before `claim` on the same group, or None.

    Objects that are being deleted must not be passed: the next one may start at once, static members keep the two apart
    in Kafka.
    """
    rivals = [other for other in others if are_rivals(claim, other) and other.age < claim.age]
    return min(rivals, key=lambda rival: rival.age, default=None)
