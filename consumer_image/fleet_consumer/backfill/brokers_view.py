"""The driver's own look at the brokers: whether the ranges are still there, and limits of topics.

Spark would notice a missing range only in a task, after minutes of waiting, or when a part of a slice is done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.slices import TaskRange
from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.backfill_config import BackfillConfig
from fleet_consumer.group.errors import ConsumerError, TopicMissing
from fleet_consumer.librdkafka.bounded import BoundedReader
from fleet_consumer.librdkafka.settings import SettingsRefused, connection_config, consumer_config, resolved
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import TopicPartition
from fleet_consumer.worker.config.settings import ISOLATION_LEVELS, CredentialsUnreadable, connection_settings

LOG = logging.getLogger("fleet_consumer.backfill")

MISSING_TRIES: Final = 10
"""A topic is missing if brokers say so again and again: one that has just started may not know it."""
TRIES: Final = 30
"""Tries for any other answer: leaders move, and brokers restart, within a minute or two."""
PAUSE_S: Final = 2.0
PATIENCE_S: Final = 120.0
"""Time of all tries: with a wrong password each of them takes as long as the query may."""
LIMITS_TIMEOUT_S: Final = 10.0


class BrokersView:
    """Questions to the brokers of one Backfill. Raises BackfillFailed."""

    def __init__(self, config: BackfillConfig, *, wait: Callable[[float], object] | None = None) -> None:
        self._config = config
        self._clock = SystemClock()
        self._wait = wait or threading.Event().wait
        self._isolation = ISOLATION_LEVELS[config.worker.consumer.isolation_level]

    def connection(self) -> ConnectionSettings:
        """The connection with the credentials as they are now."""
        try:
            return connection_settings(self._config.worker.brokers, f"fleet-backfill-{self._config.name}")
        except CredentialsUnreadable as error:
            raise BackfillFailed(error.reason, str(error), final=False) from error

    def check(self, planned: Sequence[TaskRange]) -> None:
        """Raise BackfillFailed if the topic, or a part of these ranges, is gone."""
        bounds = self._bounds(sorted({each.partition for each in planned}))
        for each in planned:
            first, end = bounds[each.partition]
            if each.first < first:
                raise self._expired(each, f"the log begins at {first}: retention or a deletion removed the rest")
            if each.end > end and self._isolation == "read_committed":
                # The end of what is committed: a transaction may be open there.
                seen = f"committed records end at {end}, so a transaction may be open"
                raise BackfillFailed("RangeNotCommitted", f"{self._place(each)}: {seen}", final=False)
            if each.end > end:
                raise self._expired(each, f"the log ends at {end}: the topic was made anew, or lost records")

    def limits(self, topics: Iterable[str]) -> Mapping[str, int]:
        """`max.message.bytes` of topics; those that the principal may not describe are left out."""
        names = sorted(set(topics))
        if not names:
            return {}
        found = {}
        client = AdminClient(resolved(connection_config(self.connection())))
        asked = client.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name) for name in names])
        for resource, answer in asked.items():
            try:
                found[resource.name] = int(answer.result(LIMITS_TIMEOUT_S)["max.message.bytes"].value)
            except (KafkaException, KeyError, TypeError, ValueError, TimeoutError) as error:
                LOG.info(
                    "a topic's size limit is not known", extra={"fields": {"topic": resource.name, "error": str(error)}}
                )
        return found

    def _bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The log start and end of each partition, asked until all have a leader that answers."""
        missing = failed = 0
        deadline = self._clock.monotonic() + PATIENCE_S
        while True:
            try:
                return self._asked(partitions)
            except TopicMissing as error:
                missing += 1
                if missing >= MISSING_TRIES:
                    raise BackfillFailed("SourceTopicNotFound", str(error), final=True) from error
            except BackfillFailed as error:
                failed += 1
                if failed >= TRIES or self._clock.monotonic() >= deadline:
                    raise
                LOG.info("brokers are asked again", extra={"fields": {"error": str(error)}})
            self._wait(PAUSE_S)

    def _asked(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        topic = self._config.topic
        settings = consumer_config(self.connection(), f"fleet-backfill-{self._config.id}", self._isolation, {})
        try:
            with BoundedReader(settings, stores_offsets=False) as reader:
                known = {each.partition for each in reader.partitions(topic)}
                if missing := sorted(set(partitions) - known):
                    raise TopicMissing(f"topic {topic!r} has no partition {missing[0]}")
                found = reader.bounds(TopicPartition(topic, each) for each in partitions)
        except TopicMissing:
            raise
        except (ConsumerError, SettingsRefused) as error:
            reason = str(getattr(error, "reason", type(error).__name__))
            raise BackfillFailed(reason, str(error), final=False) from error
        bounds = {each.partition: offsets for each, offsets in found.items()}
        for partition in partitions:
            if partition not in bounds:
                message = f"partition {partition} of topic {topic!r} has no leader"
                raise BackfillFailed("PartitionUnavailable", message, final=False)
        return bounds

    def _expired(self, planned: TaskRange, seen: str) -> BackfillFailed:
        return BackfillFailed("RangeExpired", f"{self._place(planned)}: {seen}", final=True)

    def _place(self, planned: TaskRange) -> str:
        return f"topic {self._config.topic!r} partition {planned.partition}, offsets {planned.first} to {planned.end}"
