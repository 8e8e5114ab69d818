"""The errors that keep records from coming: of each partition until it is read again, of connections for a while."""

from __future__ import annotations

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
"""The validity of an error without a partition after its last report: librdkafka retries, and reports again, every 10 s
at the latest."""
ASK_AGAIN_S = 8.0
"""The delay after which librdkafka is made to read a failed partition again: it reports some errors only once."""
READ_AGAIN_S = 1.0
"""The same for data that could not be read: the next attempt may succeed at once, if the network had changed them."""


@dataclass(slots=True)
class PartitionError:
    """The reason why a partition is not read at `offset`, the next one; `since` is wall clock seconds.

    `void`: librdkafka stands there (`fetched.stand`), and what still comes of the partition does not count.
    """

    offset: int
    error: DataPlaneFailed
    since: float
    again_at: float
    void: bool = False


def failure_of(partition: tuple[str, int], offset: int, error: KafkaError) -> DataPlaneFailed:
    """An error of librdkafka's about a partition that is read at `offset`."""
    about = f"partition {partition[0]}-{partition[1]}: {error.name()}: {error.str()}"
    if error.code() in UNREADABLE:
        return DataUnreadable(f"{about}; reading stands at offset {offset}")
    denied = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    return DataPlaneFailed(f"{about}; allow the principal Read on the topic" if denied else about)


def silence_of(partition: tuple[str, int], offset: int) -> DataUnreadable:
    """The error of a partition whose leader gives no records at `offset`, although its log goes on."""
    return DataUnreadable(
        f"partition {partition[0]}-{partition[1]}: its leader answers neither records nor an error at offset {offset}, "
        "below the end of its log; reading stands there"
    )


class ReadErrors:
    """The current errors of one fetch thread. Written with the turn in hand; `current` and `unreadable` may be called
    by any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The last error of no partition and the end of its validity. Set to None by each run of records.
        self.last: tuple[DataPlaneFailed, float] | None = None
        # Replaced as a whole, never changed: any thread looks through it.
        self.partitions: Mapping[tuple[str, int], PartitionError] = {}

    def current(self) -> DataPlaneFailed | None:
        """The error that keeps records from coming.

        librdkafka reports a connection that fails, never one that works again, and on a quiet topic no record shows it
        either: such an error ends when it is not repeated. That of a partition lasts until the partition is read,
        whatever comes from others.
        """
        last = self.last
        if last is not None and self._clock.monotonic() < last[1]:
            return last[0]
        return next((each.error for each in self.partitions.values()), None)

    @property
    def unreadable(self) -> dict[TopicPartition, PartitionError]:
        """The partitions that stand at data that cannot be read."""
        found = self.partitions.items()
        return {TopicPartition(*part): each for part, each in found if isinstance(each.error, DataUnreadable)}

    def note(self, error: DataPlaneFailed) -> None:
        """Keep an error of no partition, for a while or until records flow."""
        self.last = error, self._clock.monotonic() + ERROR_LASTS_S

    def put(self, partition: tuple[str, int], offset: int, error: DataPlaneFailed) -> None:
        """Keep the error of a partition until it is read again. DataUnreadable makes it void."""
        void = isinstance(error, DataUnreadable)
        again_at = self._clock.monotonic() + (READ_AGAIN_S if void else ASK_AGAIN_S)
        before = self.partitions.get(partition)
        same = before is not None and type(before.error) is type(error) and before.offset == offset
        since = before.since if same and before is not None else self._clock.wall()
        self.partitions = {**self.partitions, partition: PartitionError(offset, error, since, again_at, void)}
        logger.log(logging.DEBUG if same else logging.WARNING, "data plane: %s", error)

    def is_void(self, partition: tuple[str, int]) -> bool:
        """True if what comes of this partition does not count."""
        known = self.partitions.get(partition)
        return known is not None and known.void

    def readable(self, partition: tuple[str, int]) -> None:
        """A partition was read, or is read from another place now: its error is over."""
        if partition in self.partitions:
            self.partitions = {part: each for part, each in self.partitions.items() if part != partition}

    def keep(self, assigned: Collection[tuple[str, int]]) -> None:
        """Drop the errors of partitions that are not assigned any more."""
        self.partitions = {part: each for part, each in self.partitions.items() if part in assigned}

    def take_due(self) -> list[tuple[str, int]]:
        """Take the partitions that librdkafka is to be made to read again now."""
        now = self._clock.monotonic()
        due = [part for part, each in self.partitions.items() if now >= each.again_at]
        for part in due:
            self.partitions[part].again_at = now + ASK_AGAIN_S
        return due
