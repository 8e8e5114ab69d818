"""The leader's part: read the members' subscriptions, run the assignor, check and encode its plan.

Pure, but possibly long: a shell runs `plan` away from the thread that sends heartbeats. Plans are checked because
assignors may be the users' own: a partition that is given twice would be processed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fleet_consumer.assignors import Assignment, Assignor, ClusterView, Subscription
from fleet_consumer.group.errors import AssignorFailed
from fleet_consumer.group.partitions import PartitionsByTopic
from fleet_consumer.wire.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartitions,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    partitions_by_topic,
)
from fleet_consumer.wire.failures import MalformedMessage
from fleet_consumer.wire.join_group import JoinGroupRequestProtocol, JoinGroupResponseMember
from fleet_consumer.wire.sync_group import SyncGroupRequestAssignment

SUBSCRIPTION_VERSION = 3
"""What we write; every reader falls back to the newest version that it knows."""
ASSIGNMENT_VERSION = 3
VETTED = frozenset({"cooperative-sticky"})
"""Cooperative assignors whose plans need no check for direct moves: taking those out is their own last step."""


def offered_protocols(
    assignors: Iterable[Assignor],
    topics: tuple[str, ...],
    *,
    owned: PartitionsByTopic,
    generation: int,
    rack: str | None = None,
) -> tuple[JoinGroupRequestProtocol, ...]:
    """This member's subscription once for each assignor, the preferred first; each adds its own user data.

    Raises AssignorFailed, naming the assignor whose user data could not be had.
    """
    return tuple(
        JoinGroupRequestProtocol(
            name=assignor.name,
            metadata=encode_subscription(
                ConsumerProtocolSubscription(
                    topics=topics,
                    user_data=_user_data(assignor, topics),
                    owned_partitions=tuple(
                        ConsumerProtocolTopicPartitions(topic=topic, partitions=owned[topic]) for topic in sorted(owned)
                    ),
                    generation_id=generation,
                    rack_id=rack,
                ),
                SUBSCRIPTION_VERSION,
            ),
        )
        for assignor in assignors
    )


def _user_data(assignor: Assignor, topics: tuple[str, ...]) -> bytes | None:
    try:
        return assignor.subscription_user_data(topics)
    except Exception as cause:
        raise AssignorFailed(
            f"assignor {assignor.name!r}: subscription_user_data raised {type(cause).__name__}: {cause}"
        ) from cause


def read_subscriptions(members: Iterable[JoinGroupResponseMember]) -> dict[str, Subscription]:
    """The members' subscriptions by member id. What cannot be read counts as wanting nothing: it stays a member."""
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
    """Every topic that some member wants."""
    return frozenset(topic for subscription in subscriptions.values() for topic in subscription.topics)


def owned_counts(subscriptions: Mapping[str, Subscription]) -> dict[str, int]:
    """How many partitions each topic must have if members own what they claim."""
    counts: dict[str, int] = {}
    for subscription in subscriptions.values():
        for topic, numbers in subscription.owned.items():
            counts[topic] = max(counts.get(topic, 0), max(numbers, default=-1) + 1)
    return counts


def plan(
    assignor: Assignor, cluster: ClusterView, subscriptions: Mapping[str, Subscription], *, cooperative: bool = False
) -> tuple[SyncGroupRequestAssignment, ...]:
    """Run the assignor and encode what each member gets. Raises AssignorFailed, or what the assignor raises.

    `cooperative`: members still read what they own, so a partition that changes hands must rest for one rebalance.
    """
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
        raise AssignorFailed(f"assignor {name!r} gave partitions to {min(unknown)!r}, who is not in the group")
    taken: dict[str, set[int]] = {}
    for member, share in plans.items():
        for topic, numbers in share.partitions.items():
            already, new = taken.setdefault(topic, set()), set(numbers)
            count = cluster.partitions.get(topic, 0)
            if new and (min(new) < 0 or max(new) >= count):
                raise AssignorFailed(f"assignor {name!r} gave {member!r} of {topic!r} what does not exist: {numbers}")
            if len(new) != len(numbers) or already & new:
                raise AssignorFailed(f"assignor {name!r} gave a partition of {topic!r} away twice")
            already |= new


def _check_nothing_moves_directly(
    name: str, subscriptions: Mapping[str, Subscription], plans: Mapping[str, Assignment]
) -> None:
    """After Java's `ConsumerCoordinator.validateCooperativeAssignment`: what some member loses, no other may gain.

    Its new owner would read it before the old one knows that it has to stop.
    """
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
                        f"{lost[topic, number]!r} to {member!r}; a partition that changes hands must be left out of "
                        "one plan, until its old owner has given it back"
                    )
