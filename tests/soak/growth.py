"""Growth of a process: medians of the middle and the last third of its life are compared. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Growth", "Sample", "growth"]

FEWEST = 9
"""The least number of samples per third for a meaningful median."""
LIBRARY_THREADS = 1 + 3 * 3
"""librdkafka's own, and one for each of three addresses and three brokers, twice while a broker's successor begins."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a process: when (seconds), resident memory in MiB, its own threads, and those of librdkafka.

    librdkafka has a thread for each broker that it knows and ends it when the broker is gone, so the number of its
    threads comes and goes with the brokers; of ours there are always the same.
    """

    at: float
    rss_mib: float
    threads: int
    library_threads: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Medians of two thirds of a life, and the slope between them."""

    rss_mib_middle: float
    rss_mib_last: float
    rss_mib_per_hour: float
    threads_middle: float
    threads_last: float
    library_threads_most: int

    def excess(self, mib: float) -> list[str]:
        """Excessive growth: memory by more than `mib`, our threads by one, librdkafka's beyond its need."""
        found = []
        if self.rss_mib_last - self.rss_mib_middle > mib:
            found.append(f"memory grew from {self.rss_mib_middle:.1f} to {self.rss_mib_last:.1f} MiB")
        if self.threads_last >= self.threads_middle + 1:
            found.append(f"threads grew from {self.threads_middle:g} to {self.threads_last:g}")
        if self.library_threads_most > LIBRARY_THREADS:
            found.append(f"librdkafka had {self.library_threads_most} threads")
        return found


def growth(samples: Sequence[Sample]) -> Growth | None:
    """The growth after warm-up, which is the first third; None with too few samples."""
    if len(samples) < FEWEST:
        return None
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[-third:]
    rss = [statistics.median(each.rss_mib for each in part) for part in (middle, last)]
    at = [statistics.median(each.at for each in part) for part in (middle, last)]
    threads = [statistics.median(each.threads for each in part) for part in (middle, last)]
    library = max(each.library_threads for each in samples)
    return Growth(rss[0], rss[1], (rss[1] - rss[0]) / (at[1] - at[0]) * 3600, threads[0], threads[1], library)
