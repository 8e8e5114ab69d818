"""Records that a consume loop skips: they fail with an error and are not handed to the handler.

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
    return Skipped("spec.offsets.skip names this record; it was not handed to the handler")


class Skips:
    """The current list of records to skip. `file` is None if there is no such list."""

    def __init__(self, file: MountedFile[frozenset[Place]] | None = None) -> None:
        self._file = file
        self._offsets: dict[TopicPartition, set[int]] = {}
        self._places: frozenset[Place] = frozenset()
        self.reload()

    def reload(self) -> bool:
        """Read the list if its file changed, at most once a second. Returns True if the list changed."""
        if self._file is None:
            return False
        if self._file.reload():
            LOG.info("list of records to skip loaded", extra=fields(count=len(self._file.content or ())))
        places = self._file.content or frozenset()
        # The file outlives a session, so an earlier session may have read it.
        if places == self._places:
            return False
        self._places, self._offsets = places, {}
        for place in places:
            self._offsets.setdefault(TopicPartition(place.topic, place.partition), set()).add(place.offset)
        return True

    def names(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Return True if the record or unreadable data at this offset is to be skipped."""
        return offset in self._offsets.get(topic_partition, ())

    def first(self, topic_partition: TopicPartition, records: Sequence[Record]) -> int | None:
        """Return the index of the first record to skip; None if no record is to be skipped."""
        offsets = self._offsets.get(topic_partition)
        if not offsets:
            return None
        return next((index for index, record in enumerate(records) if as_read(record).offset in offsets), None)

    def parts(self, run: Run) -> Iterator[tuple[Run, Skipped | None]]:
        """Split a run: yield each record to skip alone with its error, and the records between them without an
        error."""
        topic_partition, records = run.topic_partition, run.records if self._offsets else []
        while (index := self.first(topic_partition, records)) is not None:
            if index:
                yield Run(topic_partition, records[:index]), None
            yield Run(topic_partition, records[index : index + 1]), skipped()
            records = records[index + 1 :]
            if not records:
                return
        yield (Run(topic_partition, records) if records else run), None
