"""Slices: how much is read next, by which tasks, and what the reports of the tasks mean for the ledger. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.contract.backfill_ledger import (
    COMPARED,
    COUNTED,
    SAMPLES_MAX,
    Comparison,
    Counts,
    Ranges,
    RunProblem,
    Sample,
    Suspect,
)

FIRST_OFFSETS: Final = 5_000
"""Offsets of a slice while no rate is known."""
PARTITIONS_MIN: Final = 8
"""Partitions that a task reads in a slice, if there are so many. Each range ends with up to 2,000 records that were
fetched ahead and are thrown away, so ranges are few and long."""
REPEATED_SHARE: Final = 8
"""Part of its ranges that a task takes when Spark begins it again; from the third time on it takes one offset."""
SUSPECTS_MAX: Final = 2_000
"""Suspects that a ledger remembers; those of a batch are as many as its records."""

Span = tuple[int, int]


class TaskRange(NamedTuple):
    """Offsets of one partition, the end exclusive."""

    partition: int
    first: int
    end: int

    @property
    def offsets(self) -> int:
        return self.end - self.first


Task = tuple[TaskRange, ...]
"""The ranges of one task. With `ordering: Partition` all of a partition's in a slice are in one task."""


def offsets_of(ranges: Iterable[TaskRange]) -> int:
    """The number of offsets of a task, or of other ranges."""
    return sum(each.offsets for each in ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Limits of a slice. `observed` is the speed of the last one in offsets per second, 0 while unknown; `rate_limit`
    the ordered one. `ordered`: a partition is read by one task at a time. `gapless`: a task reads one range of a
    partition. `tasks` run at a time. `careful` bounds the offsets of each, where one of them may end its executor."""

    slice_records: int
    slice_seconds: int
    tasks: int
    ordered: bool
    gapless: bool = False
    observed: float = 0.0
    rate_limit: int | None = None
    careful: int | None = None


def slice_offsets(pace: Pace) -> int:
    """The number of offsets of a slice that lasts about `slice_seconds` at most; never zero."""
    limits = [pace.slice_records, pace.observed * pace.slice_seconds if pace.observed > 0 else FIRST_OFFSETS]
    if pace.rate_limit is not None:
        limits.append(pace.rate_limit * pace.slice_seconds)
    if pace.careful is not None:
        limits.append(pace.careful * pace.tasks)
    return max(1, int(min(limits)))


def plan_slice(remaining: Ranges, pace: Pace, ranges: Mapping[int, Span]) -> tuple[Task, ...]:
    """The tasks of the next slice, of about equal size; empty if nothing remains. `ranges` are those of the whole run:
    each task reads the partitions that are furthest behind, so that the oldest records of each come before retention
    removes them."""
    offsets = slice_offsets(pace)
    if not pace.ordered:
        parts = _cut_in_parts(remaining, offsets, pace.tasks)
        return tuple(piece for part in parts for piece in _cut_at_gaps(part)) if pace.gapless else tuple(parts)
    # A task reads one range of a partition; what lies behind a gap comes with the next slice.
    firsts = {part: spans[0] for part, spans in sorted(remaining.items()) if spans}
    left = {part: end - first for part, (first, end) in firsts.items()}
    share_left = {part: _offsets_in(remaining[part]) / _offsets_in([ranges[part]]) for part in firsts}
    dealt = _dealt(left, min(pace.tasks, len(left)))
    most = math.ceil(offsets / max(1, len(dealt)))
    tasks = []
    for partitions in dealt:
        furthest = sorted(partitions, key=lambda part: (-share_left[part], part))
        shares = _shares(_enough({part: left[part] for part in furthest}, most), most)
        tasks.append(tuple(TaskRange(part, firsts[part][0], firsts[part][0] + share) for part, share in shares.items()))
    return tuple(tasks)


def _dealt(left: Mapping[int, int], hands: int) -> list[list[int]]:
    """The partitions dealt out to so many tasks, the largest first, each to the task that has the least."""
    dealt: list[list[int]] = [[] for _ in range(hands)]
    sizes = [0] * hands
    for part in sorted(left, key=lambda each: (-left[each], each)):
        least = sizes.index(min(sizes))
        dealt[least].append(part)
        sizes[least] += left[part]
    return dealt


def _offsets_in(spans: Iterable[Span]) -> int:
    return sum(end - first for first, end in spans)


def _enough(left: Mapping[int, int], offsets: int) -> dict[int, int]:
    """The first partitions that have so many offsets together, and PARTITIONS_MIN at least."""
    chosen: dict[int, int] = {}
    for part, own in left.items():
        if len(chosen) >= PARTITIONS_MIN and offsets <= 0:
            break
        chosen[part] = own
        offsets -= own
    return chosen


def _shares(left: Mapping[int, int], offsets: int) -> dict[int, int]:
    """The offsets of each partition: equal shares, and what one cannot use goes to the others."""
    shares = dict.fromkeys(left, 0)
    open_ = sorted(left, key=lambda part: (left[part], part))
    for place, part in enumerate(open_):
        # Ascending, so that the shares of the larger ones grow by what the smaller ones leave.
        shares[part] = min(left[part], math.ceil(offsets / (len(open_) - place)))
        offsets -= shares[part]
    return {part: share for part, share in sorted(shares.items()) if share}


def _cut_in_parts(remaining: Ranges, offsets: int, tasks: int) -> list[Task]:
    """The next offsets in the order of partitions, cut into so many parts."""
    spans = ((partition, span) for partition, found in sorted(remaining.items()) for span in found)
    left = shortened(tuple(TaskRange(partition, first, end) for partition, (first, end) in spans), offsets)
    piece = math.ceil(offsets_of(left) / max(1, tasks))
    parts = []
    while left:
        parts.append(shortened(left, piece))
        left = behind(left, parts[-1])
    return parts


def _cut_at_gaps(task: Task) -> list[Task]:
    """The task in pieces, none of which has two ranges of a partition."""
    pieces: list[list[TaskRange]] = [[]]
    for each in task:
        if pieces[-1] and pieces[-1][-1].partition == each.partition:
            pieces.append([])
        pieces[-1].append(each)
    return list(map(tuple, pieces))


def shortened(task: Task, most: int) -> Task:
    """The first `most` offsets of a task, at least one."""
    kept, left = [], max(1, most)
    for each in task:
        if left:
            kept.append(each._replace(end=min(each.end, each.first + left)))
            left -= kept[-1].offsets
    return tuple(kept)


def behind(task: Task, part: Task) -> Task:
    """The task without its first part, as `shortened` makes it."""
    cut, *kept = task[len(part) - 1 :]
    return tuple(each for each in (cut._replace(first=part[-1].end), *kept) if each.offsets)


def part_of(task: Task, attempt: int) -> Task:
    """The part of a task that this attempt of Spark's takes, the first one with the number 0."""
    if attempt == 0:
        return task
    return shortened(task, offsets_of(task) // REPEATED_SHARE if attempt == 1 else 1)


def without(remaining: Ranges, covered: Iterable[tuple[int, int, int]]) -> Ranges:
    """The remaining ranges when these offsets (partition, first, end) are covered; adjacent ranges become one."""
    left = {part: list(spans) for part, spans in remaining.items()}
    for part, first, end in covered:
        left[part] = [piece for span in left.get(part, []) for piece in _cut(span, first, end)]
    return {part: tuple(_merged(spans)) for part, spans in sorted(left.items()) if spans}


def _cut(span: Span, first: int, end: int) -> list[Span]:
    if end <= span[0] or span[1] <= first:
        return [span]
    return [each for each in ((span[0], first), (end, span[1])) if each[0] < each[1]]


def _merged(spans: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for first, end in sorted(spans):
        if merged and merged[-1][1] >= first:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((first, end))
    return merged


def slices_left(remaining: Ranges, offsets: int) -> int:
    """An estimate of the slices to come, each of so many offsets."""
    return math.ceil(sum(map(_offsets_in, remaining.values())) / max(1, offsets))


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """The record at which a task stopped, by `onError: Fail`."""

    partition: int
    offset: int
    error_class: str
    message: str


@dataclass(slots=True)
class TaskReport:
    """The summary of a task, of a part of one, or of all tasks of a slice. `covered` are the offsets of which all is
    handled, written and acknowledged; what a task has taken beyond them is not counted, and comes again.

    `waited` are the seconds that the rate limit cost. `failures` are the records at which tasks stopped. `died` are the
    records that the handler's process had in hand when it died, `problem` is why a task stopped otherwise. `repeated`
    counts tasks that Spark has begun again.
    """

    covered: list[TaskRange] = field(default_factory=list)
    records_in: int = 0
    records_out: int = 0
    failed: int = 0
    dropped: int = 0
    filtered: int = 0
    bytes_in: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    failures: list[FailedRecord] = field(default_factory=list)
    died: list[Suspect] = field(default_factory=list)
    poison: int = 0
    problem: RunProblem | None = None
    repeated: int = 0
    compared: dict[str, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    @property
    def offsets(self) -> int:
        """The number of covered offsets."""
        return offsets_of(self.covered)

    @property
    def failure(self) -> FailedRecord | None:
        """The first of the records at which tasks stopped."""
        return min(self.failures, key=lambda each: (each.partition, each.offset), default=None)

    @property
    def counts(self) -> Counts:
        """The counts as the ledger has them."""
        return Counts(**{name: getattr(self, name) for name in COUNTED})

    @property
    def comparison(self) -> Comparison:
        """The comparisons as the ledger has them."""
        return Comparison(**self.compared, samples=tuple(self.samples))

    def add(self, part: TaskReport) -> None:
        """Add what a part of the task, or one of the tasks, has done."""
        for name in (*COUNTED, "covered", "seconds", "waited", "failures", "died", "poison", "repeated"):
            setattr(self, name, getattr(self, name) + getattr(part, name))
        problems = [each for each in (self.problem, part.problem) if each is not None]
        # One that would come again ends the run, whatever another may be.
        self.problem = max(problems, key=lambda each: each.final, default=None)
        self.compared = dict(Counter(self.compared) + Counter(part.compared))
        self.samples = (self.samples + part.samples)[:SAMPLES_MAX]

    def note(self, verdict: str, sample: Sample | None) -> None:
        """Count one comparison by the field of `Comparison`."""
        self.compared[verdict] = self.compared.get(verdict, 0) + 1
        if sample is not None and len(self.samples) < SAMPLES_MAX:
            self.samples.append(sample)


def outcome_of(planned: Sequence[Task], reports: Mapping[int, TaskReport]) -> TaskReport:
    """The outcome of a slice from the reports of its tasks, by their places in it. Raises BackfillFailed if one lacks,
    or says that it has done what it was not asked for."""
    if set(reports) != set(range(len(planned))):
        seen = f"{len(reports)} of {len(planned)} tasks of the slice reported"
        raise BackfillFailed("SliceIncomplete", f"{seen}; the slice is repeated", final=False)
    for number, task in enumerate(planned):
        for part, first, end in reports[number].covered:
            if not any(each.partition == part and each.first <= first <= end <= each.end for each in task):
                seen = f"task {number} says that it has read partition {part} from {first} to {end}, which it was not"
                raise BackfillFailed("SliceIncomplete", f"{seen} to read; the slice is repeated", final=False)
    return total_of(reports.values())


def total_of(reports: Iterable[TaskReport]) -> TaskReport:
    """The outcome of tasks that chose their ranges themselves."""
    total = TaskReport()
    for report in reports:
        total.add(report)
    total.covered = sorted(each for each in total.covered if each.offsets > 0)
    return total


def suspected(known: Iterable[Suspect], died: Iterable[Suspect], remaining: Ranges) -> tuple[Suspect, ...]:
    """The suspects after a slice: the deaths of a record add up, and one that was handled is none any more."""
    deaths: dict[tuple[int, int, str], int] = {}
    for each in (*known, *died):
        if any(first <= each.offset < end for first, end in remaining.get(each.partition, ())):
            place = each.partition, each.offset, each.side
            deaths[place] = deaths.get(place, 0) + each.deaths
    # Of too many the ones that died more often are kept.
    kept = sorted(deaths.items(), key=lambda entry: (-entry[1], entry[0]))[:SUSPECTS_MAX]
    return tuple(Suspect(partition=p, offset=o, side=side, deaths=count) for (p, o, side), count in sorted(kept))


def merged(one: Comparison, other: Comparison) -> Comparison:
    """The sums, with the first samples."""
    counts = {name: getattr(one, name) + getattr(other, name) for name in COMPARED.values()}
    return replace(one, **counts, samples=(*one.samples, *other.samples)[:SAMPLES_MAX])
