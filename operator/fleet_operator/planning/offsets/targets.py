"""New offsets of a reset, computed from the brokers' offsets. Pure.

As with `kafka-consumer-groups`, a time after the last record means the end of a partition, and an offset out of range
is replaced by the nearest offset in range. A topic that is not a source topic of the group is refused before any worker
is stopped. If the queried broker does not know a topic or partition, the reset waits, because another broker may know
the topic or partition.

End offsets are read before the offsets for the requested time. If a partition has no record at or after this time, its
new offset is the end offset that was read. So a record that arrives between the two reads is not left out.
"""

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
"""Maximum size in bytes of a reset's previous and new offsets together. With this limit, the whole object fits into
etcd's limit of 1.5 MiB. A spec that lists the new offsets is then never trimmed (`trimming.BULK_BYTES_MAX`)."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the group; `instance_id` is None for a dynamic member."""

    instance_id: str | None
    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """A Kafka group and the partitions of the topics to reset, read from the brokers.

    - `group_type`: the type of a group whose members do not use the classic protocol; `members` is then unknown. Empty
      for a group with the classic protocol.
    - `counts`: the number of partitions of each topic, without topics that no broker knows.
    - `committed`: committed offsets, without partitions that have no commit.
    - `starts`, `ends`: first and end offsets, without partitions that could not be read.
    - `found`: the offset of the first record at or after the requested time; None for a partition whose records are all
      older. Partitions that could not be read are omitted.
    - `markers`: markers of resets in the metadata of commits.
    - `cluster_id`, `topic_ids`: the cluster and the topics of the offsets; brokers before Kafka 2.8 have no topic ids.
    """

    state: str
    group_type: str = ""
    members: tuple[Member, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    committed: Mapping[Partition, int] = field(default_factory=dict)
    starts: Mapping[Partition, int] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)
    found: Mapping[Partition, int | None] = field(default_factory=dict)
    markers: frozenset[str] = frozenset()
    cluster_id: str = ""
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The previous and the new offsets of a reset, and a remark on the new offsets for the reset's message."""

    previous: Offsets
    offsets: Offsets
    note: str = ""


def time_ms(spec: OffsetResetSpec) -> int | None:
    """Return the spec's time in epoch milliseconds. A time before the epoch becomes 0: negative timestamps have other
    meanings in Kafka, such as -1 for the end."""
    at = times.from_text(spec.time)
    return None if at is None else max(round(at * 1000), 0)


def topics_of(spec: OffsetResetSpec, sources: tuple[str, ...]) -> tuple[str, ...]:
    if spec.offsets is not None:
        return tuple(dict.fromkeys(each.topic for each in spec.offsets))
    return spec.topics or sources


def find_targets(
    spec: OffsetResetSpec, sources: tuple[str, ...], read: GroupOffsets, pattern: Pattern | None = None
) -> Targets | Refused | Problem:
    """Compute the new offsets, or return the reason why they cannot be computed. A Problem may be temporary, and a
    Refused is final. `sources`: the observed source topics. `pattern`: the spec's topic pattern, if any; more topics
    that match it may appear later."""
    chosen = topics_of(spec, sources)
    unseen = [topic for topic in chosen if topic not in sources]
    strange = next((topic for topic in unseen if pattern is None or not pattern_matches(pattern, topic)), None)
    if strange is not None:
        return _refused(f"topic {strange!r} is not a source topic of this group")
    if not chosen:
        return Problem(
            conditions.TOPIC_NOT_FOUND,
            "no topic matches spec.topicPattern yet, or the operator may not describe the topics that match",
        )
    missing = next((topic for topic in chosen if topic in unseen or topic not in read.counts), None)
    if missing is not None:
        return Problem(conditions.TOPIC_NOT_FOUND, f"topic {missing!r} is not on the cluster, or not observed yet")
    # The partitions to set, each with its offset in the spec, or None if the spec has no offsets.
    selected: dict[Partition, int | None] = {(each.topic, each.partition): each.offset for each in spec.offsets or ()}
    if spec.offsets is None:
        selected = {(topic, number): None for topic in chosen for number in range(read.counts[topic])}
    beyond = next(((topic, number) for topic, number in selected if number >= read.counts[topic]), None)
    if beyond is not None:
        message = f"topic {beyond[0]!r} has {read.counts[beyond[0]]} partitions, and none with the number {beyond[1]}"
        return Problem(conditions.PARTITIONS_UNKNOWN, message)
    if len(selected) > PARTITIONS_MAX:
        return _refused(f"{len(selected)} partitions are more than {PARTITIONS_MAX}: reset fewer topics at a time")
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
            f"the offsets of {len(selected)} partitions need {size} bytes of the status, more than {BYTES_MAX}: reset "
            "fewer topics at a time"
        )
    return targets


def _targets(spec: OffsetResetSpec, selected: Mapping[Partition, int | None], read: GroupOffsets) -> Targets:
    offsets: dict[Partition, int] = {}
    late = moved = 0
    for key, asked in selected.items():
        start, end = read.starts[key], read.ends[key]
        if spec.to == "Time":
            at = read.found[key]
            offsets[key] = end if at is None else at
            late += at is None
        elif spec.to == "Offsets":
            offsets[key] = min(max(asked or 0, start), end)
            moved += offsets[key] != asked
        else:
            offsets[key] = start if spec.to == "Earliest" else end
    previous = {key: read.committed[key] for key in selected if key in read.committed}
    notes = []
    if late:
        notes.append(
            f"{late} of {len(selected)} partitions have no record at or after spec.time: they start at the end"
        )
    if moved:
        notes.append(f"{moved} of {len(selected)} offsets were out of range, so the nearest offsets in range were used")
    return Targets(previous=previous, offsets=offsets, note="; ".join(notes))


def _refused(message: str) -> Refused:
    return Refused(Problem(conditions.OFFSETS_REFUSED, message))
