"""Range of a Backfill: the question to the brokers, and the offsets that follow from their answer. Pure.

It is resolved once. Times, and the end of a topic, mean something else a moment later; offsets do not.
"""

from __future__ import annotations

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
"""Most partitions of a range: status holds the offsets of all of them."""
SHOWN_MAX: Final = 5
"""Partitions that a message names."""
IDENTITY: Final = ("clusterId", "topicId", "sampledFrom")

Ranges = Mapping[int, tuple[int, int]]
"""The first offset and the end (exclusive) by partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeQuestion:
    """A question to the brokers about `topic`; `others` are topics that must exist.

    `from_ms` and `to_ms` are the times of the records, None for a range in offsets. `end_ms` is the time that is asked
    for to find the end: later than `to_ms`, as timestamps of a log are not in order. None takes the end of the log: one
    record of a producer whose clock is fast has any time. With `read_committed`, ends leave out open transactions.
    """

    topic: str
    read_committed: bool
    from_ms: int | None = None
    to_ms: int | None = None
    end_ms: int | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReading:
    """The brokers' answer, by partition; what could not be read is absent.

    `partitions` is None for a topic that the asked broker does not know. `first` and `end` are the first offsets at or
    after `from_ms` and `end_ms` of the question, None where all records are older. `highs` are the ends of the log with
    its open transactions, where `ends` leave them out. `unknown` are those of `others` that are not there. `cluster_id`
    and `topic_id` are None from brokers without such ids.
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
    """A range in offsets, without empty partitions. Times are those of the records.

    `cluster_id` and `topic_id` tell whose offsets they are: a topic of the same name on another cluster, or one that
    was created again, has other records there. They are None for a range that was resolved without them. `note` is what
    is missing of it, `cut` what lies behind its end and is not read. `sampled_from` are the offsets of the whole that
    it is a sample of, None where it is the whole.
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
        """All offsets of the range."""
        return sum(end - first for first, end in self.ranges.values())

    @property
    def size(self) -> str:
        """The size in words."""
        of = "" if self.sampled_from is None else f" (a sample of {self.sampled_from})"
        return f"{self.offsets} offsets{of} in {len(self.ranges)} partitions"


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A range that may be resolved later."""

    problem: Problem


Resolution = ResolvedRange | Refused | Unresolved


def find_range_refusal(backfill: Backfill) -> Problem | None:
    """The problem of a time of the spec that is none."""
    time, remedy = backfill.spec.range.time, "create another Backfill"
    if time is None:
        return None
    return refuse_time("spec.range.time.from", time.from_, c.RANGE_REFUSED, remedy) or refuse_time(
        "spec.range.time.to", time.to, c.RANGE_REFUSED, remedy
    )


def ask_range(
    backfill: Backfill, topic: str, *, read_committed: bool, others: Iterable[str], now: float
) -> RangeQuestion:
    """The question for a spec without a refusal; the last seconds end at `now`."""
    wanted, from_s, to_s, end_s = backfill.spec.range, None, None, None
    if wanted.time is not None:
        from_s, to_s = times.from_text(wanted.time.from_), times.from_text(wanted.time.to)
        late = wanted.time.late_seconds
        end_s = None if to_s is None or late is None else to_s + late
    elif wanted.last is not None:
        # Whole seconds, as the status has them; records of this very second are in.
        from_s, to_s = int(now) - wanted.last.seconds, int(now) + 1
    return RangeQuestion(
        topic=topic,
        read_committed=read_committed,
        from_ms=_milliseconds(from_s),
        to_ms=_milliseconds(to_s),
        end_ms=_milliseconds(end_s),
        others=tuple(others),
    )


def resolve(backfill: Backfill, question: RangeQuestion, read: TopicReading) -> Resolution:
    """The offsets of a range, from what the brokers have."""
    topic = question.topic
    if read.partitions is None:
        message = f"topic {topic!r} is not on the Kafka cluster: create another Backfill with a topic that is"
        return Refused(Problem(c.SOURCE_TOPIC_NOT_FOUND, message))
    chosen = _partitions(backfill, read.partitions)
    strange = sorted(partition for partition in chosen if partition >= read.partitions)
    if strange:
        message = f"topic {topic!r} has {read.partitions} partitions, from 0 on: there is no partition {_few(strange)}"
        return Refused(Problem(c.PARTITION_NOT_FOUND, message))
    if len(chosen) > PARTITIONS_MAX:
        message = (
            f"the range has {len(chosen)} partitions of topic {topic!r}, and a Backfill takes {PARTITIONS_MAX} at "
            "most: create several with other spec.source.partitions"
        )
        return Refused(Problem(c.RANGE_TOO_LARGE, message))
    asked: list[Mapping[int, object]] = [read.starts, read.ends]
    asked += [read.first] if question.from_ms is not None else []
    asked += [read.end] if question.end_ms is not None else []
    asked += [read.highs] if question.read_committed else []
    silent = sorted(partition for partition in chosen if any(partition not in answer for answer in asked))
    if silent:
        message = f"offsets of topic {topic!r} cannot be read in partition {_few(silent)}: its leader does not answer"
        return Unresolved(Problem(c.PARTITIONS_UNKNOWN, message))
    return _resolve(backfill, question, read, chosen)


def _resolve(backfill: Backfill, question: RangeQuestion, read: TopicReading, chosen: tuple[int, ...]) -> Resolution:
    wanted, topic = backfill.spec.range, question.topic
    given = {each.partition: each for each in wanted.offsets or ()}
    found: dict[int, tuple[int, int]] = {}
    expired, cut = list[str](), list[str]()
    for partition in chosen:
        start, end = read.starts[partition], read.ends[partition]
        high = max(read.highs.get(partition, end), end)
        if wanted.offsets is not None:
            of = given[partition]
            problem = _beyond(of, topic, high)
            if problem is not None:
                return Refused(problem)
            first, last = of.from_, of.to
            gone = first < min(start, last)
        else:
            at_from = read.first[partition]
            at_to = None if question.end_ms is None else read.end[partition]
            first, last = end if at_from is None else at_from, high if at_to is None else at_to
            if at_to is not None and at_to < end:
                cut.append(f"partition {partition} ends at offset {at_to}, and its log at {end}")
            # The oldest record that is left is young enough, or none is left: those that are gone may have been, too.
            # The start of the log was asked for last, so it may be behind the first record of the range by now.
            gone = start > 0 and ((at_from is not None and at_from <= start) or start >= end)
        if last > end:
            return Unresolved(_open_transaction(topic, partition, end, high))
        if gone:
            wish = (
                f"and the range at {first}" if wanted.offsets is not None else "and what was before may be of the range"
            )
            expired.append(f"partition {partition} begins at offset {start} now, {wish}")
        first = min(max(first, start), end)
        last = min(max(last, first), end)
        if last > first:
            found[partition] = (first, last)
    note = ""
    if expired:
        more = f" (and {len(expired) - 1} more partitions like it)" if len(expired) > 1 else ""
        note = f"the oldest records of topic {topic!r} were deleted: {expired[0]}{more}"
        if wanted.expired == "Fail":
            remedy = (
                "create another Backfill with a later range, or with spec.range.expired: Ignore to take what is there"
            )
            return Refused(Problem(c.RANGE_EXPIRED, f"{note}: {remedy}"))
    behind = ""
    if cut:
        more = f" (and {len(cut) - 1} more partitions like it)" if len(cut) > 1 else ""
        behind = f"{cut[0]}{more}: the record there is spec.range.time.lateSeconds after to, and none behind it is read"
    whole = ResolvedRange(
        topic=topic,
        ranges=found,
        cluster_id=read.cluster_id,
        topic_id=read.topic_id,
        from_ms=question.from_ms,
        to_ms=question.to_ms,
        note=note,
        cut=behind,
    )
    return whole if wanted.sample is None else take_sample(whole, wanted.sample)


def take_sample(whole: ResolvedRange, size: str) -> ResolvedRange:
    """The beginning of each partition's range: a share of it, such as 0.5%, or its part of a number of offsets in all.

    Of a number small partitions leave to the others what they do not have.
    """
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
        "and the group reads committed records only: the range waits until the transaction ends; one that hangs is "
        "found and aborted with kafka-transactions.sh"
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
                f"which ends at {end}: create another Backfill that ends there, or wait for the records"
            )
            return Problem(c.OFFSETS_BEYOND_END, message)
    return None


def range_status(resolved: ResolvedRange) -> dict[str, Any]:
    """The fields of a status that hold a range."""
    status: dict[str, Any] = {
        "topic": resolved.topic,
        "resolvedRange": [
            {"partition": partition, "from": first, "to": end} for partition, (first, end) in resolved.ranges.items()
        ],
    }
    status |= identity(resolved)
    if resolved.from_ms is not None and resolved.to_ms is not None:
        # A status has whole seconds: the times themselves are in the spec, or `last` was resolved to whole ones.
        bounds = (resolved.from_ms, resolved.to_ms)
        status["resolvedTime"] = dict(zip(("from", "to"), (times.to_text(at / 1000) for at in bounds), strict=True))
    return status


def identity(resolved: ResolvedRange) -> dict[str, str | int]:
    """The ids of a range's cluster and topic, and the size of what it is a sample of, as far as there are any, by their
    names in a status and in settings."""
    known = zip(IDENTITY, (resolved.cluster_id, resolved.topic_id, resolved.sampled_from), strict=True)
    return {name: value for name, value in known if value is not None}


def read_range(backfill: Backfill) -> ResolvedRange | None:
    """The range in a Backfill's status; None before it was resolved, and where it cannot be read."""
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
    """The range in the settings of an attempt."""
    from_ms, to_ms, last = config.filter.from_ms, config.filter.to_ms, backfill.spec.range.last
    if last is not None and from_ms is not None and to_ms is None:
        # Settings of the last seconds have no end in time. It is the one that `ask_range` gave the question.
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
    """The reason why the offsets of a range are those of other records, or None: the group's cluster is another one.

    A topic that was created again is for the driver to find, which asks before each slice: a look of an observer may be
    older than the range.
    """
    if resolved is None or resolved.cluster_id is None or seen is None or not (seen.identified and seen.cluster_id):
        return None
    if seen.cluster_id == resolved.cluster_id:
        return None
    message = (
        f"the range was resolved on Kafka cluster {resolved.cluster_id}, and the ConsumerGroup is on Kafka cluster "
        f"{seen.cluster_id} now, where these offsets of topic {resolved.topic!r} are other records; what was handled "
        "so far stays handled: create another Backfill for the rest of the range"
    )
    return Problem(c.RANGE_LOST, message)


def _milliseconds(at: float | None) -> int | None:
    """Epoch milliseconds of whole seconds or of a time of the spec; Kafka's negative times are words."""
    return None if at is None else max(round(at * 1000), 0)


def _few(partitions: list[int]) -> str:
    shown = ", ".join(map(str, partitions[:SHOWN_MAX]))
    return shown if len(partitions) <= SHOWN_MAX else f"{shown} and {len(partitions) - SHOWN_MAX} more"
