"""Ownership when several ConsumerGroups claim one Kafka group: one has it, the others wait.

A fleet that runs keeps its Kafka group, one that has run goes before one that never did, and otherwise the oldest
object wins. So neither a claim that nobody uses nor one that is older than an object that was made again stops a fleet.

Between namespaces a claim needs evidence. A Kafka cluster is identified by the id that its brokers report, and any
broker can report any id. So a claim counts in another namespace only if one broker has answered in both, each time with
the credentials of the KafkaCluster there, and not if these credentials give no right to be a member of the group. That
right is told by the group's coordinator, so it counts only if that broker has answered in both.
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
    `may_read` is the right of the KafkaCluster's login to be a member of the group, as told by the broker with the
    address `coordinator`; None while it is unknown, and without an authorizer everybody has it.
    `asked` is False while this process has not had the time to find out about the group and the right.
    `joined`: the group had members when it was observed last.
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


def is_proven(claim: Claim, beside: Claim) -> bool:
    """True if the right of `claim` is told by a broker that answers `beside` too: anybody can run one that says yes."""
    if claim.may_read is not True:
        return False
    if claim.answered is None or beside.answered is None:
        return True
    return claim.coordinator in claim.answered & beside.answered


def inherits(one: Claim, other: Claim) -> bool:
    """True if `other` takes over what Kafka keeps for the group of `one` when that goes, so that none of it is deleted.

    With an unknown right one of another namespace does only if it seems to run or to have run: a fleet may need its
    commits. Who pretends that keeps topics and commits from being deleted, which an Event tells.
    """
    needed = one.namespace == other.namespace or is_proven(other, one) or other.use <= Use.RAN
    return needed and are_rivals(one, other)


def may_inherit(one: Claim, other: Claim) -> bool:
    """True while it is not known yet whether `other` takes over: after a start of the operator, for a short time."""
    return not inherits(one, other) and not other.asked and other.may_read is None and are_rivals(one, other)


def older_owner(claim: Claim, others: Iterable[Claim]) -> Claim | None:
    """The owner of the group if it is none of `claim`, else None.

    Objects that are being deleted must not be passed: the next one may start at once, as static members keep the two
    apart in Kafka.
    """
    rivals = (other for other in others if are_rivals(claim, other) and other.rank < claim.rank)
    return min((other for other in rivals if _counts(claim, other)), key=lambda rival: rival.rank, default=None)


def _counts(claim: Claim, other: Claim) -> bool:
    """False for a stronger claim of another namespace that lacks the proof of its right.

    It takes nothing from a fleet that runs. Nor does it take anything from a proven right once there was time to prove
    its own, and nobody is in the group: StatefulSets and pods in one's own namespace can be made to show any use.
    """
    if other.namespace == claim.namespace or is_proven(other, claim):
        return True
    return claim.use is not Use.RUNS and not (is_proven(claim, other) and other.asked and not claim.joined)
