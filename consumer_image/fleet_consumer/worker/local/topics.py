"""The managed topics of a local run, made and mended as the operator does it for a group in a cluster.

What the operator would not lower, a size limit, is not lowered here; neither is how long records are kept, because an
earlier run may have left records that wait under another policy. Topics of earlier runs' delays are read on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.contract import naming
from fleet_consumer.contract.worker_config import WorkerConfig
from fleet_consumer.net import NetError, NetworkClient
from fleet_consumer.wire.admin.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from fleet_consumer.wire.admin.describe_configs import TOPIC_RESOURCE, DescribeConfigsRequest, DescribeConfigsResource
from fleet_consumer.wire.admin.incremental_alter_configs import set_topics
from fleet_consumer.wire.errors import ErrorCode, describe
from fleet_consumer.wire.metadata import MetadataResponseTopic
from fleet_consumer.worker.config.settings import connection_settings
from fleet_consumer.worker.local.policy import DAY_SECONDS, LocalPolicy

ASK_S: Final = 10.0
"""Patience with the brokers for one question."""
SETTLE_S: Final = 60.0
"""How long brokers may take to know of a topic that was made: less than a second, unless the machine is busy."""
LOOK_AGAIN_S: Final = 0.1

BROKER_DEFAULT: Final = -1
"""As many replicas as the brokers give new topics (KIP-464)."""

RETENTION_SECONDS_MIN: Final = 7 * DAY_SECONDS
RETENTION_FACTOR: Final = 3
SEGMENT_MS_DEFAULT: Final = 7 * DAY_SECONDS * 1000
"""Kafka's own `segment.ms`, with which a failed record may outlive its retention."""
FAILED_RETENTION_SECONDS: Final = 30 * DAY_SECONDS
HEADERS_BYTES_MAX: Final = 64 * 1024
"""What a hop may add to a record."""
SOURCE_BYTES_DEFAULT: Final = 1_048_588
"""Kafka's own `max.message.bytes`, where that of the source topics may not be read."""

CLEANUP: Final = "cleanup.policy"
TIMESTAMPS: Final = "message.timestamp.type"
RETENTION: Final = "retention.ms"
BYTES: Final = "retention.bytes"
UNLIMITED: Final = "-1"
SIZE: Final = "max.message.bytes"
SEGMENT: Final = "segment.ms"
MANAGED_SETTINGS: Final = (CLEANUP, SIZE, TIMESTAMPS, RETENTION, BYTES)
MADE: Final = frozenset({ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT})
"""Answers after which a topic is there, or will be: a broker that runs out of time goes on making it."""
NEVER_LOWERED: Final = frozenset({RETENTION, SIZE})


class TopicsUnusable(Exception):
    """A topic is not there and cannot be made, or is there and cannot be used; the message is for people."""

    reason = "TopicNotCreated"


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """A topic as it should be."""

    name: str
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Managed:
    """What a group has now. `flow` are the partition counts of the topics that its retry worker reads, `delays` the
    canonical texts of those that are waited in, `max_message_bytes` the limit of what may be written to them."""

    delays: tuple[str, ...] = ()
    max_message_bytes: int = SOURCE_BYTES_DEFAULT + HEADERS_BYTES_MAX
    flow: Mapping[str, int] = field(default_factory=dict)


def wanted_topics(
    group_id: str,
    failed_topic: str,
    policy: LocalPolicy | None,
    delays: Iterable[str],
    *,
    partitions: int,
    source_max_message_bytes: int | None,
    failed_segment_ms: int = SEGMENT_MS_DEFAULT,
) -> Iterator[WantedTopic]:
    """All topics that the group should have: one for each delay, redrive, failed; only the last without a policy.

    While the sources' size limit is unknown none is set: the topics then have the brokers'.
    """

    def topic(name: str, retention_seconds: int, *, hops: int = 1) -> WantedTopic:
        # What waits must not be deleted before its time because much waits, as the brokers' default may have it.
        size = {BYTES: UNLIMITED} if hops == 1 else {}
        if source_max_message_bytes is not None:
            size[SIZE] = str(source_max_message_bytes + hops * HEADERS_BYTES_MAX)
        kept = {RETENTION: str(retention_seconds * 1000)}
        return WantedTopic(name, partitions, {CLEANUP: "delete", TIMESTAMPS: "LogAppendTime", **size, **kept})

    if policy is not None:
        least = max(RETENTION_SECONDS_MIN, RETENTION_FACTOR * policy.total_seconds)
        for delay in delays:
            yield topic(naming.retry_topic(group_id, delay), max(least, RETENTION_FACTOR * naming.parse_delay(delay)))
        # The ledger of what was put back outlives every failed record.
        outlived = FAILED_RETENTION_SECONDS + failed_segment_ms // 1000 + DAY_SECONDS
        yield topic(naming.redrive_topic(group_id), outlived)
    # Whatever got into a retry topic must be able to end here.
    yield topic(failed_topic, FAILED_RETENTION_SECONDS, hops=2)


def prepare_topics(config: WorkerConfig, policy: LocalPolicy | None, clock: Clock) -> Managed:
    """See to it that all of them are there and as they must be. Without a policy only the failed topic is made, and
    the flow is what earlier runs have left. Raises TopicsUnusable."""
    client = NetworkClient(connection_settings(config.brokers, config.name), clock)
    try:
        return _Preparation(config, policy, client, clock).run()
    except NetError as error:
        raise TopicsUnusable(f"the group's topics cannot be asked for: {error}") from error
    finally:
        client.close()


class _Preparation:
    """One go. Raises NetError when the brokers do not answer in time."""

    def __init__(self, config: WorkerConfig, policy: LocalPolicy | None, client: NetworkClient, clock: Clock) -> None:
        self._config = config
        self._policy = policy
        self._client = client
        self._clock = clock

    def run(self) -> Managed:
        everything = {
            topic.name: len(topic.partitions)
            for topic in self._client.metadata(None, timeout_s=ASK_S).topics
            if topic.name is not None and not topic.error_code
        }
        sources = {name: count for name, count in everything.items() if self._is_source(name)}
        sequence = () if self._policy is None else self._policy.sequence
        delays = sorted({*sequence, *self._left_delays(everything)}, key=naming.parse_delay)
        source_bytes = self._source_bytes(sources)
        wanted = tuple(
            wanted_topics(
                self._config.group_id,
                self._config.failed_topic,
                self._policy,
                delays,
                partitions=max(sources.values(), default=1),
                source_max_message_bytes=source_bytes,
                failed_segment_ms=self._failed_segment_ms(),
            )
        )
        missing = self._missing(wanted)
        self._create(missing)
        if self._policy is not None:
            there = [topic for topic in wanted if topic not in missing and naming.is_managed_topic(topic.name)]
            self._mend(there)
        counts = self._settled(wanted)
        flow = [naming.redrive_topic(self._config.group_id), *self._topics_of(delays)]
        return Managed(
            delays=tuple(delays),
            max_message_bytes=(source_bytes or SOURCE_BYTES_DEFAULT) + HEADERS_BYTES_MAX,
            flow={name: count for name, count in {**everything, **counts}.items() if name in flow},
        )

    def _is_source(self, name: str) -> bool:
        pattern = self._config.topic_pattern
        return name in self._config.topics if pattern is None else naming.pattern_matches(pattern, name)

    def _topics_of(self, delays: Iterable[str]) -> list[str]:
        return [naming.retry_topic(self._config.group_id, delay) for delay in delays]

    def _left_delays(self, names: Iterable[str]) -> Iterator[str]:
        """The delays whose topics are there, whoever made them: records of an earlier run may wait in them."""
        prefix = naming.retry_topic(self._config.group_id, "")
        for name in names:
            delay = name.removeprefix(prefix)
            if name.startswith(prefix) and naming.DELAY.fullmatch(delay) and _is_canonical(delay):
                yield delay

    def _source_bytes(self, sources: Iterable[str]) -> int | None:
        """The largest size limit of the sources, of those that may be read."""
        limits = [settings.get(SIZE, "") for settings in self._settings(sources, (SIZE,)).values()]
        return max((int(limit) for limit in limits if limit.isdigit()), default=None)

    def _failed_segment_ms(self) -> int:
        """The failed topic's `segment.ms`, and never less than the default: older segments may be of an older one."""
        told = self._settings((self._config.failed_topic,), (SEGMENT,)).get(self._config.failed_topic, {})
        segment_ms = told.get(SEGMENT, "")
        return max(SEGMENT_MS_DEFAULT, int(segment_ms) if segment_ms.isdigit() else 0)

    def _settings(self, topics: Iterable[str], names: tuple[str, ...]) -> dict[str, dict[str, str]]:
        """The settings of these topics; those that may not be read are left out."""
        resources = tuple(
            DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=names)
            for topic in topics
        )
        if not resources:
            return {}
        answer = self._client.call(None, DescribeConfigsRequest(resources=resources), timeout_s=ASK_S)
        return {
            result.resource_name: {each.name: each.value for each in result.configs if each.value is not None}
            for result in answer.results
            if not result.error_code
        }

    def _missing(self, wanted: tuple[WantedTopic, ...]) -> list[WantedTopic]:
        found = {name: topic.error_code for name, topic in self._ask(wanted).items()}
        for name, code in found.items():
            if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE):
                raise TopicsUnusable(f"topic {name!r} cannot be used: {describe(code)}{self._advice(name)}")
        return [topic for topic in wanted if found.get(topic.name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    def _ask(self, wanted: Iterable[WantedTopic]) -> dict[str, MetadataResponseTopic]:
        """What any broker knows of these topics, by their names."""
        answer = self._client.metadata([topic.name for topic in wanted], timeout_s=ASK_S)
        return {topic.name: topic for topic in answer.topics if topic.name is not None}

    def _create(self, topics: list[WantedTopic]) -> None:
        if not topics:
            return
        request = CreateTopicsRequest(topics=tuple(map(_creatable, topics)), timeout_ms=int(ASK_S * 1000))
        for made in self._client.call(None, request, timeout_s=ASK_S).topics:
            if made.error_code not in MADE:
                why = made.error_message or describe(made.error_code)
                raise TopicsUnusable(
                    f"topic {made.name!r} is not there and cannot be made: {why}{self._advice(made.name)}"
                )

    def _mend(self, topics: Iterable[WantedTopic]) -> None:
        """Set what differs, where it may be read: due times rest on append times, and every record must fit."""
        wanted = {topic.name: topic.configs for topic in topics}
        found = self._settings(wanted, MANAGED_SETTINGS)
        drifts = {name: drift for name, seen in found.items() if (drift := drifted(wanted[name], seen))}
        if not drifts:
            return
        for result in self._client.call(None, set_topics(drifts), timeout_s=ASK_S).responses:
            if result.error_code:
                needed = ", ".join(f"{key}={value}" for key, value in drifts[result.resource_name].items())
                why = result.error_message or describe(result.error_code)
                raise TopicsUnusable(f"topic {result.resource_name!r} needs {needed}, which cannot be set: {why}")

    def _settled(self, wanted: tuple[WantedTopic, ...]) -> dict[str, int]:
        """Partition counts, once all topics are known to brokers."""
        deadline = self._clock.monotonic() + SETTLE_S
        while True:
            answer = self._ask(wanted)
            unsettled = [(name, topic.error_code) for name, topic in answer.items() if not topic.partitions]
            if not unsettled:
                return {name: len(topic.partitions) for name, topic in answer.items()}
            if self._clock.monotonic() >= deadline:
                name, code = unsettled[0]
                raise TopicsUnusable(f"topic {name!r} was made and is not to be seen: {describe(code)}; start again")
            self._client.poll(LOOK_AGAIN_S)

    def _advice(self, name: str) -> str:
        return "; make it, or name another with --failed-topic" if name == self._config.failed_topic else ""


def drifted(wanted: Mapping[str, str], seen: Mapping[str, str]) -> dict[str, str]:
    """The settings to be set; a size limit or a retention beyond what is needed stays."""
    return {
        name: value
        for name, value in wanted.items()
        if seen.get(name) != value and not (name in NEVER_LOWERED and _enough(seen.get(name, ""), int(value)))
    }


def _enough(seen: str, needed: int) -> bool:
    """Whether a limit that is set reaches; -1 is none at all."""
    return seen == UNLIMITED or (seen.isdigit() and int(seen) >= needed)


def _is_canonical(delay: str) -> bool:
    try:
        return naming.canonical_delay(naming.parse_delay(delay)) == delay
    except ValueError:
        return False


def _creatable(topic: WantedTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=BROKER_DEFAULT,
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()),
    )
