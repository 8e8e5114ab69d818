"""librdkafka's own group consumer as a recording member, in a process of its own.

`python -m tests.support.librdkafka_member JSON`; `foreign.LibrdkafkaMember` starts it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.support.recording import COMMIT_EVERY_S, POLL_S, Ledger, rows_to, run_until_stopped

UNKNOWN_GENERATION = -1
"""librdkafka does not expose it."""


class LibrdkafkaMember:
    """Polls, and commits now and then and before a revocation, like our recorded members."""

    def __init__(self, words: Mapping[str, str]) -> None:
        static = {"group.instance.id": words["instance"]} if "instance" in words else {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": words["bootstrap"],
                "group.id": words["group"],
                "partition.assignment.strategy": words["assignors"],
                "session.timeout.ms": int(words["session"]),
                "heartbeat.interval.ms": int(words["heartbeat"]),
                "topic.metadata.refresh.interval.ms": 2_000,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 10,
                **static,
            }
        )
        self._topic = words["topic"]
        self._ledger = Ledger(rows_to(Path(words["log"])))
        self._stop = threading.Event()
        self._done: dict[int, int] = {}

    def stop(self) -> None:
        """End `run`; any thread."""
        self._stop.set()

    def run(self) -> None:
        """Poll until `stop`, then close."""
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        committed_at = time.monotonic()
        try:
            while not self._stop.is_set():
                self._poll()
                if time.monotonic() - committed_at >= COMMIT_EVERY_S and self._done:
                    committed_at = time.monotonic()
                    self._commit(list(self._done))
        finally:
            self._consumer.close()
            self._ledger.flush()

    def _poll(self) -> None:
        for message in self._consumer.consume(500, POLL_S):
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is not None:
                self._ledger.raised(str(error))
            elif partition is not None and offset is not None:
                self._ledger.handed(partition, UNKNOWN_GENERATION, offset, offset)
                self._done[partition] = offset + 1

    def _commit(self, partitions: Sequence[int]) -> None:
        going = {number: self._done[number] for number in partitions if number in self._done}
        if not going:
            return
        number = self._ledger.asked(UNKNOWN_GENERATION, going)
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in going.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self._ledger.answered(number, str(error))
        else:
            self._ledger.answered(number, None)
            for partition in going:
                del self._done[partition]

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._ledger.called("a", [part.partition for part in partitions], UNKNOWN_GENERATION)

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = [part.partition for part in partitions]
        self._commit(numbers)
        for number in numbers:
            self._done.pop(number, None)
        self._ledger.called("r", numbers, UNKNOWN_GENERATION)

    def _lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for part in partitions:
            self._done.pop(part.partition, None)
        self._ledger.called("l", [part.partition for part in partitions], UNKNOWN_GENERATION)


if __name__ == "__main__":
    member = LibrdkafkaMember(json.loads(sys.argv[1]))
    run_until_stopped(member.run, member.stop)
