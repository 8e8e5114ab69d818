"""Writing records: librdkafka's idempotent producer behind a small asynchronous interface.

The worker writes many records at once and then waits for all of them, so a send gives a handle and `flush` waits.
Keys land where the Java producer would put them (`murmur2_random`). Nothing here may retry on its own: librdkafka
does, within `delivery.timeout.ms`; after that the caller decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fleet_consumer.record import Headers

DEFAULTS: Mapping[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    # Small enough that one poll's outputs leave at once, large enough to batch them.
    "linger.ms": 5,
    "compression.type": "lz4",
}
"""What every producer of ours starts from; a caller's settings win."""


class ProduceFailed(Exception):
    """A record was not written, or nobody knows: `reason` is the broker's or librdkafka's word for why."""

    def __init__(self, topic: str, reason: str, detail: str) -> None:
        super().__init__(f"could not write to topic {topic!r}: {reason}: {detail}")
        self.topic = topic
        self.reason = reason


class SendHandle:
    """One record on its way. `done` turns true once; `error` is then None (written) or why it was not."""

    __slots__ = ("done", "error", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.done = False
        self.error: ProduceFailed | None = None

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.error = ProduceFailed(self.topic, error.name(), error.str())
        self.done = True


class RecordProducer:
    """An idempotent producer with acks from all replicas. One thread may use it.

    `settings` are librdkafka's properties (`fetch.librdkafka.connection_config` makes the connection's part).
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._producer = Producer({**DEFAULTS, **settings})

    def send(
        self,
        topic: str,
        *,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> SendHandle:
        """Hand one record to librdkafka and return at once; text is written as UTF-8.

        `partition` None lets the key choose. What librdkafka refuses at once (too large, queue full for more than a
        moment) is told through the handle like any other failure, so that callers have one place to look.
        """
        handle = SendHandle(topic)
        extra: dict[str, Any] = {} if partition is None else {"partition": partition}
        for attempt in range(2):
            try:
                self._producer.produce(topic, value, key, headers=list(headers), on_delivery=handle._delivered, **extra)
                break
            except BufferError as full:
                if attempt:
                    handle.error, handle.done = ProduceFailed(topic, "QueueFull", str(full)), True
                else:
                    self._producer.poll(1.0)
            except KafkaException as refused:
                error = refused.args[0]
                handle.error, handle.done = ProduceFailed(topic, error.name(), error.str()), True
                break
        return handle

    def flush(self, timeout_s: float) -> int:
        """Wait until every record sent so far is written or given up, at most `timeout_s`; how many are left."""
        return int(self._producer.flush(timeout_s))
