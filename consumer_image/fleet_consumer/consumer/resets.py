"""Reports of positions outside the log, because unread records were deleted or read records were lost.

Decision: docs/decisions/0050-waiting-retries.md.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet_consumer.record import TopicPartition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """An out-of-range position, and the offset `start` to which it was reset."""

    partition: TopicPartition
    position: int
    start: int

    @property
    def skipped(self) -> int:
        """Number of offsets from `position` (inclusive) to `start` (exclusive): offsets that were deleted before being
        read."""
        return max(0, self.start - self.position)


@dataclass(frozen=True, slots=True)
class OutOfRangeReport:
    """A consumer's OFFSET_OUT_OF_RANGE errors. `skipped` counts offsets; `by_partition` has the last reset of each."""

    count: int = 0
    skipped: int = 0
    last: OffsetReset | None = None
    by_partition: Mapping[TopicPartition, OffsetReset] = field(default_factory=dict, compare=False)

    def plus(self, reset: OffsetReset) -> "OutOfRangeReport":
        """Log a reset, and return the report that includes it."""
        logger.warning(
            "partition %s-%d: reading continues at %d; %d offsets were skipped, from %d up to but not including %d",
            *(*reset.partition, reset.start, reset.skipped, reset.position, max(reset.position, reset.start)),
        )
        by_partition = {**self.by_partition, reset.partition: reset}
        return OutOfRangeReport(self.count + 1, self.skipped + reset.skipped, reset, by_partition)


@dataclass(frozen=True, slots=True)
class Truncation:
    """A log truncation: the `position` before the truncation, and the offset `start` at which reading continued.

    An unclean leader election truncated the log at `start`. If the topic was `remade` (deleted and created again), it
    has a new log, and reading continued at the beginning of the new log.
    """

    partition: TopicPartition
    position: int
    start: int
    remade: bool = False

    @property
    def cut(self) -> int:
        """Number of offsets that were read and then lost. Other records may have these offsets now. 0 for a recreated
        topic."""
        return 0 if self.remade else max(0, self.position - self.start)


@dataclass(frozen=True, slots=True)
class TruncationReport:
    """A consumer's truncations. `remade` counts the truncations by recreated topics, `cut` the lost offsets."""

    count: int = 0
    remade: int = 0
    cut: int = 0
    last: Truncation | None = None

    def plus(self, truncation: Truncation) -> "TruncationReport":
        """Log a truncation, and return the report that includes it."""
        what = "the topic was deleted and created again" if truncation.remade else f"{truncation.cut} offsets were lost"
        logger.warning(
            "partition %s-%d: %s while the position was %d; reading continues at %d",
            *(*truncation.partition, what, truncation.position, truncation.start),
        )
        return TruncationReport(self.count + 1, self.remade + truncation.remade, self.cut + truncation.cut, truncation)
