"""Configuration of a group's managed topics: settings, retention, size limits, and detection of drift. Pure functions.

Each distinct delay has its own topic, because records with the same delay become due in the order in which they were
written. The redrive topic has records that are due immediately, and the ledger of redriven records. A group without
retries has only the failed topic.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.contract.naming import DAY_SECONDS, parse_delay, redrive_topic, retry_topic

RETENTION_SECONDS_MIN: Final = 30 * DAY_SECONDS
"""Default minimum retention of retry topics in seconds. While a fleet cannot run, the operator raises the retention, so
that waiting records are kept. If the operator has also failed, it must run again within this time."""
RETENTION_FACTOR: Final = 3
"""Retention as a multiple of a sequence's total delay: enough for all delays and an outage of the same length."""
FAILED_RETENTION_SECONDS: Final = 30 * DAY_SECONDS
HEADERS_BYTES_MAX: Final = 64 * 1024
"""Maximum number of header bytes that a retry publish adds to a record."""
SOURCE_BYTES_DEFAULT: Final = 1_048_588
"""Kafka's default `max.message.bytes`, used while the source topics' value is unknown."""
SEGMENT_MS_DEFAULT: Final = 7 * DAY_SECONDS * 1000
"""Kafka's default `segment.ms`: the maximum age difference of the records in a segment. Brokers delete only whole
segments."""
BROKER_DEFAULT: Final = -1
"""Replication factor that selects the brokers' default (KIP-464)."""

CLEANUP: Final = "cleanup.policy"
TIMESTAMPS: Final = "message.timestamp.type"
APPEND_TIME: Final = "LogAppendTime"
RETENTION: Final = "retention.ms"
BYTES: Final = "retention.bytes"
SIZE: Final = "max.message.bytes"
MANAGED_SETTINGS: Final = (CLEANUP, SIZE, TIMESTAMPS, RETENTION, BYTES)
"""Topic settings that the operator enforces. Users may change all other settings."""
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
    """Requirements shared by all managed topics of a group.

    - `retention_seconds` is the retention of retry topics; if None, it is derived from the sequence.
    - `source_max_message_bytes` is the largest `max.message.bytes` of the source topics. While it is None (unknown), no
      size limit is set, and the brokers' default applies.
    - `failed_segment_ms` is the failed topic's `segment.ms`, as the function `segment_ms` returns it.
    """

    partitions: int
    replication_factor: int = BROKER_DEFAULT
    retention_seconds: int | None = None
    failed_retention_seconds: int = FAILED_RETENTION_SECONDS
    source_max_message_bytes: int | None = None
    failed_segment_ms: int = SEGMENT_MS_DEFAULT

    def flow(self, group_id: str, delays: Iterable[str], total_seconds: int) -> Iterator[WantedTopic]:
        """Yield the retry topics, then the redrive topic. `total_seconds` is the sum of the delays in the longest
        sequence."""
        derived = max(RETENTION_SECONDS_MIN, RETENTION_FACTOR * total_seconds)
        for delay in delays:
            # A record must not be deleted before it is due.
            least = RETENTION_FACTOR * parse_delay(delay)
            yield self._topic(retry_topic(group_id, delay), max(self.retention_seconds or derived, least))
        # The redrive ledger must outlive the failed records, because a failed record without a ledger entry would be
        # redriven again. Brokers delete a failed record only with its segment, at the next segment check after the
        # retention.
        ledger = self.failed_retention_seconds + self.failed_segment_ms // 1000 + DAY_SECONDS
        yield self._topic(redrive_topic(group_id), max(self.retention_seconds or RETENTION_SECONDS_MIN, ledger))

    def failed_topic(self, name: str) -> WantedTopic:
        """Return the failed topic. Its size limit is above the retry topics' limit, so every record from a retry topic
        fits."""
        return self._topic(name, self.failed_retention_seconds, publishes=2)

    def _topic(self, name: str, retention_seconds: int, *, publishes: int = 1) -> WantedTopic:
        configs = {CLEANUP: "delete", TIMESTAMPS: APPEND_TIME, RETENTION: str(retention_seconds * 1000)}
        if publishes == 1:
            # The brokers' default `retention.bytes` might delete waiting records before they are due.
            configs[BYTES] = UNLIMITED
        if self.source_max_message_bytes is not None:
            configs[SIZE] = str(self.source_max_message_bytes + publishes * HEADERS_BYTES_MAX)
        return WantedTopic(
            name=name, partitions=self.partitions, replication_factor=self.replication_factor, configs=configs
        )


def segment_ms(configs: Mapping[str, str]) -> int:
    """Return the `segment.ms` in `configs` or, if it is smaller or missing, Kafka's default. A larger value may have
    applied when old segments were written."""
    text = configs.get(SEGMENT, "")
    return max(SEGMENT_MS_DEFAULT, int(text) if text.isdigit() else 0)


def drifted(
    wanted: Mapping[str, str], seen: Mapping[str, str], *, never_lowered: Iterable[str] = (SIZE,)
) -> dict[str, str]:
    """Return the settings to change. Settings in `never_lowered` are only raised. Otherwise a record that the topic
    once accepted might be too large after its retries."""
    return {
        name: value
        for name, value in wanted.items()
        if seen.get(name) != value and not (name in never_lowered and _reaches(name, seen.get(name, ""), int(value)))
    }


def _reaches(name: str, seen: str, needed: int) -> bool:
    """Return True if the setting is large enough. Only a retention can be unlimited."""
    return (name == RETENTION and seen == UNLIMITED) or (seen.isdigit() and int(seen) >= needed)
