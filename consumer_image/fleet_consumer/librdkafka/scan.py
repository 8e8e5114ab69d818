"""Reading one partition from its first record to its end, once: for topics that are inspected, not consumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message

from fleet_consumer.clock import Clock
from fleet_consumer.group import errors
from fleet_consumer.librdkafka.settings import open_consumer

POLL_S = 0.5
BATCH = 500
DENIED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)


def partition_count(config: Mapping[str, Any], topic: str, timeout_s: float) -> int:
    """The number of partitions of a topic, 0 when it does not exist. Raises as `scan_partition`."""
    consumer = open_consumer(config)
    try:
        listed = consumer.list_topics(topic, timeout_s).topics[topic]
    except KafkaException as failure:
        raise _as_error(topic, failure.args[0]) from failure
    finally:
        consumer.close()
    if listed.error is not None and listed.error.code() in DENIED:
        raise _as_error(topic, listed.error)
    return len(listed.partitions)


def scan_partition(
    config: Mapping[str, Any], topic: str, partition: int, timeout_s: float, clock: Clock
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Key and value of every record that is there now, in order; of transactions only committed ones.

    `config` is librdkafka's (`settings.consumer_config`). Raises SettingsRefused, TopicAuthorizationFailed,
    DataPlaneFailed; also when the end is not reached within `timeout_s`.
    """
    deadline = clock.monotonic() + timeout_s
    consumer = open_consumer({**config, "enable.partition.eof": True, "isolation.level": "read_committed"})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)])
        while clock.monotonic() < deadline:
            first = consumer.poll(POLL_S)
            batch: list[Message] = [] if first is None else [first, *consumer.consume(BATCH, 0)]
            for message in batch:
                error = message.error()
                if error is None:
                    yield message.key(), message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    return
                elif error.code() in DENIED or error.fatal():
                    raise _as_error(topic, error)
    finally:
        consumer.close()
    raise errors.DataPlaneFailed(f"{topic}-{partition}: its end was not reached within {timeout_s:g} s")


def _as_error(topic: str, error: KafkaError) -> errors.ConsumerError:
    if error.code() in DENIED:
        return errors.TopicAuthorizationFailed(f"topic {topic}: not authorized; allow the principal Read on it")
    return errors.DataPlaneFailed(f"topic {topic}: {error.name()}: {error.str()}")
