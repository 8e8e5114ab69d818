"""Records that a consume loop passes by: they fail in place of a call of their handler.

Used by the loop's thread only.
"""

from __future__ import annotations

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
    """The error of a record that is passed by."""
    return Skipped("spec.offsets.skip names this record; it was not handed to the handler")


class Skips:
    """The records to pass by now; `file` is None where nothing names any."""

    def __init__(self, file: MountedFile[frozenset[Place]] | None = None) -> None:
        self._file = file
        self._offsets: dict[TopicPartition, set[int]] = {}
        self._places: frozenset[Place] = frozenset()
        self.look()

    def look(self) -> bool:
        """Look for a change, at most once a second; True if there was one."""
        if self._file is None:
            return False
        if self._file.look():
            LOG.info("records to skip read", extra=fields(count=len(self._file.content or ())))
        places = self._file.content or frozenset()
        # The file outlives a session: another one may have read it.
        if places == self._places:
            return False
        self._places, self._offsets = places, {}
        for place in places:
            self._offsets.setdefault(TopicPartition(place.topic, place.partition), set()).add(place.offset)
        return True

    def names(self, topic_partition: TopicPartition, offset: int) -> bool:
        """True if what is read at this offset is passed by."""
        return offset in self._offsets.get(topic_partition, ())

    def first(self, topic_partition: TopicPartition, records: Sequence[Record]) -> int | None:
        """The index of the first of a partition's records that is passed by; None without one."""
        offsets = self._offsets.get(topic_partition)
        if not offsets:
            return None
        return next((index for index, record in enumerate(records) if as_read(record).offset in offsets), None)

    def parts(self, run: Run) -> Iterator[tuple[Run, Skipped | None]]:
        """A run in parts: each record to pass by alone, with its error, and the records between them."""
        topic_partition, records = run.topic_partition, run.records if self._offsets else []
        while (index := self.first(topic_partition, records)) is not None:
            if index:
                yield Run(topic_partition, records[:index]), None
            yield Run(topic_partition, records[index : index + 1]), skipped()
            records = records[index + 1 :]
            if not records:
                return
        yield (Run(topic_partition, records) if records else run), None
