"""Two ConsumerGroup objects for one Kafka group: the older one works, the younger waits and says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One object's claim on a Kafka group.

    `cluster` identifies the Kafka cluster: its id once it is known, before that any text that is unique to the
    KafkaCluster object. `created_at` is metadata's creationTimestamp (RFC 3339 text in UTC, which sorts by time).
    """

    cluster: str
    group_id: str
    created_at: str
    namespace: str
    name: str

    @property
    def _age(self) -> tuple[str, str, str]:
        return (self.created_at, self.namespace, self.name)


def older_owner(claim: Claim, others: Iterable[Claim]) -> Claim | None:
    """The claim that goes before `claim` on the same group, or None.

    Objects of the same second are ordered by namespace and name, so that all operators agree. Objects that are being
    deleted must not be passed: the next one may start at once, static members keep the two apart in Kafka.
    """
    rivals = [
        other
        for other in others
        if (other.cluster, other.group_id) == (claim.cluster, claim.group_id) and other._age < claim._age
    ]
    return min(rivals, key=lambda rival: rival._age, default=None)
