"""Writing records: librdkafka's idempotent producer behind a small asynchronous interface.

The worker writes many records at once and then waits for all of them, so a send gives a handle and `flush` waits.
Keys land where the Java producer would put them (`murmur2_random`). Nothing here may retry on its own: librdkafka
does, within `delivery.timeout.ms`; after that the caller decides.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fleet_consumer.fetch.librdkafka import tls_files
from fleet_consumer.record import Headers

logger = logging.getLogger(__name__)

PURGE_S = 5.0
"""How long a producer that is replaced may take to tell of the records that it gives up; it takes next to none."""

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
        self._settings = {**DEFAULTS, **settings, "error_cb": self._on_error}
        # Before the producer reads them: a renewal in between must not be missed.
        self._tls_files = tls_files(settings)
        self._producer = Producer(self._settings)
        # Whether librdkafka has met trouble since everything was last known to be written.
        self._troubled = False

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
        self._reopen_if_useful()
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
        self._reopen_if_useful()
        left = int(self._producer.flush(timeout_s))
        if not left:
            self._troubled = False
        return left

    def _reopen_if_useful(self) -> None:
        """Connect anew when there is trouble and the TLS files were renewed: librdkafka reads them only once.

        What is still on its way is given up (`_PURGE_QUEUE`, `_PURGE_INFLIGHT`), so that the caller sends it again
        now and not after the delivery time-out.
        """
        if not self._troubled or not self._tls_files.changed():
            return
        # Also when they turn out to be of no use: they are tried again when they have changed again.
        self._tls_files.used()
        try:
            fresh = Producer(self._settings)
        except KafkaException as refused:  # renewed by halves, or wrongly; librdkafka goes on trying with the old
            logger.warning("renewed TLS files are of no use: %s", refused.args[0].str())
            return
        worn, self._producer = self._producer, fresh
        worn.purge()
        worn.flush(PURGE_S)
        self._troubled = False
        logger.info("TLS files have changed: the producer connects anew")

    def _on_error(self, error: KafkaError) -> None:
        self._troubled = True
