"""Producers for tests: one whose `flush` proves that the brokers have the records, and one that writes all the time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Producer

__all__ = ["SureProducer", "Writer"]

TICK_S = 0.05
VALUE = b"x" * 64


class SureProducer(Producer):
    """A producer whose `flush` fails if brokers refused a record, or librdkafka gave one up.

    librdkafka's own `flush` counts such a record as done, and the test would wait for it in vain.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(dict(settings))
        self._refused: list[str] = []

    def produce(self, topic: str, *arguments: Any, **options: Any) -> None:
        super().produce(topic, *arguments, **{"on_delivery": self._delivered, **options})

    def flush(self, timeout: float = -1) -> int:
        """The number of unacknowledged records; raises AssertionError if one was refused."""
        left = int(super().flush(timeout))
        assert not self._refused, self._refused[:5]
        return left

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._refused.append(f"{message.topic()}-{message.partition()}: {error}")


class Writer:
    """Writes `per_second` records to the partitions in turn, on a thread, until `stop`; a context manager.

    It is idempotent and never gives up: its records are in each partition without gaps from offset 0, if nobody else
    writes. It sends one request at a time: with several, librdkafka takes a refused batch for written if the broker
    does not know the producer yet and has accepted the next batch.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, per_second: int = 200) -> None:
        # Longer than any fault: a record that was given up may or may not have been written.
        patient = {"delivery.timeout.ms": 300_000, "request.timeout.ms": 5_000, "reconnect.backoff.max.ms": 500}
        sure = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 1}
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0, **sure, **patient})
        self._topic = topic
        self._partitions = partitions
        self._per_second = per_second
        self._acknowledged: Counter[int] = Counter()
        self._highest: dict[int, int] = {}
        self._unconfirmed: Counter[int] = Counter()
        self.failed: list[str] = []
        self.sent = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @property
    def acknowledged(self) -> int:
        """The number of records that the brokers have."""
        return self._acknowledged.total()

    def stop(self, timeout_s: float = 60.0) -> Mapping[int, int]:
        """Stop writing, wait for every acknowledgement, and return the number of records of each partition."""
        self._stop.set()
        self._thread.join(timeout_s)
        left = self._producer.flush(timeout_s)
        assert not left, f"{left} records were not acknowledged within {timeout_s} s"
        assert not self.failed, self.failed[:5]
        # Offsets are counts only if nothing else is in the partitions.
        for part, count in self._acknowledged.items():
            known = self._highest.get(part, -1) + 1
            assert known == count or (known < count and self._unconfirmed[part]), (
                f"{part}: {known} offsets, {count} records"
            )
        return {partition: self._acknowledged[partition] for partition in range(self._partitions)}

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(TICK_S):
            due = int((time.monotonic() - began) * self._per_second)
            while self.sent < due:
                try:
                    self._producer.produce(
                        self._topic, VALUE, partition=self.sent % self._partitions, on_delivery=self._delivered
                    )
                except BufferError:
                    break  # the brokers are down; queued records wait for them
                self.sent += 1
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        partition = message.partition()
        self._acknowledged[partition] += 1
        offset = message.offset()
        if offset is None:
            # Sent again after a late response: the broker reports that it has the record, but not the offset.
            self._unconfirmed[partition] += 1
        else:
            self._highest[partition] = max(offset, self._highest.get(partition, -1))
