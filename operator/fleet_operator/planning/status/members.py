"""Members of the Kafka group, for a ConsumerGroup's status.

DescribeGroups returns assignments only while the group is Stable; in between, each member keeps its last one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning import observation
from fleet_operator.planning.fleet.rollout_facts import PodFacts

MEMBERS_MAX: Final = 100
TOPICS_MAX: Final = 20
TOPIC_CHARACTERS_MAX: Final = 249
TEXT_CHARACTERS_MAX: Final = 1024
ID_CHARACTERS_MAX: Final = 512
"""The CRD's limits: a longer text from a member would make the API server refuse the whole status."""
ID_TAIL_CHARACTERS: Final = 40
"""Length of an id's end that is always shown: a member id is unique by its end."""

STABLE: Final = "Stable"


@dataclass(frozen=True, slots=True)
class Roster:
    """The group's members: the workers of this fleet, and foreign ones."""

    ours: tuple[observation.MemberObservation, ...]
    foreign: tuple[observation.MemberObservation, ...]


def sort_members(
    group: ConsumerGroup,
    members: Iterable[observation.MemberObservation],
    workers: Sequence[observation.WorkerObservation],
    pods: Sequence[PodFacts],
) -> Roster:
    """Sort members. Ours are static members with an instance id of this object, and dynamic ones with the member id of
    a worker's report or the client id of a pod."""
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
    group: ConsumerGroup,
    observed: observation.GroupObservation,
    workers: Sequence[observation.WorkerObservation],
    pods: Sequence[PodFacts],
    previous: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """`status.members`, ours first by pod; at most `MEMBERS_MAX` (memberCount counts all)."""
    claims = {worker.member_id: worker.pod for worker in workers if worker.member_id}
    names = {pod.name for pod in pods}
    last = {entry.get("instanceId") or entry.get("id"): entry for entry in previous}
    roster = sort_members(group, observed.members, workers, pods)
    stable = observed.state == STABLE
    mine = [(claims.get(member.member_id) or _pod(group, member, names), member) for member in roster.ours]
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


def namer(
    group: ConsumerGroup, workers: Sequence[observation.WorkerObservation], pods: Sequence[PodFacts]
) -> Callable[[observation.MemberName], str]:
    """Names for members: an own one is called by its pod, a foreign one by its instance id or member id."""
    claims = {worker.member_id: worker.pod for worker in workers if worker.member_id}
    names = {pod.name for pod in pods}

    def name_of(member: observation.MemberName) -> str:
        pod = claims.get(member.member_id) or _pod(group, member, names)
        return pod or shorten_id(member.instance_id or member.member_id)

    return name_of


def shorten_id(text: str) -> str:
    """An id within the status' limit: its start and its end. Kafka allows clients any length."""
    if len(text) <= ID_CHARACTERS_MAX:
        return text
    return f"{text[: ID_CHARACTERS_MAX - ID_TAIL_CHARACTERS - 1]}…{text[-ID_TAIL_CHARACTERS:]}"


def assignment(partitions: Mapping[str, Sequence[int]]) -> list[dict[str, str]]:
    """Partitions by topic, as ranges such as `0-3,7`: whole ranges, as many as the status has room for.

    A hundred members with assignments of any size must fit into one object; `partitionCount` says what was left out.
    """
    entries, room = [], TEXT_CHARACTERS_MAX
    for topic, numbers in sorted(partitions.items()):
        ranges = _ranges(numbers, room - len(topic))
        if ranges and len(topic) <= TOPIC_CHARACTERS_MAX:
            entries.append({"topic": topic, "ranges": ranges})
            room -= len(topic) + len(ranges)
    return entries[:TOPICS_MAX]


def _ranges(numbers: Iterable[int], room: int) -> str:
    """Ranges of the numbers, from the lowest on; those that do not fit into `room` characters are left out."""
    text = ""
    possible = sorted({number for number in numbers if number >= 0})  # a member may claim anything
    for _, run in groupby(enumerate(possible), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        part = str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}"
        longer = f"{text},{part}" if text else part
        if len(longer) > room:
            break
        text = longer
    return text


def _pod(
    group: ConsumerGroup, member: observation.MemberObservation | observation.MemberName, names: Collection[str]
) -> str:
    """The pod of an own member, by the ordinal in its instance id, or by its client id."""
    metadata = group.metadata
    prefix = naming.instance_id_prefix(metadata.namespace, metadata.name, metadata.uid)
    ordinal = naming.instance_ordinal(prefix, member.instance_id or "")
    if ordinal is not None:
        return f"{naming.main_workers(metadata.name)}-{ordinal}"
    return member.client_id if member.client_id in names else ""
