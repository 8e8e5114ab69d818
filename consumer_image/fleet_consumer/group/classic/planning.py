"""Calls of assignors: decodes the members' subscriptions, runs the assignor, then checks and encodes its plan.

Plans are checked because assignors may be user code: a partition assigned twice would be processed twice.
"""

from collections.abc import Iterable, Mapping

from fleet_consumer.assignors import Assignment, Assignor, ClusterView, Subscription
from fleet_consumer.group import messages
from fleet_consumer.group.errors import AssignorFailed
from fleet_consumer.wire.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartitions,
    decode_subscription,
    encode_assignment,
    partitions_by_topic,
)
from fleet_consumer.wire.errors import MalformedMessage
from fleet_consumer.wire.groups import JoinGroupResponseMember, SyncGroupRequestAssignment

ASSIGNMENT_VERSION = 3
"""Version of the assignments that this client writes. A reader that does not know this version reads the assignment as
the newest version that it knows."""
VETTED = frozenset({"cooperative-sticky"})
"""Cooperative assignors that never move a partition directly from one member to another. As in Java, their plans are
not checked for such moves."""


def read_subscriptions(members: Iterable[JoinGroupResponseMember]) -> dict[str, Subscription]:
    """Return subscriptions by member id. An unreadable subscription counts as empty; its member stays in the group."""
    subscriptions = {}
    for member in members:
        try:
            wanted = decode_subscription(member.metadata)
        except MalformedMessage:
            wanted = ConsumerProtocolSubscription(topics=())
        subscriptions[member.member_id] = Subscription(
            topics=wanted.topics,
            user_data=wanted.user_data,
            owned=partitions_by_topic(wanted.owned_partitions),
            generation=wanted.generation_id,
            instance_id=member.group_instance_id,
            rack=wanted.rack_id,
        )
    return subscriptions


def wanted_topics(subscriptions: Mapping[str, Subscription]) -> frozenset[str]:
    return frozenset(topic for subscription in subscriptions.values() for topic in subscription.topics)


def owned_counts(subscriptions: Mapping[str, Subscription]) -> dict[str, int]:
    """Return a lower bound of each topic's partition count: the highest partition number that a member claims to own,
    plus one."""
    counts: dict[str, int] = {}
    for subscription in subscriptions.values():
        for topic, numbers in subscription.owned.items():
            counts[topic] = max(counts.get(topic, 0), max(numbers, default=-1) + 1)
    return counts


def plan(
    assignor: Assignor, cluster: ClusterView, subscriptions: Mapping[str, Subscription], *, cooperative: bool = False
) -> tuple[SyncGroupRequestAssignment, ...]:
    """Run the assignor and encode each member's assignment. Raises AssignorFailed, or any error that the assignor
    raises. `cooperative`: members keep reading during the rebalance, so a moved partition must stay unassigned for one
    generation."""
    plans = assignor.assign(cluster, subscriptions)
    _check(assignor.name, cluster, subscriptions, plans)
    if cooperative and assignor.name not in VETTED:
        _check_nothing_moves_directly(assignor.name, subscriptions, plans)
    return tuple(
        SyncGroupRequestAssignment(member_id=member, assignment=_encode(plans.get(member, Assignment({}))))
        for member in subscriptions
    )


def _encode(share: Assignment) -> bytes:
    return encode_assignment(
        ConsumerProtocolAssignment(
            assigned_partitions=tuple(
                ConsumerProtocolTopicPartitions(topic=topic, partitions=tuple(numbers))
                for topic, numbers in share.partitions.items()
                if numbers
            ),
            user_data=share.user_data,
        ),
        ASSIGNMENT_VERSION,
    )


def _check(
    name: str, cluster: ClusterView, subscriptions: Mapping[str, Subscription], plans: Mapping[str, Assignment]
) -> None:
    unknown = plans.keys() - subscriptions.keys()
    if unknown:
        raise AssignorFailed(
            f"assignor {name!r} assigned partitions to {min(unknown)!r}, which is not a member of the group; "
            "assign to members in `subscriptions` only"
        )
    taken: dict[str, set[int]] = {}
    for member, share in plans.items():
        for topic, numbers in share.partitions.items():
            already, new = taken.setdefault(topic, set()), set(numbers)
            count = cluster.partitions.get(topic, 0)
            if new and (min(new) < 0 or max(new) >= count):
                raise AssignorFailed(
                    f"assignor {name!r} assigned partitions of {topic!r} to {member!r} that do not exist: {numbers}; "
                    f"the topic has {count} partitions"
                )
            if len(new) != len(numbers) or already & new:
                raise AssignorFailed(
                    f"assignor {name!r} assigned a partition of {topic!r} twice; assign each partition to one member"
                )
            already |= new


def _check_nothing_moves_directly(
    name: str, subscriptions: Mapping[str, Subscription], plans: Mapping[str, Assignment]
) -> None:
    """Refuse direct moves, like Java's `ConsumerCoordinator.validateCooperativeAssignment`. The new owner of a
    partition would read it before the old owner knows that it must stop."""
    lost: dict[tuple[str, int], str] = {}
    for member, subscription in subscriptions.items():
        share = plans[member].partitions if member in plans else {}
        for topic, numbers in subscription.owned.items():
            lost |= {(topic, number): member for number in set(numbers).difference(share.get(topic, ()))}
    for member, plan_ in plans.items():
        owned = subscriptions[member].owned
        for topic, numbers in plan_.partitions.items():
            for number in set(numbers).difference(owned.get(topic, ())):
                if (topic, number) in lost:
                    raise AssignorFailed(
                        f"assignor {name!r} is cooperative but moved {topic}-{number} directly from "
                        f"{lost[topic, number]!r} to {member!r}; leave the partition unassigned in one plan, "
                        "so that its old owner revokes it first"
                    )


# Calls into assignors, which may be user code. `coordinator/assignor_calls.py` makes these calls; `handle` never does.


def run_assignor(action: messages.RunAssignor) -> messages.Planned | messages.PlanFailed:
    """Make the group's plan. If the assignor raises an error, that error is the `__cause__` of the error in
    PlanFailed."""
    try:
        assignments = plan(action.assignor, action.cluster, action.subscriptions, cooperative=action.cooperative)
    except AssignorFailed as failure:
        return messages.PlanFailed(action.attempt, failure)
    except Exception as cause:
        return messages.PlanFailed(action.attempt, _failed(action.assignor.name, "", cause))
    return messages.Planned(action.attempt, assignments)


def collect_user_data(action: messages.CollectUserData) -> messages.UserDataCollected | messages.UserDataFailed:
    user_data: dict[str, bytes | None] = {}
    for assignor in action.assignors:
        try:
            found: object = assignor.subscription_user_data(action.attempt.topics)
        except Exception as cause:
            failure = _failed(assignor.name, "subscription_user_data raised ", cause)
            return messages.UserDataFailed(action.attempt, failure)
        if not isinstance(found, bytes | bytearray | memoryview | None):
            seen = f"assignor {assignor.name!r}: subscription_user_data returned {type(found).__name__}"
            return messages.UserDataFailed(action.attempt, AssignorFailed(f"{seen}; return bytes or None"))
        user_data[assignor.name] = None if found is None else bytes(found)
    return messages.UserDataCollected(action.attempt, user_data)


def notify_assignor(action: messages.NotifyAssignor) -> AssignorFailed | None:
    """Notify the assignor of this member's assignment. Returns the error that it raised, or None."""
    try:
        action.assignor.on_assignment(action.assignment, action.generation)
    except Exception as cause:
        return _failed(action.assignor.name, "on_assignment raised ", cause)
    return None


def _failed(name: str, what: str, cause: Exception) -> AssignorFailed:
    failure = AssignorFailed(f"assignor {name!r}: {what}{type(cause).__name__}: {cause}")
    failure.__cause__ = cause
    return failure
