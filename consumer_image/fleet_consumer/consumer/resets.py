"""Reports of positions that their log no longer had: offsets skipped, and offsets that the cluster lost."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet_consumer.record import TopicPartition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A position that its broker did not have, and the start where reading went on instead."""

    partition: TopicPartition
    position: int
    start: int

    @property
    def skipped(self) -> int:
        """The number of offsets from `position` up to and without `start`, deleted before they were read."""
        return max(0, self.start - self.position)


@dataclass(frozen=True, slots=True)
class OutOfRangeReport:
    """A consumer's OFFSET_OUT_OF_RANGE errors: their number, the offsets skipped in all, the last one, and the last one
    of each partition."""

    count: int = 0
    skipped: int = 0
    last: OffsetReset | None = None
    by_partition: Mapping[TopicPartition, OffsetReset] = field(default_factory=dict, compare=False)

    def plus(self, reset: OffsetReset) -> OutOfRangeReport:
        """The report with one more, which is logged."""
        logger.warning(
            "partition %s-%d: reading goes on at %d; %d offsets were skipped, %d up to and without %d",
            *(*reset.partition, reset.start, reset.skipped, reset.position, max(reset.position, reset.start)),
        )
        by_partition = {**self.by_partition, reset.partition: reset}
        return OutOfRangeReport(self.count + 1, self.skipped + reset.skipped, reset, by_partition)


@dataclass(frozen=True, slots=True)
class Truncation:
    """A position reached by reading records that the log no longer has, and the start where reading went on.

    An unclean election cut the log at `start`. If the topic was `remade`, deleted and created again, the log is another
    one, and reading went on at its beginning.
    """

    partition: TopicPartition
    position: int
    start: int
    remade: bool = False

    @property
    def cut(self) -> int:
        """The number of offsets read that are gone, or are other records now; 0 for a remade topic."""
        return 0 if self.remade else max(0, self.position - self.start)


@dataclass(frozen=True, slots=True)
class TruncationReport:
    """A consumer's truncations: their number, those of remade topics, the offsets cut in all, and the last one."""

    count: int = 0
    remade: int = 0
    cut: int = 0
    last: Truncation | None = None

    def plus(self, truncation: Truncation) -> TruncationReport:
        """The report with one more, which is logged."""
        what = "the topic was deleted and made again" if truncation.remade else f"{truncation.cut} offsets were cut"
        logger.warning(
            "partition %s-%d: %s while the position was %d; reading goes on at %d",
            *(*truncation.partition, what, truncation.position, truncation.start),
        )
        return TruncationReport(self.count + 1, self.remade + truncation.remade, self.cut + truncation.cut, truncation)
