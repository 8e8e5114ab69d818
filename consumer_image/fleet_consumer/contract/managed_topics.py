"""Shapes of a group's managed topics: settings, retention, size limits, and what counts as drift. Pure.

Each distinct delay has a topic, because records of one delay become due in the order in which they were written. The
redrive topic holds records that are due at once, and the ledger of what was redriven; the failed topic is the end. A
group without retries has only the failed topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.contract.naming import DAY_SECONDS, parse_delay, redrive_topic, retry_topic

RETENTION_SECONDS_MIN: Final = 30 * DAY_SECONDS
"""Default minimum retention of retry topics. While a fleet cannot run, the operator keeps what waits for longer; an
operator that is away as well has this time to come back."""
RETENTION_FACTOR: Final = 3
"""Retention is this many times the whole sequence: a record must outlive its waiting and an equally long outage."""
FAILED_RETENTION_SECONDS: Final = 30 * DAY_SECONDS
"""Default retention of the failed topic."""
HEADERS_BYTES_MAX: Final = 64 * 1024
"""Bytes of headers that a hop may add to a record."""
SOURCE_BYTES_DEFAULT: Final = 1_048_588
"""Kafka's default `max.message.bytes`, while that of the source topics is unknown."""
SEGMENT_MS_DEFAULT: Final = 7 * DAY_SECONDS * 1000
"""Kafka's default `segment.ms`. A record is deleted with its segment, whose last record may be younger by this."""
BROKER_DEFAULT: Final = -1
"""Replication factor of the brokers' default (KIP-464)."""

CLEANUP: Final = "cleanup.policy"
TIMESTAMPS: Final = "message.timestamp.type"
APPEND_TIME: Final = "LogAppendTime"
RETENTION: Final = "retention.ms"
BYTES: Final = "retention.bytes"
SIZE: Final = "max.message.bytes"
MANAGED_SETTINGS: Final = (CLEANUP, SIZE, TIMESTAMPS, RETENTION, BYTES)
"""Settings that are kept as wanted; all others are the user's."""
SEGMENT: Final = "segment.ms"
UNLIMITED: Final = "-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTopic:
    name: str
    partitions: int
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """Requirements that all topics of a group share.

    - `retention_seconds` of retry topics; None derives it from the sequence.
    - `source_max_message_bytes` is the sources' largest `max.message.bytes`. While it is unknown (None) no size limit
      is set, and the brokers' default holds.
    - `failed_segment_ms` is the failed topic's `segment.ms` (`segment_ms`).
    """

    partitions: int
    replication_factor: int = BROKER_DEFAULT
    retention_seconds: int | None = None
    failed_retention_seconds: int = FAILED_RETENTION_SECONDS
    source_max_message_bytes: int | None = None
    failed_segment_ms: int = SEGMENT_MS_DEFAULT

    def flow(self, group_id: str, delays: Iterable[str], total_seconds: int) -> Iterator[WantedTopic]:
        """The retry topics in the order of `delays`, then the redrive topic. `total_seconds` is the sum of the longest
        sequence."""
        derived = max(RETENTION_SECONDS_MIN, RETENTION_FACTOR * total_seconds)
        for delay in delays:
            # Never so short that a record is deleted before it is due.
            least = RETENTION_FACTOR * parse_delay(delay)
            yield self._topic(retry_topic(group_id, delay), max(self.retention_seconds or derived, least))
        # A failed record whose ledger entry was deleted first would be redriven again. So the ledger outlives the
        # segment that the record lies in, and the brokers' next check of their segments.
        ledger = self.failed_retention_seconds + self.failed_segment_ms // 1000 + DAY_SECONDS
        yield self._topic(redrive_topic(group_id), max(self.retention_seconds or RETENTION_SECONDS_MIN, ledger))

    def failed(self, name: str) -> WantedTopic:
        """The failed topic. Any record of a retry topic must fit, however large it was allowed to be there."""
        return self._topic(name, self.failed_retention_seconds, hops=2)

    def _topic(self, name: str, retention_seconds: int, *, hops: int = 1) -> WantedTopic:
        configs = {CLEANUP: "delete", TIMESTAMPS: APPEND_TIME, RETENTION: str(retention_seconds * 1000)}
        if hops == 1:
            # A brokers' default by size would delete waiting records before they are due.
            configs[BYTES] = UNLIMITED
        if self.source_max_message_bytes is not None:
            configs[SIZE] = str(self.source_max_message_bytes + hops * HEADERS_BYTES_MAX)
        return WantedTopic(
            name=name, partitions=self.partitions, replication_factor=self.replication_factor, configs=configs
        )


def segment_ms(configs: Mapping[str, str]) -> int:
    """The `segment.ms` of a topic's settings, never below Kafka's default: older segments may date from an earlier
    setting."""
    text = configs.get(SEGMENT, "")
    return max(SEGMENT_MS_DEFAULT, int(text) if text.isdigit() else 0)


def drifted(
    wanted: Mapping[str, str], seen: Mapping[str, str], *, never_lowered: Iterable[str] = (SIZE,)
) -> dict[str, str]:
    """The settings to be set. Those in `never_lowered` are only raised: a record that was let in must fit to hop on."""
    return {
        name: value
        for name, value in wanted.items()
        if seen.get(name) != value and not (name in never_lowered and _reaches(name, seen.get(name, ""), int(value)))
    }


def _reaches(name: str, seen: str, needed: int) -> bool:
    """True if the setting is large enough. Only a retention can be unlimited."""
    return (name == RETENTION and seen == UNLIMITED) or (seen.isdigit() and int(seen) >= needed)
