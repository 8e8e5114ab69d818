"""The headers that Spring for Apache Kafka gives to a dead-lettered record, under its names and in its encodings.

User interfaces for Kafka look for these names. They are aliases beside the `kr-` headers, on the failed topic only,
and nothing of ours reads them. Source: `DeadLetterPublishingRecoverer` and `KafkaHeaders` of spring-kafka 3.
Spring's timestamp type is left out, because a record does not tell us its own.
"""

from __future__ import annotations

from typing import Final, Protocol

PREFIX: Final = "kafka_dlt-"
EXCEPTION_CLASS: Final = f"{PREFIX}exception-fqcn"
EXCEPTION_MESSAGE: Final = f"{PREFIX}exception-message"
SPRING_DETAILS: Final = frozenset({EXCEPTION_CLASS, EXCEPTION_MESSAGE})


class Coordinates(Protocol):
    """Where a record came from."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...


def spring_aliases(
    origin: Coordinates, error_class: bytes, message: bytes, group: bytes
) -> list[tuple[str, bytes | None]]:
    """Spring's headers for a failed record: text is UTF-8; numbers are big-endian, a partition has 4 bytes, offset and
    time have 8."""
    return [
        (f"{PREFIX}original-topic", origin.topic.encode()),
        (f"{PREFIX}original-partition", origin.partition.to_bytes(4, "big", signed=True)),
        (f"{PREFIX}original-offset", origin.offset.to_bytes(8, "big", signed=True)),
        (f"{PREFIX}original-timestamp", origin.timestamp.to_bytes(8, "big", signed=True)),
        (f"{PREFIX}original-consumer-group", group),
        (EXCEPTION_CLASS, error_class),
        (EXCEPTION_MESSAGE, message),
    ]
