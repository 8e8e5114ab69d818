"""Ownership when several ConsumerGroups claim one Kafka group: one has it, the others wait.

A fleet that runs keeps its Kafka group, one that has run goes before one that never did, and otherwise the oldest
object wins. So neither a claim that nobody uses nor one that is older than an object that was made again stops a fleet.

Between namespaces a claim needs evidence. A Kafka cluster is identified by the id that its brokers report, and any
broker can report any id. So a claim counts in another namespace only if one broker has answered in both, each time with
the credentials of the KafkaCluster there, and not if these credentials give no right to be a member of the group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Use(IntEnum):
    """Use that an object makes of a Kafka group, the strongest claim first."""

    RUNS = 0  # it has workers, also those of a former object of its name, or a StatefulSet of its own that wants some
    RAN = 1  # it has a StatefulSet of its own without workers
    NONE = 2
    ASLEEP = 3  # none, and it is suspended


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One object's claim on a Kafka group.

    `cluster` is the Kafka cluster's id; before that is known, a text that is unique to the KafkaCluster object.
    `answered` has the addresses of the brokers that have answered; None where an older operator never recorded them.
    `created_at` is metadata's creationTimestamp (RFC 3339 text in UTC, which sorts by time).
    `may_read` is the right of the KafkaCluster's login to be a member of the group; None while it is unknown, and
    without an authorizer everybody has it.
    """

    cluster: str
    group_id: str
    created_at: str
    namespace: str
    name: str
    answered: frozenset[str] | None = None
    use: Use = Use.NONE
    may_read: bool | None = None

    @property
    def rank(self) -> tuple[bool, bool, int, Use, str, str, str]:
        """Sort key, the owner first. The same for all pairs, or three claims could wait for each other.

        What is unknown takes nothing from what runs or has run: after a restart all rights are.
        """
        known = 1 if self.may_read is None else 0 if self.may_read else 2
        ran = self.use <= Use.RAN
        return (self.use is not Use.RUNS, not ran, known, self.use, self.created_at, self.namespace, self.name)


def are_rivals(one: Claim, other: Claim) -> bool:
    """True if `other` is a claim that counts for `one`: on the same group of the same Kafka cluster."""
    if (one.cluster, one.group_id) != (other.cluster, other.group_id):
        return False
    if one.namespace == other.namespace:
        return True
    if other.may_read is False:
        return False
    return one.answered is None or other.answered is None or bool(one.answered & other.answered)


def inherits(one: Claim, other: Claim) -> bool:
    """True if `other` takes over what Kafka keeps for the group of `one` when that goes, so that none of it is deleted.

    With an unknown right one of another namespace does only if it runs or has run: a fleet may need its commits, while
    anybody can write an object that never runs, and keep its right unknown.
    """
    needed = one.namespace == other.namespace or other.may_read is True or other.use <= Use.RAN
    return needed and are_rivals(one, other)


def older_owner(claim: Claim, others: Iterable[Claim]) -> Claim | None:
    """The owner of the group if it is none of `claim`, else None.

    Objects that are being deleted must not be passed: the next one may start at once, as static members keep the two
    apart in Kafka.
    """
    rivals = [other for other in others if are_rivals(claim, other) and other.rank < claim.rank]
    owner = min(rivals, key=lambda rival: rival.rank, default=None)
    unproven = owner is not None and owner.may_read is None and owner.namespace != claim.namespace
    return None if claim.use is Use.RUNS and unproven else owner
