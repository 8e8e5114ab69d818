"""Records that a consume loop skips. They fail with the error Skipped, without a call of the handler.

Used by the loop's thread only.
"""

import logging
from collections.abc import Iterator, Sequence

from fleet_consumer.contract.skips import Place
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Record, Run, TopicPartition
from fleet_consumer.retry.failure import Skipped
from fleet_consumer.worker.config.mounted_file import MountedFile
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")


def skipped() -> Skipped:
    return Skipped("skipped because of spec.offsets.skip; the handler was not called")


class Skips:
    """The current list of records to skip, read from `file`. The list is empty if `file` is None."""

    def __init__(self, file: MountedFile[frozenset[Place]] | None = None) -> None:
        self._file = file
        self._offsets: dict[TopicPartition, set[int]] = {}
        self._places: frozenset[Place] = frozenset()
        self.reload()

    def reload(self) -> bool:
        """Read the file if it has changed, at most once a second. Returns True if the list has changed."""
        if self._file is None:
            return False
        if self._file.reload():
            LOG.info("list of records to skip loaded", extra=fields(count=len(self._file.content or ())))
        places = self._file.content or frozenset()
        # Compare the lists, because an earlier session may already have read the changed file.
        if places == self._places:
            return False
        self._places, self._offsets = places, {}
        for place in places:
            self._offsets.setdefault(TopicPartition(place.topic, place.partition), set()).add(place.offset)
        return True

    def names(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Return True if the list contains this offset (of a record or of unreadable data)."""
        return offset in self._offsets.get(topic_partition, ())

    def first(self, topic_partition: TopicPartition, records: Sequence[Record]) -> int | None:
        """Return the index of the first record in the list; None if the list contains none of the records."""
        offsets = self._offsets.get(topic_partition)
        if not offsets:
            return None
        return next((index for index, record in enumerate(records) if as_read(record).offset in offsets), None)

    def parts(self, run: Run) -> Iterator[tuple[Run, Skipped | None]]:
        """Split a run. Yields each record to skip alone, with an error, and the records in between together, with
        None."""
        topic_partition, records = run.topic_partition, run.records if self._offsets else []
        while (index := self.first(topic_partition, records)) is not None:
            if index:
                yield Run(topic_partition, records[:index]), None
            yield Run(topic_partition, records[index : index + 1]), skipped()
            records = records[index + 1 :]
            if not records:
                return
        yield (Run(topic_partition, records) if records else run), None
