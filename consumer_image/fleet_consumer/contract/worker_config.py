"""worker.json: the settings of one revision of a fleet, as the operator renders them.

Parsing is strict: a field that is missing, unknown or of the wrong type is an error that names its path, because a
silently ignored setting shows in production only. Settings that this version cannot run are refused as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fleet_consumer.contract.brokers import Brokers, parse_brokers
from fleet_consumer.contract.log import LogConfig, parse_log
from fleet_consumer.contract.patterns import Pattern
from fleet_consumer.contract.section import Section, SettingsInvalid, load_json

VERSION: Final = 1
"""Version of the file format."""
FORMATS: Final = ("Bytes", "String", "Json")
"""Formats of `handler.decode`."""
PAUSED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Default of `ConsumerConfig.paused_bytes_max`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSource:
    """A callable to import. `path` is a folder put first on the import path, or None."""

    callable: str
    path: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpEndpoint:
    """Address of a handler on the worker's loopback interface; `batch`: a request carries several records."""

    port: int
    path: str
    batch: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerConfig:
    """The handler and its limits; exactly one of `python` and `http` is set."""

    python: PythonSource | None
    http: HttpEndpoint | None
    timeout_seconds: int
    decode_key: str
    decode_value: str
    outputs: tuple[str, ...]
    concurrency: int
    error_text: bool = True
    """Logs and headers may contain error texts. No part of worker.json: set by `settings.with_environment`."""

    @property
    def title(self) -> str:
        """Name of the handler for messages."""
        if self.python is not None:
            return self.python.callable
        assert self.http is not None
        return f"http://127.0.0.1:{self.http.port}{self.http.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of the group's consumers; durations in whole seconds."""

    assignors: tuple[str, ...]
    session_timeout_seconds: int
    heartbeat_interval_seconds: int
    static_membership: bool
    max_poll_interval_seconds: int
    max_poll_records: int
    auto_offset_reset: str
    isolation_level: str
    commit_interval_seconds: int
    properties: Mapping[str, str]
    paused_bytes_max: int = PAUSED_BYTES_MAX
    """Memory for fetched records of paused partitions. No part of worker.json: set by `settings.with_environment`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One revision's settings, the same for each of its workers; `topics` is empty if a pattern is given."""

    namespace: str
    name: str
    uid: str
    group_id: str
    revision: str
    topics: tuple[str, ...]
    topic_pattern: Pattern | None
    brokers: Brokers
    handler: HandlerConfig
    consumer: ConsumerConfig
    producer_properties: Mapping[str, str]
    """Settings of librdkafka's producer by their own names."""
    failed_topic: str
    policy_file: str | None
    """Path of policies.json, which running workers follow as it changes. None: failed records go to the failed topic
    at once."""
    skip_file: str | None
    """Path of skip.json, which running workers follow as it changes; the file may be missing."""
    http_port: int
    drain_seconds: int
    log: LogConfig


def load_config(path: str) -> WorkerConfig:
    """Settings of a file. Raises SettingsInvalid, also if it cannot be read."""
    return parse_config(load_json(path))


def parse_config(document: object) -> WorkerConfig:
    """Settings of a parsed worker.json. Raises SettingsInvalid for the first bad field found."""
    root = Section(document, "")
    version = root.integer("version", 1)
    if version != VERSION:
        raise SettingsInvalid("version", f"is {version}; this worker reads {VERSION} only: use the image it came with")
    pattern = root.optional_pattern("topicPattern")
    config = WorkerConfig(
        namespace=root.text("namespace"),
        name=root.text("name"),
        uid=root.text("uid"),
        group_id=root.text("groupId", pattern=r"[A-Za-z0-9._-]{1,200}"),
        revision=root.text("revision"),
        topics=root.texts("topics", least=1 if pattern is None else 0),
        topic_pattern=pattern,
        brokers=root.read("connection", parse_brokers),
        handler=root.read("handler", _handler),
        consumer=root.read("consumer", _consumer),
        producer_properties=producer_properties(root),
        failed_topic=root.text("failedTopic"),
        policy_file=root.optional("retry", lambda retry: retry.text("policyFile")),
        skip_file=root.optional_text("skipFile"),
        http_port=root.integer("httpPort", 0, 65535),
        drain_seconds=root.integer("drainSeconds", 0),
        log=root.read("log", parse_log),
    )
    if pattern is not None and config.topics:
        raise SettingsInvalid("topicPattern", "cannot be given together with `topics`; give one of the two")
    root.end()
    return config


def _handler(section: Section) -> HandlerConfig:
    python, http = section.optional("python", _python), section.optional("http", _http)
    if (python is None) == (http is None):
        raise SettingsInvalid(section.path, "must have exactly one of `python` and `http`")
    decode_key, decode_value = section.read("decode", _formats)
    return HandlerConfig(
        python=python,
        http=http,
        timeout_seconds=section.integer("timeoutSeconds", 1),
        decode_key=decode_key,
        decode_value=decode_value,
        outputs=section.texts("outputs"),
        concurrency=section.integer("concurrency", 1, 1024),
    )


def _formats(decode: Section) -> tuple[str, str]:
    return decode.choice("key", *FORMATS), decode.choice("value", *FORMATS)


def _python(section: Section) -> PythonSource:
    return PythonSource(
        callable=section.text("callable", pattern=r"[^:\s]+:[^:\s]+"), path=section.optional_text("path")
    )


def _http(section: Section) -> HttpEndpoint:
    return HttpEndpoint(
        port=section.integer("port", 1, 65535),
        path=section.text("path", pattern=r"/[^\s]*"),
        batch=section.boolean("batch"),
    )


def producer_properties(root: Section) -> Mapping[str, str]:
    """The librdkafka properties of a file's `producer`. An earlier operator writes none, and this one none that is
    empty: earlier workers know no such field."""
    return root.read("producer", lambda producer: producer.properties("properties")) if root.has("producer") else {}


def _consumer(section: Section) -> ConsumerConfig:
    if section.choice("protocol", "Classic", "Consumer") != "Classic":
        raise SettingsInvalid(section.at("protocol"), "this version speaks the classic group protocol; use `Classic`")
    consumer = ConsumerConfig(
        assignors=section.texts("assignors", least=1),
        session_timeout_seconds=section.integer("sessionTimeoutSeconds", 1),
        heartbeat_interval_seconds=section.integer("heartbeatIntervalSeconds", 1),
        static_membership=section.boolean("staticMembership"),
        max_poll_interval_seconds=section.integer("maxPollIntervalSeconds", 1),
        max_poll_records=section.integer("maxPollRecords", 1),
        auto_offset_reset=section.choice("autoOffsetReset", "Earliest", "Latest", "None"),
        isolation_level=section.choice("isolationLevel", "ReadUncommitted", "ReadCommitted"),
        commit_interval_seconds=section.integer("commitIntervalSeconds", 1),
        properties=section.properties("properties"),
    )
    if consumer.heartbeat_interval_seconds >= consumer.session_timeout_seconds:
        raise SettingsInvalid(
            section.at("heartbeatIntervalSeconds"), "must be below sessionTimeoutSeconds, best a third of it"
        )
    return consumer
