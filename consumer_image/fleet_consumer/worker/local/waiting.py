"""How many records of a local run wait for their next attempt, as the brokers know it: those of earlier runs too."""

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
"""How often brokers are asked."""
ANSWER_S: Final = 10.0
"""Patience with them; without an answer the number is not known."""


class Waiting:
    """How many records wait in a group's retry and redrive topics, asked by a thread of its own.

    `flow` are these topics with their partition counts. Making one starts nothing.
    """

    def __init__(self, connection: ConnectionSettings, group_id: str, flow: Mapping[str, int]) -> None:
        self._settings = ConsumerSettings(
            connection=connection, group_id=retry_group(group_id), retry_authentication=True
        )
        self._partitions = [TopicPartition(topic, number) for topic, count in flow.items() for number in range(count)]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waiting-count", daemon=True)
        self.count: int | None = None
        """As last told; None while that is not known."""

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, at the latest after an answer that does not come, and ask a last time."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self.count = self.ask()

    def ask(self) -> int | None:
        """How many wait now; None when nobody answers in time."""
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
