"""The driver's requests to the group's brokers: a check that a slice's ranges still exist, and topics' size limits."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.slices import TaskRange
from fleet_consumer.backfill.work import connection_of
from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.backfill_config import BackfillConfig
from fleet_consumer.group.errors import ConsumerError, TopicMissing
from fleet_consumer.librdkafka.bounded import BoundedReader
from fleet_consumer.librdkafka.settings import SettingsRefused, connection_config, consumer_config, resolved
from fleet_consumer.net import ConnectionSettings, NetError, NetworkClient
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.schema import ZERO_UUID
from fleet_consumer.worker.config.settings import ISOLATION_LEVELS
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.backfill")

MISSING_TRIES: Final = 10
"""The check fails after this many answers that report the topic as missing or recreated. A single answer is not enough,
because a broker that has just started may not know the topic yet."""
TRIES: Final = 30
"""The check fails after this many failed tries, whatever their errors; enough for the restart of a broker (1-2
minutes)."""
PAUSE_S: Final = 2.0
PATIENCE_S: Final = 120.0
"""Maximum time for all tries of the check. Needed because each try with a wrong password takes the whole request
timeout."""
LIMITS_TIMEOUT_S: Final = 10.0
PROOF_TIMEOUT_S: Final = 10.0


class BrokersView:
    """The requests of one Backfill to the brokers. Methods raise BackfillFailed."""

    def __init__(self, config: BackfillConfig, *, wait: Callable[[float], object] | None = None) -> None:
        self._config = config
        self._clock = SystemClock()
        self._wait = wait or threading.Event().wait
        self._isolation = ISOLATION_LEVELS[config.worker.consumer.isolation_level]

    def check(self, planned: Sequence[TaskRange]) -> None:
        """Raise BackfillFailed if the topic or some of the planned offsets do not exist any more. Also raises it if the
        topic was recreated, or if a transaction may be open within the ranges."""
        bounds = self._bounds(sorted({each.partition for each in planned}))
        for each in planned:
            first, end = bounds[each.partition]
            place = f"topic {self._config.topic!r} partition {each.partition}, offsets {each.first} to {each.end}"
            if each.first < first:
                seen = f"the log begins at {first}, because retention or a deletion removed the earlier records"
                raise BackfillFailed("RangeExpired", f"{place}: {seen}", final=True)
            if each.end > end and self._isolation == "read_committed":
                # With `read_committed`, `end` is the last stable offset: records from this offset on may belong to an
                # open transaction.
                seen = f"committed records end at {end}, so a transaction may be open"
                raise BackfillFailed("RangeNotCommitted", f"{place}: {seen}", final=False)
            if each.end > end:
                seen = f"the log ends at {end}, so the topic was recreated or has lost records"
                raise BackfillFailed("RangeExpired", f"{place}: {seen}", final=True)

    def limits(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Return `max.message.bytes` by topic. Topics with an unreadable limit (for example without permission) are
        left out."""
        names = sorted(set(topics))
        if not names:
            return {}
        found = {}
        client = AdminClient(resolved(connection_config(connection_of(self._config))))
        asked = client.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name) for name in names])
        for resource, answer in asked.items():
            try:
                found[resource.name] = int(answer.result(LIMITS_TIMEOUT_S)["max.message.bytes"].value)
            except (KafkaException, KeyError, TypeError, ValueError, TimeoutError) as error:
                LOG.info("a topic's size limit is unknown", extra=fields(topic=resource.name, error=str(error)))
        return found

    def _bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return log start and end offsets (`read_committed`: last stable offset). Retries until all leaders answer."""
        lost = failed = 0
        deadline = self._clock.monotonic() + PATIENCE_S
        while True:
            try:
                return self._asked(partitions)
            except BackfillFailed as error:
                failed += 1
                # A broker that was down may still list a deleted topic, or may not list a new topic yet.
                lost += error.final
                if lost >= MISSING_TRIES:
                    raise
                if failed >= TRIES or self._clock.monotonic() >= deadline:
                    raise BackfillFailed(error.reason, str(error), final=False) from error
                LOG.info("request to the brokers failed; retrying", extra=fields(error=str(error)))
            self._wait(PAUSE_S)

    def _asked(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        topic, connection = self._config.topic, connection_of(self._config)
        settings = consumer_config(connection, f"fleet-backfill-{self._config.id}", self._isolation, {})
        try:
            with BoundedReader(settings, stores_offsets=False) as reader:
                known = {each.partition for each in reader.partitions(topic)}
                if missing := sorted(set(partitions) - known):
                    raise TopicMissing(f"topic {topic!r} has no partition {missing[0]}")
                found = reader.bounds(TopicPartition(topic, each) for each in partitions)
        except TopicMissing as error:
            raise BackfillFailed("SourceTopicNotFound", str(error), final=True) from error
        except (ConsumerError, SettingsRefused) as error:
            raise BackfillFailed(error.reason, str(error), final=False) from error
        bounds = {each.partition: offsets for each, offsets in found.items()}
        for partition in partitions:
            if partition not in bounds:
                message = f"partition {partition} of topic {topic!r} has no leader"
                raise BackfillFailed("PartitionUnavailable", message, final=False)
        # The id is checked after reading the bounds. A recreated topic has a new id, so a matching id proves that the
        # bounds belong to this topic.
        self._prove(connection)
        return bounds

    def _prove(self, connection: ConnectionSettings) -> None:
        """Raise BackfillFailed if the cluster id or topic id differs from the settings, or if the brokers report no id.
        An id that is missing in the settings is not checked."""
        config = self._config
        if config.cluster_id is None and config.topic_id is None:
            return
        try:
            with closing(NetworkClient(connection)) as client:
                answer = client.metadata((config.topic,), timeout_s=PROOF_TIMEOUT_S)
        except NetError as error:
            raise BackfillFailed(error.reason, str(error), final=False) from error
        found = next((each.topic_id for each in answer.topics if each.name == config.topic), ZERO_UUID)
        topic_id = None if found == ZERO_UUID else str(found)
        self._same(config.cluster_id, answer.cluster_id, "the range was resolved on the Kafka cluster with the id")
        self._same(config.topic_id, topic_id, f"the range was resolved in topic {config.topic!r} with the id")

    def _same(self, wanted: str | None, found: str | None, what: str) -> None:
        if wanted is None or wanted == found:
            return
        if found is None:
            raise BackfillFailed("RangeNotProven", f"{what} {wanted}, but the broker reports no id", final=False)
        seen = f"{what} {wanted}, but the id is now {found}, so the offsets of the range belong to other records"
        raise BackfillFailed("RangeLost", seen, final=True)
