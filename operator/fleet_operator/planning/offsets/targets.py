"""New offsets of a reset, from what the brokers have. Pure.

As `kafka-consumer-groups` does: a time after the last record is the end of a partition, and an offset out of range
becomes the nearest in range. A topic that the group's spec does not read is refused, before anything is stopped; what
the asked broker does not know, a topic or a partition, is waited for: another broker may.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.contract.naming import pattern_matches
from fleet_consumer.contract.patterns import Pattern
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.offsetreset import OffsetResetSpec
from fleet_operator.planning import times
from fleet_operator.planning.offsets.records import PARTITIONS_MAX, Offsets, Partition, list_offsets
from fleet_operator.planning.problem import Problem, Refused

BYTES_MAX: Final = 1_000_000
"""Most bytes of the offsets of a reset, before and after. A spec that names half of them is not cut as too large, and
fits with them into an object of etcd, of 1.5 MiB."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the group; `instance_id` is None for a dynamic one."""

    instance_id: str | None
    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """A Kafka group and the partitions of some topics, read live.

    - `state` is Kafka's word. `group_type` is set if its members are not of the classic protocol: they are not known.
    - `counts`: partitions of each topic; one that no broker knows is absent.
    - `committed` lacks partitions without a commit; `starts`, `ends` and `found` lack those that could not be read.
    - `marks`: those of resets, in the metadata of commits.
    - `cluster_id` and `topic_ids` tell whose offsets they are; brokers before Kafka 2.8 have no ids of topics.
    - `found`: the first offset at or after the time that was asked for, None where all records are older.
    """

    state: str
    group_type: str = ""
    members: tuple[Member, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    committed: Mapping[Partition, int] = field(default_factory=dict)
    starts: Mapping[Partition, int] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)
    found: Mapping[Partition, int | None] = field(default_factory=dict)
    marks: frozenset[str] = frozenset()
    cluster_id: str = ""
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The offsets before and after, and a sentence about what was noticed."""

    previous: Offsets
    offsets: Offsets
    note: str = ""


def time_ms(spec: OffsetResetSpec) -> int | None:
    """The time of the spec in milliseconds since the epoch; None without a time, and for a text that is not one.

    Kafka's negative times are words, such as -1 for the end: a time before the epoch is its beginning.
    """
    at = times.from_text(spec.time)
    return None if at is None else max(round(at * 1000), 0)


def topics_of(spec: OffsetResetSpec, sources: tuple[str, ...]) -> tuple[str, ...]:
    if spec.offsets is not None:
        return tuple(dict.fromkeys(each.topic for each in spec.offsets))
    return spec.topics or sources


def find_targets(
    spec: OffsetResetSpec, sources: tuple[str, ...], read: GroupOffsets, pattern: Pattern | None = None
) -> Targets | Refused | Problem:
    """The new offsets, or why there are none: a Problem may pass by itself.

    `sources` are the source topics as last observed; `pattern` is that of the spec, for topics which come later.
    """
    chosen = topics_of(spec, sources)
    unseen = [topic for topic in chosen if topic not in sources]
    strange = next((topic for topic in unseen if pattern is None or not pattern_matches(pattern, topic)), None)
    if strange is not None:
        return _refused(f"topic {strange!r} is no source topic of this group")
    if not chosen:
        return Problem(conditions.TOPIC_NOT_FOUND, "no topic matches spec.topicPattern yet, or none may be described")
    missing = next((topic for topic in chosen if topic in unseen or topic not in read.counts), None)
    if missing is not None:
        return Problem(conditions.TOPIC_NOT_FOUND, f"topic {missing!r} is not on the cluster, or not seen there yet")
    selected = _select(spec, chosen, read)
    if isinstance(selected, Problem):
        return selected
    if len(selected) > PARTITIONS_MAX:
        return _refused(f"{len(selected)} partitions are more than {PARTITIONS_MAX}: reset some topics at a time")
    asked = (read.starts, read.ends, *((read.found,) if spec.to == "Time" else ()))
    silent = next((each for each in selected if any(each not in answer for answer in asked)), None)
    if silent is not None:
        message = f"the brokers returned no offsets for {silent[0]}-{silent[1]}: check the leader of this partition"
        return Problem(conditions.PARTITIONS_UNKNOWN, message)
    targets = _targets(spec, selected, read)
    listed = [list_offsets(targets.previous), list_offsets(targets.offsets)]
    size = len(json.dumps(listed, separators=(",", ":")))
    if size > BYTES_MAX:
        return _refused(
            f"the offsets of {len(selected)} partitions take {size} bytes of the status, more than {BYTES_MAX}: reset "
            "some topics at a time"
        )
    return targets


def _select(
    spec: OffsetResetSpec, chosen: tuple[str, ...], read: GroupOffsets
) -> dict[Partition, int | None] | Problem:
    """The partitions to set, with the offset that the spec names."""
    if spec.offsets is None:
        return {(topic, number): None for topic in chosen for number in range(read.counts[topic])}
    selected: dict[Partition, int | None] = {(each.topic, each.partition): each.offset for each in spec.offsets}
    beyond = next(((topic, number) for topic, number in selected if number >= read.counts[topic]), None)
    if beyond is not None:
        message = f"topic {beyond[0]!r} has {read.counts[beyond[0]]} partitions, and none with the number {beyond[1]}"
        return Problem(conditions.PARTITIONS_UNKNOWN, message)
    return selected


def _targets(spec: OffsetResetSpec, selected: Mapping[Partition, int | None], read: GroupOffsets) -> Targets:
    offsets: dict[Partition, int] = {}
    late = moved = 0
    for key, asked in selected.items():
        start, end = read.starts[key], read.ends[key]
        match spec.to:
            case "Earliest":
                offset = start
            case "Latest":
                offset = end
            case "Time":
                at = read.found[key]
                offset = end if at is None else at
                late += at is None
            case "Offsets":
                offset = min(max(asked or 0, start), end)
                moved += offset != asked
        offsets[key] = offset
    previous = {key: read.committed[key] for key in selected if key in read.committed}
    notes = []
    if late:
        notes.append(f"{late} of {len(selected)} partitions have no record from that time on: they go on at their end")
    if moved:
        notes.append(f"{moved} of {len(selected)} offsets were out of range: the nearest in range were taken")
    return Targets(previous=previous, offsets=offsets, note="; ".join(notes))


def _refused(message: str) -> Refused:
    return Refused(Problem(conditions.OFFSETS_REFUSED, message))
