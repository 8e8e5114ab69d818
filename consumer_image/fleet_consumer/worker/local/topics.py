"""Creates a local run's managed topics and corrects their settings, as the operator does in a cluster.

Retention is never lowered, because records of an earlier run with another policy may still wait. The retry topics of
the earlier policy are still read.
"""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.contract import naming
from fleet_consumer.contract.managed_topics import (
    HEADERS_BYTES_MAX,
    MANAGED_SETTINGS,
    RETENTION,
    SEGMENT,
    SIZE,
    SOURCE_BYTES_DEFAULT,
    TopicShape,
    WantedTopic,
    drifted,
    segment_ms,
)
from fleet_consumer.contract.worker_config import WorkerConfig
from fleet_consumer.net import NetError, NetworkClient
from fleet_consumer.wire import admin
from fleet_consumer.wire.errors import ErrorCode, describe
from fleet_consumer.wire.topics import MetadataResponseTopic
from fleet_consumer.worker.config.role import retry_topics
from fleet_consumer.worker.config.settings import connection_settings
from fleet_consumer.worker.local.policy import LocalPolicy

REQUEST_TIMEOUT_S: Final = 10.0
SETTLE_S: Final = 60.0
"""Longest wait in seconds until all brokers know a new topic. Usually this takes less than a second."""
SETTLE_POLL_S: Final = 0.1

CREATED: Final = frozenset({ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT})
"""Error codes after which the topic exists or will exist: after a timeout, the broker still creates the topic."""
NEVER_LOWERED: Final = frozenset({RETENTION, SIZE})


class TopicsUnusable(Exception):
    """A managed topic does not exist and cannot be created, or it exists and cannot be used."""

    reason = "TopicNotCreated"


@dataclass(frozen=True, slots=True)
class Managed:
    """A group's existing managed topics.

    `flow` maps the retry worker's topics to their partition counts. `delays` are the delays of the retry topics as
    canonical strings. `max_message_bytes` is the size limit of a record in these topics.
    """

    delays: tuple[str, ...]
    max_message_bytes: int
    flow: Mapping[str, int]


def prepare_topics(config: WorkerConfig, policy: LocalPolicy | None, clock: Clock) -> Managed:
    """Create the group's missing topics and correct the settings of existing topics. Raises TopicsUnusable.

    Without a policy, only the failed topic is created, and `flow` contains the topics of earlier runs.
    """
    try:
        with closing(NetworkClient(connection_settings(config.brokers, config.name), clock)) as client:
            return _Preparation(config, policy, client, clock).run()
    except NetError as error:
        raise TopicsUnusable(f"the group's topics cannot be described: {error}") from error


class _Preparation:
    """One run of `prepare_topics`. Raises NetError and TopicsUnusable."""

    def __init__(self, config: WorkerConfig, policy: LocalPolicy | None, client: NetworkClient, clock: Clock) -> None:
        self._config = config
        self._policy = policy
        self._client = client
        self._clock = clock

    def run(self) -> Managed:
        everything = {
            topic.name: len(topic.partitions)
            for topic in self._client.metadata(None, timeout_s=REQUEST_TIMEOUT_S).topics
            if topic.name is not None and not topic.error_code
        }
        sources = {name: count for name, count in everything.items() if self._is_source(name)}
        sequence = () if self._policy is None else self._policy.sequence
        group_id, prefix = self._config.group_id, naming.retry_topic(self._config.group_id, "")
        # Include the delays of existing retry topics, because records of an earlier run may wait there.
        existing = {name.removeprefix(prefix) for name in everything if name.startswith(prefix)}
        delays = sorted({*sequence, *filter(naming.is_canonical_delay, existing)}, key=naming.parse_delay)
        source_bytes, failed = self._source_bytes(sources), self._config.failed_topic
        shape = TopicShape(
            partitions=max(sources.values(), default=1),
            source_max_message_bytes=source_bytes,
            failed_segment_ms=segment_ms(self._settings((failed,), (SEGMENT,)).get(failed, {})),
        )
        flow_topics = () if self._policy is None else shape.flow(group_id, delays, self._policy.total_seconds)
        wanted = (*flow_topics, shape.failed_topic(failed))
        missing = self._missing(wanted)
        self._create(missing)
        if self._policy is not None:
            there = [topic for topic in wanted if topic not in missing and naming.is_managed_topic(topic.name)]
            self._correct(there)
        counts = self._settled(wanted)
        flow = retry_topics(group_id, tuple(delays))
        return Managed(
            delays=tuple(delays),
            max_message_bytes=(source_bytes or SOURCE_BYTES_DEFAULT) + HEADERS_BYTES_MAX,
            flow={name: count for name, count in {**everything, **counts}.items() if name in flow},
        )

    def _is_source(self, name: str) -> bool:
        pattern = self._config.topic_pattern
        return name in self._config.topics if pattern is None else naming.pattern_matches(pattern, name)

    def _source_bytes(self, sources: Iterable[str]) -> int | None:
        """Return the largest size limit of the source topics with readable settings; None if there are none."""
        limits = [settings.get(SIZE, "") for settings in self._settings(sources, (SIZE,)).values()]
        return max((int(limit) for limit in limits if limit.isdigit()), default=None)

    def _settings(self, topics: Iterable[str], names: tuple[str, ...]) -> dict[str, dict[str, str]]:
        """Return the settings by topic, without topics whose settings the principal may not read."""
        resources = tuple(
            admin.DescribeConfigsResource(
                resource_type=admin.TOPIC_RESOURCE, resource_name=topic, configuration_keys=names
            )
            for topic in topics
        )
        if not resources:
            return {}
        answer = self._client.call(None, admin.DescribeConfigsRequest(resources=resources), timeout_s=REQUEST_TIMEOUT_S)
        return {
            result.resource_name: {each.name: each.value for each in result.configs if each.value is not None}
            for result in answer.results
            if not result.error_code
        }

    def _missing(self, wanted: tuple[WantedTopic, ...]) -> list[WantedTopic]:
        found = {name: topic.error_code for name, topic in self._describe(wanted).items()}
        for name, code in found.items():
            if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE):
                raise TopicsUnusable(f"topic {name!r} cannot be used: {describe(code)}{self._advice(name)}")
        return [topic for topic in wanted if found.get(topic.name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    def _describe(self, wanted: Iterable[WantedTopic]) -> dict[str, MetadataResponseTopic]:
        """Request the topics' metadata from any broker, and return it by topic name."""
        answer = self._client.metadata([topic.name for topic in wanted], timeout_s=REQUEST_TIMEOUT_S)
        return {topic.name: topic for topic in answer.topics if topic.name is not None}

    def _create(self, topics: list[WantedTopic]) -> None:
        if not topics:
            return
        request = admin.CreateTopicsRequest(
            topics=tuple(map(_creatable, topics)), timeout_ms=int(REQUEST_TIMEOUT_S * 1000)
        )
        for created in self._client.call(None, request, timeout_s=REQUEST_TIMEOUT_S).topics:
            if created.error_code not in CREATED:
                why = created.error_message or describe(created.error_code)
                raise TopicsUnusable(
                    f"topic {created.name!r} does not exist and cannot be created: {why}{self._advice(created.name)}"
                )

    def _correct(self, topics: Iterable[WantedTopic]) -> None:
        """Correct the settings that the principal may read. Retries need append times as timestamps, and a size limit
        that fits every record."""
        wanted = {topic.name: topic.configs for topic in topics}
        found = self._settings(wanted, MANAGED_SETTINGS)
        drifts = {name: drifted(wanted[name], seen, never_lowered=NEVER_LOWERED) for name, seen in found.items()}
        drifts = {name: drift for name, drift in drifts.items() if drift}
        if not drifts:
            return
        for result in self._client.call(None, admin.set_topics(drifts), timeout_s=REQUEST_TIMEOUT_S).responses:
            if result.error_code:
                needed = ", ".join(f"{key}={value}" for key, value in drifts[result.resource_name].items())
                why = result.error_message or describe(result.error_code)
                raise TopicsUnusable(f"topic {result.resource_name!r} needs {needed}, which cannot be set: {why}")

    def _settled(self, wanted: tuple[WantedTopic, ...]) -> dict[str, int]:
        """Wait until the brokers know all topics, and return their partition counts."""
        deadline = self._clock.monotonic() + SETTLE_S
        while True:
            answer = self._describe(wanted)
            unsettled = [(name, topic.error_code) for name, topic in answer.items() if not topic.partitions]
            if not unsettled:
                return {name: len(topic.partitions) for name, topic in answer.items()}
            if self._clock.monotonic() >= deadline:
                name, code = unsettled[0]
                raise TopicsUnusable(
                    f"topic {name!r} was created but is not visible yet: {describe(code)}; start again"
                )
            self._client.poll(SETTLE_POLL_S)

    def _advice(self, name: str) -> str:
        return "; create it, or name another topic with --failed-topic" if name == self._config.failed_topic else ""


def _creatable(topic: WantedTopic) -> admin.CreatableTopic:
    return admin.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=(),
        configs=tuple(admin.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()),
    )
