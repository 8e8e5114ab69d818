"""A retry worker with one delay per record, to measure the cost of one topic for all delays.

`python -m bench.lateness_mixed run …` is the `fleet-consumer` command with another due clock. Otherwise it is the same:
the worker waits for the head of a partition, and the records behind it wait, too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.retry.due import DueClock, Waiting
from fleet_consumer.worker import cli
from fleet_consumer.worker.consume import intake


class MixedClock(DueClock):
    """Each record is due after its own delay, the first word of its value (milliseconds)."""

    def split(self, partition: TopicPartition, records: Sequence[Record], now_ms: int) -> int:
        """As in a topic with one delay, but with the delay of each record."""
        for index, record in enumerate(records):
            due = record.timestamp + int(record.value.split()[0])
            if due > now_ms:
                self._heads[partition] = Waiting(record.offset, record.timestamp, due)
                self._paused.add(partition)
                return index
        return len(records)


if __name__ == "__main__":
    vars(intake)["DueClock"] = MixedClock
    sys.exit(cli.main(sys.argv[1:]))
