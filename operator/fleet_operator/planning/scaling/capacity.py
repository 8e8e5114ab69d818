"""The capacity of a worker: the records per second that it can handle.

Workers report their busy time and the number of records that they completed. Records divided by busy time give the rate
of a worker that is always busy, with or without a backlog. If no worker is reachable, the commit rate of workers with a
backlog is used instead, because only these workers are known to be busy.

Decision: docs/decisions/0058-load-by-worker.md.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fleet_operator.planning.observation import ProgressSample, WorkerObservation
from fleet_operator.planning.scaling.dealing import owned_by
from fleet_operator.planning.scaling.facts import Partition, Rates, ScalingFacts, rates_over, span, window

BUSY_WINDOWS_S: Final = (30.0, 60.0, 120.0, 300.0, 900.0)
"""Windows in seconds over which reports are evaluated. The shortest window with enough records is used: a changed
handler is noticed early, and a few slow records do not determine the capacity."""
RECORDS_ENOUGH: Final = 20
BUSY_ENOUGH_S: Final = 1.0
SILENT_S: Final = 120.0
"""A worker's report that is older than this many seconds does not count. The limit is twice the interval at which
idle workers are polled."""
DENSE_S: Final = 60.0
SPARSE_S: Final = 60.0
"""Among reports older than `DENSE_S` seconds, only one every `SPARSE_S` seconds is kept."""

SETTLED_S: Final = 2.0
"""Seconds after a rebalance during which samples are ignored: a new owner gets records before its first commit."""
MEASURE_S: Final = 20.0
COMMITS_MEASURED: Final = 4.0
"""Minimum length of a commit measurement, in seconds (`MEASURE_S`) and in commit intervals (`COMMITS_MEASURED`),
because committed offsets advance in steps."""
POLL_S: Final = 5.0
"""Seconds added to the commit interval, because the operator observes a commit only at its next poll."""
KEPT: Final = 12
"""Number of commit measurements that are kept; they cover about four minutes of backlog. The capacity is their 90th
percentile: many causes make a worker slower than its capacity, but nothing makes it faster."""
PERCENTILE: Final = 0.9


class BusySample(NamedTuple):
    """A worker's report (`at` in epoch seconds): busy seconds and completed records since its process started."""

    at: float
    busy_s: float
    records: int


BusySamples = Mapping[str, tuple[BusySample, ...]]
"""Reports keyed by pod, the oldest first."""


def with_reports(known: BusySamples, reports: Iterable[WorkerObservation], now: float) -> BusySamples:
    """Add the workers' newest reports. If a worker's process restarted, its older samples are dropped."""
    found = {pod: each for pod, each in known.items() if now - each[-1].at < BUSY_WINDOWS_S[-1]}
    for report in reports:
        if report.work is None:
            continue
        newest = BusySample(report.heard_at, report.work.busy_seconds, report.work.records)
        before = found.get(report.pod, ())
        if before and newest.at <= before[-1].at:
            continue
        if before and (newest.records < before[-1].records or newest.busy_s < before[-1].busy_s):
            before = ()
        found[report.pod] = (*_thinned(before, newest.at), newest)
    return found


def _thinned(samples: tuple[BusySample, ...], now: float) -> tuple[BusySample, ...]:
    kept: list[BusySample] = []
    for sample in samples:
        young = now - sample.at <= DENSE_S or sample is samples[-1]
        if young or not kept or sample.at - kept[-1].at >= SPARSE_S:
            kept.append(sample)
    first = max((place for place, each in enumerate(kept) if now - each.at >= BUSY_WINDOWS_S[-1]), default=0)
    return tuple(kept[first:])


def busy_capacity(samples: BusySamples, now: float) -> float | None:
    """Return the records per second of a worker that is always busy; None while the reports show too few records or too
    little busy time. In the longest window, one record is enough, because a slow handler completes few records."""
    records, busy_s = 0, 0.0
    for seconds in BUSY_WINDOWS_S:
        records, busy_s = 0, 0.0
        for first, last in _ends(samples, now, seconds):
            records += last.records - first.records
            busy_s += last.busy_s - first.busy_s
        if records >= RECORDS_ENOUGH and busy_s >= BUSY_ENOUGH_S:
            break
    return records / busy_s if records > 0 and busy_s >= BUSY_ENOUGH_S else None


def _ends(samples: BusySamples, now: float, seconds: float) -> Iterator[tuple[BusySample, BusySample]]:
    """Yield a pair of samples for each worker that reported recently. The first sample of the pair is about `seconds`
    older than the second, which is the worker's newest."""
    for of_pod in samples.values():
        last = of_pod[-1]
        begin = max((place for place, each in enumerate(of_pod) if each.at <= last.at - seconds), default=0)
        if now - last.at <= SILENT_S and last.at > of_pod[begin].at:
            yield of_pod[begin], last


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Commit rates in records per second, over a window without a rebalance. `at`: the end of the window, in epoch
    seconds.

    - `busy`: the mean rate of the workers that had a backlog in the whole window; None if no worker had one.
    - `commits`: the rate of all workers together. `mean`: the average rate of a worker.
    - `mostly_busy`: True if at least half of the workers with partitions had a backlog. A worker with waiting records
      and no commits also counts as having a backlog.
    """

    at: float
    busy: float | None
    commits: float
    mean: float
    mostly_busy: bool


def measure_fleet(facts: ScalingFacts, seconds: float = 0.0) -> Measurement | None:
    """Measure the workers' commits up to the newest sample, over `seconds` or, if longer, the minimum length.

    None if the group was not Stable during the whole window. Also None if, during the window, a member's partition got
    its first commit or its committed offset decreased. Partitions without a commit do not count."""
    since, observed, commit_interval_s = facts.stable_since, facts.observed, facts.commit_interval_s
    if since is None or observed is None:
        return None
    length = max(MEASURE_S, COMMITS_MEASURED * commit_interval_s, seconds)
    chosen = window([sample for sample in observed.samples if sample.at >= since + SETTLED_S], length)
    if span(chosen) < length:
        return None
    rates = rates_over(chosen)
    assert rates is not None, "the samples span at least the minimum length"
    busy, total, owners, waiting = list[float](), 0.0, 0, 0
    for partitions in owned_by(facts.members):
        owned = [key for key in partitions if key in chosen[0].committed or key in chosen[-1].committed]
        if not owned:
            continue
        if any(key not in rates.commits for key in owned):
            return None
        owners += 1
        rate = sum(rates.commits[key] for key in owned)
        total += rate
        if has_backlog(chosen, owned, rates, commit_interval_s=commit_interval_s):
            busy.append(rate)
        waiting += _least_lag(chosen, owned) > rate * (commit_interval_s + POLL_S)
    if not owners:
        return None
    return Measurement(
        at=chosen[-1].at,
        busy=sum(busy) / len(busy) if busy else None,
        commits=total,
        mean=total / owners,
        mostly_busy=2 * waiting >= owners,
    )


def has_backlog(
    samples: Sequence[ProgressSample], partitions: Iterable[Partition], rates: Rates, *, commit_interval_s: float
) -> bool:
    """True if the worker of these partitions was busy in all samples.

    It was busy if more records waited than it handles in one commit interval plus one poll interval. Partitions whose
    commits do not advance are ignored, because they do not show that the worker is busy."""
    moving = [key for key in partitions if rates.commits.get(key, 0.0) > 0.0]
    rate = sum(rates.commits[key] for key in moving)
    return bool(moving) and _least_lag(samples, moving) > rate * (commit_interval_s + POLL_S)


def _least_lag(samples: Iterable[ProgressSample], partitions: Sequence[Partition]) -> int:
    """The smallest total lag of these partitions in any sample. An unknown offset counts as zero."""
    return min(
        sum(max(0, sample.end_offsets.get(key, 0) - sample.committed.get(key, 0)) for key in partitions)
        for sample in samples
    )


def percentile(measured: Sequence[float]) -> float | None:
    if not measured:
        return None
    ordered = sorted(measured)
    return ordered[min(len(ordered) - 1, int(PERCENTILE * len(ordered)))]
