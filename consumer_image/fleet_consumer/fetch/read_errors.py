"""The errors that prevent reading. An error of a partition is kept until the partition is read again; an error of a
connection expires."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError

from fleet_consumer.clock import Clock
from fleet_consumer.group.errors import DataPlaneFailed, DataUnreadable
from fleet_consumer.librdkafka.fetched import UNREADABLE
from fleet_consumer.record import TopicPartition

logger = logging.getLogger(__name__)

ERROR_LASTS_S = 15.0
"""Seconds after which an error without a partition expires; librdkafka repeats such an error at least every 10 s."""
ASK_AGAIN_S = 8.0
"""Seconds before a failed partition is read again; librdkafka reports some errors only once."""
READ_AGAIN_S = 1.0
"""Seconds before unreadable data is read again. The new attempt succeeds if the data was corrupted on the network."""


@dataclass(slots=True)
class PartitionError:
    """The error that prevents reading a partition at `offset`, the partition's next offset.

    `since` is in wall-clock seconds; `again_at` is the monotonic time of the next attempt. `void` is True if the
    partition is paused in librdkafka because of unreadable data (`fetched.stand`). Messages of the partition that still
    arrive are then ignored.
    """

    offset: int
    error: DataPlaneFailed
    since: float
    again_at: float
    void: bool = False


def failure_of(partition: tuple[str, int], offset: int, error: KafkaError) -> DataPlaneFailed:
    about = f"partition {partition[0]}-{partition[1]}: {error.name()}: {error.str()}"
    if error.code() in UNREADABLE:
        return DataUnreadable(f"{about}; reading is stopped at offset {offset}")
    denied = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    return DataPlaneFailed(f"{about}; allow the principal Read on the topic" if denied else about)


def silence_of(partition: tuple[str, int], offset: int) -> DataUnreadable:
    return DataUnreadable(
        f"partition {partition[0]}-{partition[1]}: its leader returns neither records nor an error at offset {offset}, "
        "below the end of its log; reading is stopped there"
    )


class ReadErrors:
    """One fetch thread's errors. Writers hold the consumer's lock; any thread may read `current` and `unreadable`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The last error without a partition, and its expiry time. None after records were received.
        self.last: tuple[DataPlaneFailed, float] | None = None
        # The mapping is replaced as a whole and never changed, because any thread reads it.
        self.partitions: Mapping[tuple[str, int], PartitionError] = {}

    def current(self) -> DataPlaneFailed | None:
        """Return the error that prevents reading, or None.

        An error without a partition expires if it is not repeated. librdkafka reports failed connections but not their
        recovery, and a topic without new records does not show the recovery either. The error of a partition is kept
        until the partition is read.
        """
        last = self.last
        if last is not None and self._clock.monotonic() < last[1]:
            return last[0]
        return next((each.error for each in self.partitions.values()), None)

    @property
    def unreadable(self) -> dict[TopicPartition, PartitionError]:
        found = self.partitions.items()
        return {TopicPartition(*part): each for part, each in found if isinstance(each.error, DataUnreadable)}

    def record_error(self, error: DataPlaneFailed) -> None:
        """Record an error without a partition; it expires after `ERROR_LASTS_S` seconds, or when records arrive."""
        self.last = error, self._clock.monotonic() + ERROR_LASTS_S

    def put(self, partition: tuple[str, int], offset: int, error: DataPlaneFailed) -> None:
        """Record a partition's error until the partition is read again. If the error is DataUnreadable, messages of the
        partition are ignored until then (`void`)."""
        void = isinstance(error, DataUnreadable)
        again_at = self._clock.monotonic() + (READ_AGAIN_S if void else ASK_AGAIN_S)
        before = self.partitions.get(partition)
        same = before is not None and type(before.error) is type(error) and before.offset == offset
        since = before.since if same and before is not None else self._clock.wall()
        self.partitions = {**self.partitions, partition: PartitionError(offset, error, since, again_at, void)}
        logger.log(logging.DEBUG if same else logging.WARNING, "data plane: %s", error)

    def is_void(self, partition: tuple[str, int]) -> bool:
        known = self.partitions.get(partition)
        return known is not None and known.void

    def readable(self, partition: tuple[str, int]) -> None:
        """Clear the error of a partition that was read, or is now read from another position."""
        if partition in self.partitions:
            self.partitions = {part: each for part, each in self.partitions.items() if part != partition}

    def keep(self, assigned: Collection[tuple[str, int]]) -> None:
        self.partitions = {part: each for part, each in self.partitions.items() if part in assigned}

    def take_due(self) -> list[tuple[str, int]]:
        """Return the partitions that are to be read again now. If the new attempt fails, each is due again after
        `ASK_AGAIN_S`."""
        now = self._clock.monotonic()
        due = [part for part, each in self.partitions.items() if now >= each.again_at]
        for part in due:
            self.partitions[part].again_at = now + ASK_AGAIN_S
        return due
