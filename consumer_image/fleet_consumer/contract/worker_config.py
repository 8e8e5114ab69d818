"""worker.json: the settings of one revision of a fleet, as the operator renders them.

Parsing is strict: a field that is missing, unknown or of the wrong type causes an error with the field's path.
Otherwise a silently ignored setting would be noticed only in production. Settings that this version does not support
are also errors.

Decision: docs/decisions/0011-default-assignor.md (the default of `assignors`).
"""

from collections.abc import Mapping
from typing import Final

from fleet_consumer.contract import fields
from fleet_consumer.contract.brokers import Brokers
from fleet_consumer.contract.log import LogConfig
from fleet_consumer.contract.patterns import Pattern
from fleet_consumer.contract.section import Section, SettingsInvalid, load_json

VERSION: Final = 1
FORMATS: Final = ("Bytes", "String", "Json")
"""Formats of `handler.decode`."""
PAUSED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Default of `ConsumerConfig.paused_bytes_max`."""


@fields.settings
class PythonSource:
    """A callable to import. `path`, if not None, is a folder to put first on the import path."""

    callable: str = fields.text(r"[^:\s]+:[^:\s]+")
    path: str | None = fields.text(null=True)


@fields.settings
class HttpEndpoint:
    """Address of a handler on the worker's loopback interface. With `batch`, one request has several records."""

    port: int = fields.integer(1, 65535)
    path: str = fields.text(r"/[^\s]*")
    batch: bool = fields.boolean()


@fields.settings
class Formats:
    """Formats in which a handler receives keys and values."""

    key: str = fields.choice(*FORMATS)
    value: str = fields.choice(*FORMATS)


@fields.settings
class HandlerConfig:
    """The handler and its limits; exactly one of `python` and `http` is set."""

    python: PythonSource | None = fields.nested(PythonSource, null=True)
    http: HttpEndpoint | None = fields.nested(HttpEndpoint, null=True)
    decode: Formats = fields.nested(Formats)
    timeout_seconds: int = fields.integer(1)
    outputs: tuple[str, ...] = fields.strings()
    concurrency: int = fields.integer(1, 1024)
    error_text: bool = True
    """True if logs and headers may contain error messages. Not in worker.json; set by `settings.with_environment`."""

    @property
    def title(self) -> str:
        """The handler's name in messages."""
        if self.python is not None:
            return self.python.callable
        assert self.http is not None
        return f"http://127.0.0.1:{self.http.port}{self.http.path}"


@fields.settings
class ConsumerConfig:
    """Settings of the group's consumers; durations in whole seconds."""

    assignors: tuple[str, ...] = fields.strings(1)
    session_timeout_seconds: int = fields.integer(1)
    heartbeat_interval_seconds: int = fields.integer(1)
    static_membership: bool = fields.boolean()
    max_poll_interval_seconds: int = fields.integer(1)
    max_poll_records: int = fields.integer(1)
    auto_offset_reset: str = fields.choice("Earliest", "Latest", "None")
    isolation_level: str = fields.choice("ReadUncommitted", "ReadCommitted")
    commit_interval_seconds: int = fields.integer(1)
    properties: Mapping[str, str] = fields.read_by(Section.properties)
    paused_bytes_max: int = PAUSED_BYTES_MAX
    """Maximum bytes of held records of paused partitions. Not in worker.json; set by `settings.with_environment`."""


def _handler(section: Section) -> HandlerConfig:
    handler = fields.parse(HandlerConfig, section)
    if (handler.python is None) == (handler.http is None):
        raise SettingsInvalid(section.path, "must have exactly one of `python` and `http`")
    return handler


def _consumer(section: Section) -> ConsumerConfig:
    if section.choice("protocol", "Classic", "Consumer") != "Classic":
        raise SettingsInvalid(section.at("protocol"), "this version supports only the classic protocol; use `Classic`")
    consumer = fields.parse(ConsumerConfig, section)
    if consumer.heartbeat_interval_seconds >= consumer.session_timeout_seconds:
        raise SettingsInvalid(
            section.at("heartbeatIntervalSeconds"), "must be below sessionTimeoutSeconds; a third of it is best"
        )
    return consumer


def producer_properties(producer: Section) -> Mapping[str, str]:
    return producer.properties("properties")


@fields.settings
class WorkerConfig:
    """One revision's settings, the same for all of its workers; `topics` is empty if a pattern is given."""

    namespace: str = fields.text()
    name: str = fields.text()
    uid: str = fields.text()
    group_id: str = fields.text(r"[A-Za-z0-9._-]{1,200}")
    revision: str = fields.text()
    topics: tuple[str, ...] = fields.strings()
    topic_pattern: Pattern | None = fields.pattern(null=True)
    brokers: Brokers = fields.nested(Brokers, name="connection")
    handler: HandlerConfig = fields.nested(_handler)
    consumer: ConsumerConfig = fields.nested(_consumer)
    producer_properties: Mapping[str, str] = fields.nested(producer_properties, name="producer", later={})
    """librdkafka's producer settings. The operator omits an empty `producer`, because earlier workers refuse this
    field."""
    failed_topic: str = fields.text()
    policy_file: str | None = fields.nested(lambda retry: retry.text("policyFile"), name="retry", null=True)
    """Path of policies.json, which workers reload on changes. If None, failed records go directly to the failed
    topic."""
    skip_file: str | None = fields.text(null=True)
    """Path of skip.json, which workers reload on changes; the file may be missing."""
    http_port: int = fields.integer(0, 65535)
    drain_seconds: int = fields.integer()
    log: LogConfig = fields.nested(LogConfig)


def load_config(path: str) -> WorkerConfig:
    """Parse a settings file. Raises SettingsInvalid if it is invalid or cannot be read."""
    return parse_config(load_json(path))


def parse_config(document: object) -> WorkerConfig:
    """Parse the content of a worker.json. Raises SettingsInvalid for the first invalid field."""
    root = Section(document, "")
    version = root.integer("version", 1)
    if version != VERSION:
        raise SettingsInvalid(
            "version", f"is {version}; this worker reads only {VERSION}: use the worker image of the operator's version"
        )
    config = fields.parse(WorkerConfig, root)
    if config.topic_pattern is None and not config.topics:
        raise SettingsInvalid("topics", "must have at least 1 entry")
    if config.topic_pattern is not None and config.topics:
        raise SettingsInvalid("topicPattern", "cannot be given together with `topics`; give one of the two")
    root.end()
    return config
