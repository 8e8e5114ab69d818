"""worker.json: the settings of one revision of a fleet, as the operator renders them.

Parsing is strict: a field that is missing, unknown or of the wrong type is an error that names its path, because a
setting that is silently ignored is found out in production. What this version cannot run is refused here as well.
Nothing here reads files other than the one given, and no environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

VERSION: Final = 1
"""The only layout of worker.json so far."""


class SettingsInvalid(Exception):
    """A setting cannot be used; `field` is its path in worker.json, and the message says what to change."""

    reason = "SettingsInvalid"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files; None where the broker's certificate or ours needs none."""

    ca_file: str | None
    cert_file: str | None
    key_file: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEndpoint:
    """Where OAUTHBEARER tokens come from."""

    url: str
    scope: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSource:
    """How to log in. `directory` holds the files `username` and `password`, for OAUTHBEARER `clientId` and
    `clientSecret`."""

    mechanism: str
    directory: str
    oauth: TokenEndpoint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSource:
    """A callable to import. `path` is a folder put in front of the import path, or None."""

    callable: str
    path: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpEndpoint:
    """Where the handler listens, on this worker's own loopback; `batch`: it takes several records in a request."""

    port: int
    path: str
    batch: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerConfig:
    """The application's part; exactly one of `python` and `http`."""

    python: PythonSource | None
    http: HttpEndpoint | None
    timeout_seconds: int
    decode_key: str
    decode_value: str
    outputs: tuple[str, ...]
    concurrency: int

    @property
    def title(self) -> str:
        """The handler as people know it."""
        if self.python is not None:
            return self.python.callable
        assert self.http is not None
        return f"http://127.0.0.1:{self.http.port}{self.http.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How the group is consumed; durations in whole seconds."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One revision's settings, the same for each of its workers; `topics` is empty where a pattern is given."""

    namespace: str
    name: str
    uid: str
    group_id: str
    revision: str
    topics: tuple[str, ...]
    topic_pattern: re.Pattern[str] | None
    bootstrap_servers: tuple[str, ...]
    tls: TlsFiles | None
    sasl: SaslSource | None
    handler: HandlerConfig
    consumer: ConsumerConfig
    failed_topic: str
    http_port: int
    drain_seconds: int


def load_config(path: str) -> WorkerConfig:
    """Read and parse worker.json. Raises SettingsInvalid, also when the file cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsInvalid("", f"cannot read {path}: {error}") from error
    try:
        document = json.loads(text)
    except ValueError as error:
        raise SettingsInvalid("", f"{path} is not JSON: {error}") from error
    return parse_config(document)


def parse_config(document: object) -> WorkerConfig:
    """The settings in a parsed worker.json. Raises SettingsInvalid for the first bad field found."""
    root = _Section(document, "")
    version = root.integer("version", 1)
    if version != VERSION:
        raise SettingsInvalid("version", f"is {version}; this worker reads {VERSION} only: use the image it came with")
    pattern = root.pattern("topicPattern")
    connection = root.section("connection")
    config = WorkerConfig(
        namespace=root.text("namespace"),
        name=root.text("name"),
        uid=root.text("uid"),
        group_id=root.text("groupId", pattern=r"[A-Za-z0-9._-]{1,200}"),
        revision=root.text("revision"),
        topics=root.texts("topics", least=1 if pattern is None else 0),
        topic_pattern=pattern,
        bootstrap_servers=connection.texts("bootstrapServers", least=1),
        tls=_tls(connection.optional_section("tls")),
        sasl=_sasl(connection.optional_section("sasl")),
        handler=_handler(root.section("handler")),
        consumer=_consumer(root.section("consumer")),
        failed_topic=root.text("failedTopic"),
        http_port=root.integer("httpPort", 0, 65535),
        drain_seconds=root.integer("drainSeconds", 0),
    )
    if pattern is not None and config.topics:
        raise SettingsInvalid("topicPattern", "stands beside `topics`; give one of the two")
    connection.end()
    root.end()
    return config


def _tls(section: _Section | None) -> TlsFiles | None:
    if section is None:
        return None
    files = TlsFiles(
        ca_file=section.optional_text("caFile"),
        cert_file=section.optional_text("certFile"),
        key_file=section.optional_text("keyFile"),
    )
    if (files.cert_file is None) != (files.key_file is None):
        raise SettingsInvalid(section.path, "certFile and keyFile go together; give both or neither")
    section.end()
    return files


def _sasl(section: _Section | None) -> SaslSource | None:
    if section is None:
        return None
    mechanism = section.choice("mechanism", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
    oauth = _oauth(section.optional_section("oauth"))
    if (oauth is not None) != (mechanism == "OAUTHBEARER"):
        raise SettingsInvalid(section.at("oauth"), "goes with mechanism OAUTHBEARER; give both or neither")
    source = SaslSource(mechanism=mechanism, directory=section.text("directory"), oauth=oauth)
    section.end()
    return source


def _oauth(section: _Section | None) -> TokenEndpoint | None:
    if section is None:
        return None
    endpoint = TokenEndpoint(url=section.text("tokenEndpoint"), scope=section.optional_text("scope"))
    section.end()
    return endpoint


def _handler(section: _Section) -> HandlerConfig:
    python, http = _python(section.optional_section("python")), _http(section.optional_section("http"))
    if (python is None) == (http is None):
        raise SettingsInvalid(section.path, "must have exactly one of `python` and `http`")
    decode = section.section("decode")
    handler = HandlerConfig(
        python=python,
        http=http,
        timeout_seconds=section.integer("timeoutSeconds", 1),
        decode_key=decode.choice("key", "Bytes", "String", "Json"),
        decode_value=decode.choice("value", "Bytes", "String", "Json"),
        outputs=section.texts("outputs"),
        concurrency=section.integer("concurrency", 1, 1024),
    )
    for part in (decode, section):
        part.end()
    return handler


def _python(section: _Section | None) -> PythonSource | None:
    if section is None:
        return None
    source = PythonSource(
        callable=section.text("callable", pattern=r"[^:\s]+:[^:\s]+"), path=section.optional_text("path")
    )
    section.end()
    return source


def _http(section: _Section | None) -> HttpEndpoint | None:
    if section is None:
        return None
    endpoint = HttpEndpoint(
        port=section.integer("port", 1, 65535),
        path=section.text("path", pattern=r"/[^\s]*"),
        batch=section.boolean("batch"),
    )
    section.end()
    return endpoint


def _consumer(section: _Section) -> ConsumerConfig:
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
    section.end()
    return consumer


_ABSENT: Final = object()


class _Section:
    """One JSON object on its way in: fields are taken by name and type, and at the end none may be left."""

    def __init__(self, value: object, path: str) -> None:
        self.path = path
        if not isinstance(value, dict):
            raise SettingsInvalid(path or "worker.json", f"must be an object, not {_json_kind(value)}")
        self._left: dict[str, Any] = dict(value)

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def take(self, name: str) -> Any:
        """The field's value; a field that is absent is an error, null is a value."""
        value = self._left.pop(name, _ABSENT)
        if value is _ABSENT:
            raise SettingsInvalid(self.at(name), "is missing")
        return value

    def end(self) -> None:
        if self._left:
            raise SettingsInvalid(self.at(min(self._left)), "is not a setting that this version knows")

    def section(self, name: str) -> _Section:
        return _Section(self.take(name), self.at(name))

    def optional_section(self, name: str) -> _Section | None:
        value = self.take(name)
        return None if value is None else _Section(value, self.at(name))

    def text(self, name: str, *, pattern: str | None = None) -> str:
        value = self.take(name)
        if not isinstance(value, str) or not value:
            raise SettingsInvalid(self.at(name), f"must be a non-empty string, not {_json_kind(value)}")
        if pattern is not None and re.fullmatch(pattern, value) is None:
            raise SettingsInvalid(self.at(name), f"is {value!r}, which does not match {pattern}")
        return value

    def optional_text(self, name: str) -> str | None:
        if self._left.get(name, _ABSENT) is None:
            del self._left[name]
            return None
        return self.text(name)

    def pattern(self, name: str) -> re.Pattern[str] | None:
        text = self.optional_text(name)
        try:
            return None if text is None else re.compile(text)
        except re.error as error:
            raise SettingsInvalid(self.at(name), f"{text!r} is no regular expression: {error}") from error

    def texts(self, name: str, *, least: int = 0) -> tuple[str, ...]:
        value = self.take(name)
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise SettingsInvalid(self.at(name), "must be a list of non-empty strings")
        if len(value) < least:
            raise SettingsInvalid(self.at(name), f"must have at least {least} entry")
        return tuple(value)

    def integer(self, name: str, least: int, most: int | None = None) -> int:
        value = self.take(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise SettingsInvalid(self.at(name), f"must be a whole number, not {_json_kind(value)}")
        if value < least or (most is not None and value > most):
            bounds = f"at least {least}" if most is None else f"{least} to {most}"
            raise SettingsInvalid(self.at(name), f"must be {bounds}, not {value}")
        return value

    def boolean(self, name: str) -> bool:
        value = self.take(name)
        if not isinstance(value, bool):
            raise SettingsInvalid(self.at(name), f"must be true or false, not {_json_kind(value)}")
        return value

    def choice(self, name: str, *allowed: str) -> str:
        value = self.take(name)
        if value not in allowed:
            raise SettingsInvalid(self.at(name), f"is {value!r}; allowed are {', '.join(allowed)}")
        return str(value)

    def properties(self, name: str) -> Mapping[str, str]:
        value = self.take(name)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise SettingsInvalid(self.at(name), "must map names of librdkafka settings to strings")
        return MappingProxyType(dict(value))


def _json_kind(value: object) -> str:
    if value is None:
        return "null"
    if value == "":
        return "an empty string"
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return kinds.get(type(value), "an object")
