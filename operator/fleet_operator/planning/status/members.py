"""Members of the Kafka group, for a ConsumerGroup's status.

DescribeGroups returns assignments only while the group is Stable. In other states, each member keeps its last known
assignment in the status.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning import observation
from fleet_operator.planning.fleet.rollout_facts import PodFacts
from fleet_operator.planning.status.facts import ConsumerGroupFacts

MEMBERS_MAX: Final = 100
TOPICS_MAX: Final = 20
TOPIC_CHARACTERS_MAX: Final = 249
TEXT_CHARACTERS_MAX: Final = 1024
ID_CHARACTERS_MAX: Final = 512
"""The CRD's limits. The API server would reject the whole status if a string from a member were longer."""
ID_TAIL_CHARACTERS: Final = 40
"""Number of characters at the end of an id that are always kept. The end of a member id makes the id unique."""

STABLE: Final = "Stable"


@dataclass(frozen=True, slots=True)
class Roster:
    """The members of the Kafka group: `ours` are workers of this fleet, `foreign` are members of other programs."""

    ours: tuple[observation.MemberObservation, ...]
    foreign: tuple[observation.MemberObservation, ...]


def sort_members(
    group: ConsumerGroup,
    members: Iterable[observation.MemberObservation],
    workers: Sequence[observation.WorkerObservation],
    pods: Sequence[PodFacts],
) -> Roster:
    """Separate the members of this fleet from foreign members. A static member is of this fleet if its instance id
    belongs to this ConsumerGroup. A dynamic member is of this fleet if a worker reports its member id, or if its client
    id is the name of a pod."""
    metadata = group.metadata
    prefix = naming.instance_id_prefix(metadata.namespace, metadata.name, metadata.uid)
    claimed = {worker.member_id for worker in workers if worker.member_id}
    named = {pod.name for pod in pods}
    ours: list[observation.MemberObservation] = []
    foreign: list[observation.MemberObservation] = []
    for member in members:
        if member.instance_id is not None:
            mine = naming.instance_ordinal(prefix, member.instance_id) is not None
        else:
            mine = member.member_id in claimed or member.client_id in named
        (ours if mine else foreign).append(member)
    return Roster(tuple(ours), tuple(foreign))


def member_entries(
    facts: ConsumerGroupFacts, observed: observation.GroupObservation, previous: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Build at most `MEMBERS_MAX` entries: first this fleet's members, sorted by pod, then foreign members. The field
    `memberCount` counts all members."""
    pod_of = _pod_finder(facts)
    last = {entry.get("instanceId") or entry.get("id"): entry for entry in previous}
    roster = sort_members(facts.group, observed.members, facts.workers, facts.pods)
    stable = observed.state == STABLE
    mine = [(pod_of(member), member) for member in roster.ours]
    mine.sort(key=lambda pair: (len(pair[0]), pair[0], pair[1].member_id))
    entries = []
    for pod, member in (*mine, *(("", member) for member in roster.foreign)):
        member_id, instance_id = shorten_id(member.member_id), shorten_id(member.instance_id or "")
        before = last.get(instance_id or member_id, {})
        count = sum(map(len, member.partitions.values())) if stable else before.get("partitionCount", 0)
        entry = {
            "id": member_id,
            "instanceId": instance_id,
            "pod": pod,
            "host": shorten_id(member.host),
            "partitions": assignment(member.partitions) if stable else before.get("partitions", []),
            "partitionCount": count,
            "state": ("Active" if count else "Idle") if stable else "Rebalancing",
        }
        entries.append(entry)
    return entries[:MEMBERS_MAX]


def namer(facts: ConsumerGroupFacts) -> Callable[[observation.MemberName], str]:
    """Return a function that names members: this fleet's members by pod, foreign members by instance id or member
    id."""
    pod_of = _pod_finder(facts)
    return lambda member: pod_of(member) or shorten_id(member.instance_id or member.member_id)


def shorten_id(text: str) -> str:
    """Shorten an id to the limit of the status, keeping its start and its end. Kafka clients may choose ids of any
    length."""
    if len(text) <= ID_CHARACTERS_MAX:
        return text
    return f"{text[: ID_CHARACTERS_MAX - ID_TAIL_CHARACTERS - 1]}…{text[-ID_TAIL_CHARACTERS:]}"


def assignment(partitions: Mapping[str, Sequence[int]]) -> list[dict[str, str]]:
    """List the partitions of each topic as ranges such as `0-3,7`. Ranges that do not fit are left out, because a
    hundred members must fit into one status, however large their assignments are. The field `partitionCount` counts all
    partitions."""
    entries, room = [], TEXT_CHARACTERS_MAX
    for topic, numbers in sorted(partitions.items()):
        ranges = _ranges(numbers, room - len(topic))
        if ranges and len(topic) <= TOPIC_CHARACTERS_MAX:
            entries.append({"topic": topic, "ranges": ranges})
            room -= len(topic) + len(ranges)
    return entries[:TOPICS_MAX]


def _ranges(numbers: Iterable[int], room: int) -> str:
    """Return ascending ranges of the numbers, in at most `room` characters; ranges that do not fit are left out."""
    text = ""
    possible = sorted({number for number in numbers if number >= 0})  # a foreign member may report any number
    for _, run in groupby(enumerate(possible), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        part = str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}"
        longer = f"{text},{part}" if text else part
        if len(longer) > room:
            break
        text = longer
    return text


def _pod_finder(facts: ConsumerGroupFacts) -> Callable[[observation.MemberObservation | observation.MemberName], str]:
    """Return a function that finds the name of a member's pod. It uses the workers' reports, the member's ordinal or
    its client id. The name is empty for a foreign member."""
    metadata = facts.group.metadata
    prefix = naming.instance_id_prefix(metadata.namespace, metadata.name, metadata.uid)
    claims = {worker.member_id: worker.pod for worker in facts.workers if worker.member_id}
    names = {pod.name for pod in facts.pods}

    def pod_of(member: observation.MemberObservation | observation.MemberName) -> str:
        ordinal = naming.instance_ordinal(prefix, member.instance_id or "")
        by_name = member.client_id if member.client_id in names else ""
        named = by_name if ordinal is None else f"{naming.main_workers(metadata.name)}-{ordinal}"
        return claims.get(member.member_id) or named

    return pod_of
