"""Rates of arrival and of commits over a fixed window, from samples of a group's progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet_operator.planning.observation import ProgressSample

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Records per second of each partition over `seconds`.

    `arrival` and `commits` lack partitions that were unknown at one end of the window, or whose offsets went back
    within it: a topic that was made anew, a reset.
    """

    seconds: float
    arrival: Mapping[Partition, float]
    commits: Mapping[Partition, float]


def window(samples: Sequence[ProgressSample], seconds: float) -> Sequence[ProgressSample]:
    """The newest samples that span at least so many seconds; all of them where they span less."""
    if not samples:
        return samples
    begin = samples[-1].at - seconds
    first = max((place for place, sample in enumerate(samples) if sample.at <= begin), default=0)
    return samples[first:]


def span(samples: Sequence[ProgressSample]) -> float:
    """Seconds from the first sample to the last."""
    return samples[-1].at - samples[0].at if samples else 0.0


def rates_over(samples: Sequence[ProgressSample]) -> Rates | None:
    """The rates from the first sample to the last; None without two of different times."""
    seconds = span(samples)
    if seconds <= 0.0:
        return None
    first, last = samples[0], samples[-1]
    return Rates(
        seconds=seconds,
        arrival=_rates(first.end_offsets, last.end_offsets, seconds),
        commits=_rates(first.committed, last.committed, seconds),
    )


def _rates(first: Mapping[Partition, int], last: Mapping[Partition, int], seconds: float) -> dict[Partition, float]:
    both = first.keys() & last.keys()
    return {key: (last[key] - first[key]) / seconds for key in both if last[key] >= first[key]}
