"""Count of a local run's waiting records from the brokers' offsets, those of earlier runs included."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from fleet_consumer.consumer.consumer import Consumer, ConsumerSettings
from fleet_consumer.contract.naming import retry_group
from fleet_consumer.group.errors import ConsumerError
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import TopicPartition

COUNT_S: Final = 2.0
"""Interval of the count."""
ANSWER_S: Final = 10.0
"""Timeout of a request; without an answer the count is unknown."""


class Waiting:
    """Count of the records that wait in a group's retry and redrive topics, kept by a thread.

    `flow` maps these topics to their partition counts. The constructor starts nothing.
    """

    def __init__(self, connection: ConnectionSettings, group_id: str, flow: Mapping[str, int]) -> None:
        self._settings = ConsumerSettings(
            connection=connection, group_id=retry_group(group_id), retry_authentication=True
        )
        self._partitions = [TopicPartition(topic, number) for topic, count in flow.items() for number in range(count)]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waiting-count", daemon=True)
        self.count: int | None = None
        """The last count; None while unknown."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, at the latest after a request's timeout, and count a last time."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self.count = self.ask()

    def ask(self) -> int | None:
        """Current count; None without an answer in time."""
        with Consumer(self._settings) as consumer:
            return self._ask(consumer)

    def _run(self) -> None:
        with Consumer(self._settings) as consumer:
            while not self._closed.is_set():
                self.count = self._ask(consumer)
                self._closed.wait(COUNT_S)

    def _ask(self, consumer: Consumer) -> int | None:
        try:
            committed = consumer.committed(None, ANSWER_S)
            starts = consumer.beginning_offsets(self._partitions, ANSWER_S)
            ends = consumer.end_offsets(self._partitions, ANSWER_S)
        except ConsumerError:
            return None
        done = {part: entry.offset for part, entry in committed.items() if entry is not None}
        return sum(max(0, ends[part] - max(done.get(part, 0), starts[part])) for part in self._partitions)
