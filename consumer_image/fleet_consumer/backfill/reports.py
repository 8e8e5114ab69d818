"""Reports of a slice's tasks, and their meaning for the ledger. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.slices import TaskRange
from fleet_consumer.contract.backfill_ledger import COMPARED, SAMPLES_MAX, Comparison, Counts, Sample


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
        return Counts(
            records_in=self.records_in,
            records_out=self.records_out,
            failed=self.failed,
            dropped=self.dropped,
            filtered=self.filtered,
        )

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
    largest: int
    waited: float

    @property
    def offsets(self) -> int:
        """The number of covered offsets."""
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
    counts, comparison = Counts(), Comparison()
    for _, report in matched:
        counts = counts.plus(report.counts)
        comparison = merged(comparison, Comparison(**report.compared, samples=tuple(report.samples)))
    failures = [report.failure for _, report in matched if report.failure is not None]
    return SliceOutcome(
        covered=tuple(sorted(each for each in covered if each[1] < each[2])),
        counts=counts,
        comparison=comparison,
        failure=failures[0] if failures else None,
        failures=len(failures),
        largest=max((report.largest for report in reports.values()), default=0),
        waited=sum(report.waited for report in reports.values()),
    )


def merged(one: Comparison, other: Comparison) -> Comparison:
    """The sums, with the first samples."""
    counts = {name: getattr(one, name) + getattr(other, name) for name in COMPARED.values()}
    return replace(one, **counts, samples=(*one.samples, *other.samples)[:SAMPLES_MAX])


def _incomplete(planned: Sequence[TaskRange], reports: Mapping[int, TaskReport], seen: str) -> BackfillFailed:
    text = f"{len(reports)} of {len(planned)} tasks of the slice reported, and {seen}; the slice is repeated"
    return BackfillFailed("SliceIncomplete", text, final=False)
