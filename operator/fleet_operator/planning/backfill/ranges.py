"""Range of a Backfill: the question to the brokers, and the offsets that follow from their answer. Pure.

A range is resolved to offsets only once, because a time or the end of a topic may mean other offsets a moment later.

A time range begins at the first record at or after its start time, which Kafka can look up. Kafka cannot look up the
last record before the end time, because timestamps in a log are not in order. So a time range is read to the end of the
log, and tasks select records by timestamp. (In a topic of flights, an end at the first later timestamp would have
missed 498 of the 26,865 records of January.)
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final

from fleet_consumer.contract.backfill_config import BackfillConfig
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.backfill import Backfill, PartitionRange
from fleet_operator.planning import times
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.problem import Problem, Refused
from fleet_operator.planning.run import refuse_time

PARTITIONS_MAX: Final = 5000
"""Maximum number of partitions in a range, because the status lists the offsets of every partition."""
SHOWN_MAX: Final = 5
"""Maximum number of partitions named in a message."""
IDENTITY: Final = ("clusterId", "topicId", "sampledFrom")

Ranges = Mapping[int, tuple[int, int]]
"""The first offset and the end offset (exclusive) of each partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeQuestion:
    """A question to the brokers about the offsets of `topic`.

    - `read_committed`: the group reads committed records only, so end offsets exclude open transactions.
    - `from_ms`, `to_ms`: the time range of the records in epoch milliseconds; None for a range in offsets.
    - `end_ms`: the read ends at the first record with this timestamp or a later timestamp. It is later than `to_ms`,
      because timestamps in a log are not in order. None if the read ends at the end of the log.
    - `others`: other topics whose existence is checked.
    """

    topic: str
    read_committed: bool
    from_ms: int | None = None
    to_ms: int | None = None
    end_ms: int | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffsets:
    """The brokers' answer, with offsets keyed by partition; offsets that could not be read are absent.

    - `partitions`: the number of partitions; None if the queried broker does not know the topic.
    - `starts`, `ends`: the first offset and the end offset of the log.
    - `first`, `end`: offsets of the first records at or after `from_ms` and `end_ms` of the question; None if all
      records are older.
    - `highs`: with `read_committed`, the end offsets including open transactions; `ends` excludes them.
    - `unknown`: the topics in the question's `others` that do not exist.
    - `cluster_id`, `topic_id`: None if the brokers do not return such ids.
    """

    partitions: int | None
    cluster_id: str | None = None
    topic_id: str | None = None
    starts: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    first: Mapping[int, int | None] = field(default_factory=dict)
    end: Mapping[int, int | None] = field(default_factory=dict)
    highs: Mapping[int, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRange:
    """A range in offsets, without empty partitions.

    - `cluster_id`, `topic_id`: the cluster and the topic of the offsets, None if unknown. On another cluster, or in a
      topic that was created again, other records have these offsets.
    - `sampled_from`: the number of offsets of the whole range if this range is a sample of it; otherwise None.
    - `from_ms`, `to_ms`: the time range of the record timestamps in epoch milliseconds; None for a range in offsets.
    - `note`: a remark that records of the range were deleted, empty if none were. `cut`: a remark that the log has
      records after the range that are not read, empty if it has none.
    """

    topic: str
    ranges: Ranges
    cluster_id: str | None = None
    topic_id: str | None = None
    sampled_from: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    note: str = ""
    cut: str = ""

    @property
    def offsets(self) -> int:
        return sum(end - first for first, end in self.ranges.values())

    @property
    def size(self) -> str:
        of = "" if self.sampled_from is None else f" (a sample of {self.sampled_from})"
        return f"{self.offsets} offsets{of} in {len(self.ranges)} partitions"


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A range that cannot be resolved now, but may be later."""

    problem: Problem


Resolution = ResolvedRange | Refused | Unresolved


def find_range_refusal(backfill: Backfill) -> Problem | None:
    time, remedy = backfill.spec.range.time, "create another Backfill"
    if time is None:
        return None
    return refuse_time("spec.range.time.from", time.from_, c.RANGE_REFUSED, remedy) or refuse_time(
        "spec.range.time.to", time.to, c.RANGE_REFUSED, remedy
    )


def ask_range(
    backfill: Backfill, topic: str, *, read_committed: bool, others: Iterable[str], now: float
) -> RangeQuestion:
    """Build the question for a valid spec. A `range.last` ends at `now`, in epoch seconds."""
    wanted, from_s, to_s, end_s = backfill.spec.range, None, None, None
    if wanted.time is not None:
        from_s, to_s = times.from_text(wanted.time.from_), times.from_text(wanted.time.to)
        late = wanted.time.late_seconds
        end_s = None if to_s is None or late is None else to_s + late
    elif wanted.last is not None:
        # Whole seconds, as in the status. The end is the next second, so that the records of the present second are
        # included.
        from_s, to_s = int(now) - wanted.last.seconds, int(now) + 1
    return RangeQuestion(
        topic=topic,
        read_committed=read_committed,
        from_ms=_milliseconds(from_s),
        to_ms=_milliseconds(to_s),
        end_ms=_milliseconds(end_s),
        others=tuple(others),
    )


def resolve(backfill: Backfill, question: RangeQuestion, read: TopicOffsets) -> Resolution:
    topic = question.topic
    if read.partitions is None:
        message = f"topic {topic!r} is not on the Kafka cluster: create another Backfill with an existing topic"
        return Refused(Problem(c.SOURCE_TOPIC_NOT_FOUND, message))
    chosen = _partitions(backfill, read.partitions)
    strange = sorted(partition for partition in chosen if partition >= read.partitions)
    if strange:
        message = f"topic {topic!r} has {read.partitions} partitions, numbered from 0, and no partition {_few(strange)}"
        return Refused(Problem(c.PARTITION_NOT_FOUND, message))
    if len(chosen) > PARTITIONS_MAX:
        message = (
            f"the range has {len(chosen)} partitions of topic {topic!r}, and a Backfill can have at most "
            f"{PARTITIONS_MAX}: create several Backfills with different spec.source.partitions"
        )
        return Refused(Problem(c.RANGE_TOO_LARGE, message))
    asked: list[Mapping[int, object]] = [read.starts, read.ends]
    asked += [read.first] if question.from_ms is not None else []
    asked += [read.end] if question.end_ms is not None else []
    asked += [read.highs] if question.read_committed else []
    silent = sorted(partition for partition in chosen if any(partition not in answer for answer in asked))
    if silent:
        message = f"offsets of topic {topic!r} cannot be read in partition {_few(silent)}: the leader does not answer"
        return Unresolved(Problem(c.PARTITIONS_UNKNOWN, message))
    return _resolve(backfill, question, read, chosen)


def _resolve(backfill: Backfill, question: RangeQuestion, read: TopicOffsets, chosen: tuple[int, ...]) -> Resolution:
    wanted, topic = backfill.spec.range, question.topic
    given = {each.partition: each for each in wanted.offsets or ()}
    found: dict[int, tuple[int, int]] = {}
    expired, cut = list[str](), list[str]()
    for partition in chosen:
        start, end = read.starts[partition], read.ends[partition]
        high = max(read.highs.get(partition, end), end)
        if wanted.offsets is not None:
            of = given[partition]
            if (problem := _beyond(of, topic, high)) is not None:
                return Refused(problem)
            first, last, lost = of.from_, of.to, f"and the range begins at {of.from_}"
            gone = first < min(start, last)
        else:
            at_from = read.first[partition]
            at_to = None if question.end_ms is None else read.end[partition]
            first, last = end if at_from is None else at_from, high if at_to is None else at_to
            lost = "and earlier records may have been in the range"
            if at_to is not None and at_to < end:
                cut.append(f"in partition {partition}, the range ends at offset {at_to} and the log at {end}")
            # If the oldest remaining record is in the range, or if no record remains, records of the range may have
            # been deleted. The start of the log is read last. So retention may already have moved the start past the
            # range's first record.
            gone = start > 0 and ((at_from is not None and at_from <= start) or start >= end)
        if last > end:
            return Unresolved(_open_transaction(topic, partition, end, high))
        if gone:
            expired.append(f"partition {partition} now begins at offset {start}, {lost}")
        first = min(max(first, start), end)
        last = min(max(last, first), end)
        if last > first:
            found[partition] = (first, last)
    note = f"the oldest records of topic {topic!r} were deleted: {_first_of(expired)}" if expired else ""
    if expired and wanted.expired == "Fail":
        remedy = "create another Backfill with a later range or, for the remaining records, spec.range.expired: Ignore"
        return Refused(Problem(c.RANGE_EXPIRED, f"{note}: {remedy}"))
    rest = "the record at the range's end is at least lateSeconds after spec.range.time.to, so the read ends there"
    whole = ResolvedRange(
        topic=topic,
        ranges=found,
        cluster_id=read.cluster_id,
        topic_id=read.topic_id,
        from_ms=question.from_ms,
        to_ms=question.to_ms,
        note=note,
        cut=f"{_first_of(cut)}: {rest}" if cut else "",
    )
    return whole if wanted.sample is None else take_sample(whole, wanted.sample)


def take_sample(whole: ResolvedRange, size: str) -> ResolvedRange:
    """Take a sample from the beginning of each partition's range. `size`: a share of the range, such as `0.5%`, or a
    total number of offsets, which the partitions share equally. If a partition has fewer offsets than its share, the
    other partitions share the difference."""
    sizes = sorted((end - first, partition) for partition, (first, end) in whole.ranges.items())
    share, left = size.removesuffix("%"), int(size) if size.isdigit() else 0
    counts = dict[int, int]()
    for place, (offsets, partition) in enumerate(sizes):
        part = math.ceil(offsets * Fraction(share) / 100) if size != share else left // (len(sizes) - place)
        counts[partition] = min(part, offsets)
        left -= counts[partition]
    ranges = {each: (first, first + counts[each]) for each, (first, _) in whole.ranges.items() if counts[each]}
    return replace(whole, ranges=ranges, sampled_from=whole.offsets)


def _open_transaction(topic: str, partition: int, first: int, high: int) -> Problem:
    message = (
        f"partition {partition} of topic {topic!r} has an open transaction at offset {first}, its log ends at {high}, "
        "and the group reads committed records only: the range waits until the transaction ends; find and abort a "
        "hanging transaction with kafka-transactions.sh"
    )
    return Problem(c.OPEN_TRANSACTION, message)


def _partitions(backfill: Backfill, count: int) -> tuple[int, ...]:
    wanted = backfill.spec.range.offsets
    if wanted is not None:
        return tuple(sorted(each.partition for each in wanted))
    chosen = backfill.partitions
    return tuple(sorted(chosen)) if chosen is not None else tuple(range(count))


def _beyond(wanted: PartitionRange, topic: str, end: int) -> Problem | None:
    for name, offset in (("from", wanted.from_), ("to", wanted.to)):
        if offset > end:
            message = (
                f"spec.range.offsets[].{name} is {offset} for partition {wanted.partition} of topic {topic!r}, "
                f"which ends at {end}: create another Backfill whose range ends there, or wait for the records"
            )
            return Problem(c.OFFSETS_BEYOND_END, message)
    return None


def range_status(resolved: ResolvedRange) -> dict[str, Any]:
    status: dict[str, Any] = {
        "topic": resolved.topic,
        "resolvedRange": [
            {"partition": partition, "from": first, "to": end} for partition, (first, end) in resolved.ranges.items()
        ],
    }
    status |= identity(resolved)
    if resolved.from_ms is not None and resolved.to_ms is not None:
        # Whole seconds are enough in the status: the spec has exact times, and `range.last` is resolved to whole
        # seconds.
        bounds = (resolved.from_ms, resolved.to_ms)
        status["resolvedTime"] = dict(zip(("from", "to"), (times.to_text(at / 1000) for at in bounds), strict=True))
    return status


def identity(resolved: ResolvedRange) -> dict[str, str | int]:
    """Cluster id, topic id and `sampledFrom`, each only if known. The keys are the field names in the status and the
    settings."""
    known = zip(IDENTITY, (resolved.cluster_id, resolved.topic_id, resolved.sampled_from), strict=True)
    return {name: value for name, value in known if value is not None}


def read_range(backfill: Backfill) -> ResolvedRange | None:
    """Read the range from a Backfill's status; None if the range is not resolved yet or is unreadable."""
    status = backfill.status
    topic, found = status.get("topic"), status.get("resolvedRange")
    if not isinstance(topic, str) or not isinstance(found, list):
        return None
    try:
        ranges = {int(each["partition"]): (int(each["from"]), int(each["to"])) for each in found}
    except (KeyError, TypeError, ValueError):
        return None
    bounds = status.get("resolvedTime") or {}
    time = backfill.spec.range.time
    from_text, to_text = (time.from_, time.to) if time is not None else (bounds.get("from"), bounds.get("to"))
    cluster_id, topic_id = (known if isinstance(known, str) else None for known in map(status.get, IDENTITY[:2]))
    sampled = status.get("sampledFrom")
    return ResolvedRange(
        topic=topic,
        ranges=dict(sorted(ranges.items())),
        cluster_id=cluster_id,
        topic_id=topic_id,
        sampled_from=sampled if isinstance(sampled, int) else None,
        from_ms=_milliseconds(times.from_text(from_text)),
        to_ms=_milliseconds(times.from_text(to_text)),
    )


def range_of(backfill: Backfill, config: BackfillConfig) -> ResolvedRange:
    from_ms, to_ms, last = config.filter.from_ms, config.filter.to_ms, backfill.spec.range.last
    if last is not None and from_ms is not None and to_ms is None:
        # The settings for a `range.last` have no end time. The end is computed as in `ask_range`.
        to_ms = from_ms + (last.seconds + 1) * 1000
    return ResolvedRange(
        topic=config.topic,
        ranges=dict(sorted(config.ranges.items())),
        cluster_id=config.cluster_id,
        topic_id=config.topic_id,
        sampled_from=config.sampled_from,
        from_ms=from_ms,
        to_ms=to_ms,
    )


def find_other_cluster(resolved: ResolvedRange | None, seen: ClusterObservation | None) -> Problem | None:
    """The problem of a range that was resolved on another Kafka cluster than the group's present cluster; None without
    it. A recreated topic is detected by the driver, with a request before each slice. The observer's last poll cannot
    show that the topic was recreated, because the poll may be older than the range."""
    if resolved is None or resolved.cluster_id is None or seen is None or not (seen.identified and seen.cluster_id):
        return None
    if seen.cluster_id == resolved.cluster_id:
        return None
    message = (
        f"the range was resolved on Kafka cluster {resolved.cluster_id}, and the ConsumerGroup is on Kafka cluster "
        f"{seen.cluster_id} now, where topic {resolved.topic!r} has other records at these offsets; records handled so "
        "far stay handled: create another Backfill for the rest of the range"
    )
    return Problem(c.RANGE_LOST, message)


def _milliseconds(at: float | None) -> int | None:
    """Convert epoch seconds to milliseconds, at least 0 because negative timestamps have special meanings in Kafka."""
    return None if at is None else max(round(at * 1000), 0)


def _first_of(partitions: list[str]) -> str:
    more = f" (and {len(partitions) - 1} more partitions)" if len(partitions) > 1 else ""
    return f"{partitions[0]}{more}"


def _few(partitions: list[int]) -> str:
    shown = ", ".join(map(str, partitions[:SHOWN_MAX]))
    return shown if len(partitions) <= SHOWN_MAX else f"{shown} and {len(partitions) - SHOWN_MAX} more"
