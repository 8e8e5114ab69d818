"""Planning of slices and their tasks, and aggregation of the tasks' reports for the ledger. Pure functions.

A slice starts only after all tasks of the previous slice have ended. So executors are idle for 0.3 s between slices of
15 s, or for 1 s with 200 executors. Running several slices concurrently would gain only 2 to 6 %.
"""

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
    SuspectedRecord,
)

FIRST_OFFSETS: Final = 5_000
"""Number of offsets in a slice until a speed is measured."""
PARTITIONS_MIN: Final = 8
"""Minimum number of partitions that a task reads in a slice, unless fewer remain. A task reads more only if these
partitions have too few offsets.

More partitions per task mean shorter ranges. At the end of each range, up to 2,000 prefetched records are discarded.
"""
REPEATED_SHARE: Final = 8
"""The first repetition of a task by Spark handles 1/REPEATED_SHARE of the task's offsets; later ones handle one
offset."""
SUSPECTED_MAX: Final = 2_000
"""Maximum number of suspected records in a ledger. If the process dies while it handles a batch, all records of the
batch are suspected."""

Span = tuple[int, int]


class TaskRange(NamedTuple):
    """A range of offsets in one partition; `end` is exclusive."""

    partition: int
    first: int
    end: int

    @property
    def offsets(self) -> int:
        return self.end - self.first


Task = tuple[TaskRange, ...]
"""The ranges of one task. With `ordering: Partition`, all ranges of a partition in a slice belong to one task."""


def offsets_of(ranges: Iterable[TaskRange]) -> int:
    return sum(each.offsets for each in ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Limits of the next slice, for `tasks` concurrent tasks.

    - `ordered`: only one task at a time reads a partition.
    - `gapless`: each task reads at most one range of a partition.
    - `observed`: the speed of the last slice in offsets per second (0: unknown).
    - `rate_limit`: maximum records per second (None: unlimited).
    - `careful`: maximum number of offsets of a task after an executor has died (None: unlimited).
    """

    slice_records: int
    slice_seconds: int
    tasks: int
    ordered: bool
    gapless: bool = False
    observed: float = 0.0
    rate_limit: int | None = None
    careful: int | None = None


def slice_offsets(pace: Pace) -> int:
    """Return the number of offsets for a slice of at most about `slice_seconds`; at least 1."""
    limits = [pace.slice_records, pace.observed * pace.slice_seconds if pace.observed > 0 else FIRST_OFFSETS]
    if pace.rate_limit is not None:
        limits.append(pace.rate_limit * pace.slice_seconds)
    if pace.careful is not None:
        limits.append(pace.careful * pace.tasks)
    return max(1, int(min(limits)))


def plan_slice(remaining: Ranges, pace: Pace, ranges: Mapping[int, Span]) -> tuple[Task, ...]:
    """Return the tasks of the next slice, of about equal size; empty if no offsets remain. Each task prefers the
    partitions with the largest remaining share of their `ranges`. So the oldest records are read before retention
    removes them."""
    offsets = slice_offsets(pace)
    if not pace.ordered:
        parts = _cut_in_parts(remaining, offsets, pace.tasks)
        return tuple(piece for part in parts for piece in _cut_at_gaps(part)) if pace.gapless else tuple(parts)
    # A task reads only the first remaining range of a partition; offsets after a gap follow in a later slice.
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
    """Distribute the partitions to `hands` tasks, the largest first, each to the task with the fewest offsets."""
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
    """Return the first partitions of `left` that together have `offsets` offsets, but at least PARTITIONS_MIN."""
    chosen: dict[int, int] = {}
    for part, own in left.items():
        if len(chosen) >= PARTITIONS_MIN and offsets <= 0:
            break
        chosen[part] = own
        offsets -= own
    return chosen


def _shares(left: Mapping[int, int], offsets: int) -> dict[int, int]:
    """Divide `offsets` equally among the partitions. If a partition has fewer offsets than its share, larger partitions
    get the rest."""
    shares = dict.fromkeys(left, 0)
    open_ = sorted(left, key=lambda part: (left[part], part))
    for place, part in enumerate(open_):
        shares[part] = min(left[part], math.ceil(offsets / (len(open_) - place)))
        offsets -= shares[part]
    return {part: share for part, share in sorted(shares.items()) if share}


def _cut_in_parts(remaining: Ranges, offsets: int, tasks: int) -> list[Task]:
    """Cut the next `offsets` offsets, in the order of partitions, into `tasks` parts of equal size."""
    spans = ((partition, span) for partition, found in sorted(remaining.items()) for span in found)
    left = shortened(tuple(TaskRange(partition, first, end) for partition, (first, end) in spans), offsets)
    piece = math.ceil(offsets_of(left) / max(1, tasks))
    parts = []
    while left:
        parts.append(shortened(left, piece))
        left = behind(left, parts[-1])
    return parts


def _cut_at_gaps(task: Task) -> list[Task]:
    pieces: list[list[TaskRange]] = [[]]
    for each in task:
        if pieces[-1] and pieces[-1][-1].partition == each.partition:
            pieces.append([])
        pieces[-1].append(each)
    return list(map(tuple, pieces))


def shortened(task: Task, most: int) -> Task:
    """Return the first `most` offsets of a task, but at least one offset."""
    kept, left = [], max(1, most)
    for each in task:
        if left:
            kept.append(each._replace(end=min(each.end, each.first + left)))
            left -= kept[-1].offsets
    return tuple(kept)


def behind(task: Task, part: Task) -> Task:
    """Return the rest of a task after `part`, which must be a result of `shortened` for this task."""
    cut, *kept = task[len(part) - 1 :]
    return tuple(each for each in (cut._replace(first=part[-1].end), *kept) if each.offsets)


def part_of(task: Task, attempt: int) -> Task:
    """Return the part of a task to handle in Spark's task attempt `attempt` (from 0)."""
    if attempt == 0:
        return task
    return shortened(task, offsets_of(task) // REPEATED_SHARE if attempt == 1 else 1)


def without(remaining: Ranges, covered: Iterable[tuple[int, int, int]]) -> Ranges:
    """Return the remaining ranges without the `covered` offsets (partition, first, end). Adjacent ranges are merged."""
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
    return math.ceil(sum(map(_offsets_in, remaining.values())) / max(1, offsets))


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """The record at which a task stopped with `onError: Fail`."""

    partition: int
    offset: int
    error_class: str
    message: str


@dataclass(slots=True)
class TaskReport:
    """Result of a task, of a part of a task's request, or of all tasks of a slice.

    `covered` are the offsets whose records are handled and whose writes are acknowledged. Later records are not
    counted, and are handled again. `seconds` is the tasks' duration, including the time `waited` for the rate limit.
    `failures` are the records at which tasks stopped; `problem` is any other reason to stop. `died` has the records of
    the handler calls that were running when a handler's process died. `poison` counts records that failed as poison,
    `repeated` the tasks that Spark repeated.
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
    died: list[SuspectedRecord] = field(default_factory=list)
    poison: int = 0
    problem: RunProblem | None = None
    repeated: int = 0
    compared: dict[str, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    @property
    def offsets(self) -> int:
        return offsets_of(self.covered)

    @property
    def failure(self) -> FailedRecord | None:
        """The first record, by partition and offset, at which a task stopped."""
        return min(self.failures, key=lambda each: (each.partition, each.offset), default=None)

    @property
    def counts(self) -> Counts:
        return Counts(**{name: getattr(self, name) for name in COUNTED})

    @property
    def comparison(self) -> Comparison:
        return Comparison(**self.compared, samples=tuple(self.samples))

    def add(self, part: "TaskReport") -> None:
        for name in (*COUNTED, "covered", "seconds", "waited", "failures", "died", "poison", "repeated"):
            setattr(self, name, getattr(self, name) + getattr(part, name))
        problems = [each for each in (self.problem, part.problem) if each is not None]
        # A final problem takes precedence, because it ends the run.
        self.problem = max(problems, key=lambda each: each.final, default=None)
        self.compared = dict(Counter(self.compared) + Counter(part.compared))
        self.samples = (self.samples + part.samples)[:SAMPLES_MAX]

    def count_comparison(self, verdict: str, sample: Sample | None) -> None:
        """Count one comparison; `verdict` is the name of a field of `Comparison`."""
        self.compared[verdict] = self.compared.get(verdict, 0) + 1
        if sample is not None and len(self.samples) < SAMPLES_MAX:
            self.samples.append(sample)


def outcome_of(planned: Sequence[Task], reports: Mapping[int, TaskReport]) -> TaskReport:
    """Add up the reports of a slice's tasks. Raises BackfillFailed if a report is missing or covers unplanned
    offsets."""
    if set(reports) != set(range(len(planned))):
        seen = f"{len(reports)} of {len(planned)} tasks of the slice reported"
        raise BackfillFailed("SliceIncomplete", f"{seen}; the slice is repeated", final=False)
    for number, task in enumerate(planned):
        for part, first, end in reports[number].covered:
            if not any(each.partition == part and each.first <= first <= end <= each.end for each in task):
                seen = f"task {number} reports partition {part}, offsets {first} to {end}, outside of its ranges"
                raise BackfillFailed("SliceIncomplete", f"{seen}; the slice is repeated", final=False)
    return total_of(reports.values())


def total_of(reports: Iterable[TaskReport]) -> TaskReport:
    total = TaskReport()
    for report in reports:
        total.add(report)
    total.covered = sorted(each for each in total.covered if each.offsets > 0)
    return total


def suspected_after(
    known: Iterable[SuspectedRecord], died: Iterable[SuspectedRecord], remaining: Ranges
) -> tuple[SuspectedRecord, ...]:
    """Return the suspected records after a slice: adds up the deaths of each record, and removes covered records."""
    deaths: dict[tuple[int, int, str], int] = {}
    for each in (*known, *died):
        if any(first <= each.offset < end for first, end in remaining.get(each.partition, ())):
            place = each.partition, each.offset, each.side
            deaths[place] = deaths.get(place, 0) + each.deaths
    # If there are too many records, those with the most deaths are kept.
    kept = sorted(deaths.items(), key=lambda entry: (-entry[1], entry[0]))[:SUSPECTED_MAX]
    return tuple(
        SuspectedRecord(partition=p, offset=o, side=side, deaths=count) for (p, o, side), count in sorted(kept)
    )


def merged(one: Comparison, other: Comparison) -> Comparison:
    counts = {name: getattr(one, name) + getattr(other, name) for name in COMPARED.values()}
    return replace(one, **counts, samples=(*one.samples, *other.samples)[:SAMPLES_MAX])
