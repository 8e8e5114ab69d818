"""Slices: how much is read next, by which tasks, and what the reports of the tasks mean for the ledger. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.contract.backfill_ledger import COMPARED, COUNTS, SAMPLES_MAX, Comparison, Counts, Ranges, Sample

FIRST_OFFSETS: Final = 5_000
"""Offsets of a slice while no rate is known."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TaskRange:
    """The offsets of one task. Tasks of one `layer` are read together: it has at most one range of each partition."""

    partition: int
    first: int
    end: int
    layer: int = 0

    def __contains__(self, place: tuple[int, int]) -> bool:
        partition, offset = place
        return partition == self.partition and self.first <= offset < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Limits of a slice. `observed` is the speed of the last one in offsets per second, 0 while unknown; `rate_limit`
    the ordered one. `ordered`: a partition is read by one task at a time."""

    slice_records: int
    slice_seconds: int
    parallelism: int
    ordered: bool
    observed: float = 0.0
    rate_limit: int | None = None


def slice_offsets(pace: Pace) -> int:
    """The number of offsets of a slice that lasts about `slice_seconds` at most; never zero."""
    speed = pace.observed if pace.observed > 0 else math.inf
    if pace.rate_limit is not None:
        speed = min(speed, pace.rate_limit)
    most = pace.slice_records
    if not pace.observed > 0:
        most = min(most, FIRST_OFFSETS)
    timed = speed * pace.slice_seconds
    return max(1, most if timed >= most else int(timed))


def plan_slice(remaining: Ranges, pace: Pace) -> tuple[TaskRange, ...]:
    """The tasks of the next slice, in order; empty if nothing remains."""
    left = {part: sum(end - first for first, end in spans) for part, spans in sorted(remaining.items())}
    shares = _shares({part: count for part, count in left.items() if count}, slice_offsets(pace))
    if pace.ordered:
        # A task reads one range; what lies behind a gap comes with the next slice.
        return tuple(
            TaskRange(part, spans[0][0], min(spans[0][0] + share, spans[0][1]))
            for part, share in shares.items()
            if (spans := remaining[part])
        )
    piece = max(1, math.ceil(sum(shares.values()) / max(1, pace.parallelism)))
    return tuple(
        TaskRange(part, first, end, layer)
        for part, share in shares.items()
        for layer, (first, end) in enumerate(_pieces(remaining[part], share, piece))
    )


def _shares(left: Mapping[int, int], offsets: int) -> dict[int, int]:
    """The offsets of each partition: equal shares, and what one cannot use goes to the others."""
    shares = dict.fromkeys(left, 0)
    open_ = sorted(left, key=lambda part: (left[part], part))
    for place, part in enumerate(open_):
        # Ascending, so that the shares of the larger ones grow by what the smaller ones leave.
        shares[part] = min(left[part], math.ceil(offsets / (len(open_) - place)))
        offsets -= shares[part]
    return {part: share for part, share in sorted(shares.items()) if share}


def _pieces(spans: Iterable[Span], offsets: int, piece: int) -> list[Span]:
    pieces: list[Span] = []
    for first, last in spans:
        end = min(last, first + offsets)
        while first < end:
            pieces.append((first, min(first + piece, end)))
            offsets -= pieces[-1][1] - first
            first = pieces[-1][1]
    return pieces


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
    left = sum(end - first for spans in remaining.values() for first, end in spans)
    return math.ceil(left / max(1, offsets))


def waves(tasks: int, cores: int) -> int:
    """The number of tasks that run one after another."""
    return max(1, math.ceil(tasks / max(1, cores)))


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """The record at which a task stopped, by `onError: Fail`."""

    partition: int
    offset: int
    error_class: str
    message: str


@dataclass(slots=True)
class TaskReport:
    """One task's summary. `first` is the place (partition, offset) of the first record that it read, None without any.

    `stop` is the offset from which on nothing was taken; None: all of its range is covered. `largest` is the size of
    the largest record, `waited` the seconds that the rate limit cost.
    """

    first: tuple[int, int] | None = None
    stop: int | None = None
    records_in: int = 0
    records_out: int = 0
    failed: int = 0
    dropped: int = 0
    filtered: int = 0
    largest: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    failure: FailedRecord | None = None
    compared: dict[str, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    @property
    def counts(self) -> Counts:
        """The counts as the ledger has them."""
        return Counts(**{name: getattr(self, name) for name in COUNTS.values()})

    def note(self, verdict: str, sample: Sample | None) -> None:
        """Count one comparison by the field of `Comparison`."""
        self.compared[verdict] = self.compared.get(verdict, 0) + 1
        if sample is not None and len(self.samples) < SAMPLES_MAX:
            self.samples.append(sample)


@dataclass(frozen=True, slots=True)
class SliceOutcome:
    """The outcome of a slice: the covered offsets (partition, first, end), counts, and the first failed record."""

    covered: tuple[tuple[int, int, int], ...]
    counts: Counts
    comparison: Comparison
    failure: FailedRecord | None
    failures: int
    waited: float

    @property
    def offsets(self) -> int:
        return sum(end - first for _, first, end in self.covered)


def outcome_of(planned: Sequence[TaskRange], reports: Mapping[int, TaskReport]) -> SliceOutcome:
    """The outcome of a slice from the reports of its tasks, by Spark's numbers. Raises BackfillFailed if one lacks.

    A task does not know its range, and Spark does not promise an order: the first record tells them apart. Tasks
    without any record are as many as the ranges that no other task has read, and these hold no records.
    """
    unread = list(planned)
    matched: list[tuple[TaskRange, TaskReport]] = []
    empty = 0
    for report in reports.values():
        if report.first is None:
            empty += 1
            continue
        of = next((each for each in unread if report.first in each), None)
        if of is None:
            raise _incomplete(planned, reports, f"one read partition {report.first[0]} at offset {report.first[1]}")
        unread.remove(of)
        matched.append((of, report))
    if len(unread) != empty:
        raise _incomplete(planned, reports, f"{len(unread)} ranges were not read and {empty} tasks were empty")
    matched.sort(key=lambda pair: (pair[0].partition, pair[0].first))
    covered = [(of.partition, of.first, of.end if rep.stop is None else rep.stop) for of, rep in matched]
    covered += [(of.partition, of.first, of.end) for of in unread]
    counts = Counts()
    for _, report in matched:
        counts = counts.plus(report.counts)
    failures = [report.failure for _, report in matched if report.failure is not None]
    return SliceOutcome(
        covered=tuple(sorted(each for each in covered if each[1] < each[2])),
        counts=counts,
        comparison=compared(report for _, report in matched),
        failure=failures[0] if failures else None,
        failures=len(failures),
        waited=sum(report.waited for report in reports.values()),
    )


def compared(reports: Iterable[TaskReport]) -> Comparison:
    """The comparisons of these tasks together."""
    total = Comparison()
    for report in reports:
        total = merged(total, Comparison(**report.compared, samples=tuple(report.samples)))
    return total


def merged(one: Comparison, other: Comparison) -> Comparison:
    """The sums, with the first samples."""
    counts = {name: getattr(one, name) + getattr(other, name) for name in COMPARED.values()}
    return replace(one, **counts, samples=(*one.samples, *other.samples)[:SAMPLES_MAX])


def _incomplete(planned: Sequence[TaskRange], reports: Mapping[int, TaskReport], seen: str) -> BackfillFailed:
    text = f"{len(reports)} of {len(planned)} tasks of the slice reported, and {seen}; the slice is repeated"
    return BackfillFailed("SliceIncomplete", text, final=False)
