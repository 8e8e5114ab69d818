"""librdkafka's configuration, made from our settings, and the further properties that a user may set.

librdkafka does only data here: it never joins the group, never commits and never resets an offset by itself.
Properties that would let it do so are not allowed, nor those that our own coordinator client must know too (addresses,
credentials).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from fleet_consumer.net import ConnectionSettings, FileWatch, TokenSource, authorities, chain

logger = logging.getLogger(__name__)

CA_FILE = "ssl.ca.location"
CERT_FILE = "ssl.certificate.location"
TLS_FILES = (CA_FILE, CERT_FILE, "ssl.key.location")
"""The properties that name files, which librdkafka reads once, when a client is made."""
LOGIN = "consumer-fleet.login"
"""Our own property: `SaslSettings.login_callback`. `resolved` takes it out."""
TOKEN_WAIT_S = 20.0
"""The longest wait of librdkafka's callback for a token."""

ALLOWED_PROPERTIES = frozenset(
    {
        "check.crcs",
        "client.rack",
        "connections.max.idle.ms",
        "fetch.error.backoff.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "max.partition.fetch.bytes",
        "metadata.max.age.ms",
        "queued.max.messages.kbytes",
        "queued.min.messages",
        "receive.message.max.bytes",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.timeout.ms",
        "topic.metadata.refresh.interval.ms",
    }
)
"""The properties that `ConsumerSettings.properties` may set."""

ALLOWED_PRODUCER_PROPERTIES = frozenset(
    {
        "batch.num.messages",
        "batch.size",
        "compression.level",
        "compression.type",
        "connections.max.idle.ms",
        "linger.ms",
        "metadata.max.age.ms",
        "queue.buffering.max.kbytes",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.send.buffer.bytes",
        "socket.timeout.ms",
        "topic.metadata.refresh.interval.ms",
    }
)
"""The properties of producers that users may set: none of acknowledgements, idempotence, order or partitioning."""

IDLE_MS = 180_000
"""Life of an unused connection. Load balancers forget idle connections without a word, Azure's after four minutes; a
request on a forgotten one is answered by nobody until it times out."""

CONSUMER_DEFAULTS: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # Surfaces as an error on the partition; the policy is ours, so that skipped offsets are known and reported.
    "auto.offset.reset": "error",
    # Positions pass offsets without records (transaction markers, compacted records) at the end of a partition.
    "enable.partition.eof": True,
    # Java's default. librdkafka's is not to check: a bit that flipped on the way would be handed out as a record.
    "check.crcs": True,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 65_536,
    # The default of a second stalls a reader that has once filled the queue: measured a factor of 19.
    "fetch.queue.backoff.ms": 10,
    "allow.auto.create.topics": False,
    "log.connection.close": False,
}
"""Our own defaults; users may change those that `ALLOWED_PROPERTIES` lists."""


class PropertyNotAllowed(ValueError):
    """A librdkafka property that users may not set here."""

    reason = "PropertyNotAllowed"


class SettingsRefused(ValueError):
    """librdkafka does not take a value: a number out of its range, a certificate that it cannot read."""

    reason = "SettingsRefused"


def check_properties(properties: Mapping[str, str], allowed: Collection[str] = ALLOWED_PROPERTIES) -> None:
    """Raise PropertyNotAllowed, naming all offenders and what is allowed."""
    refused = sorted(properties.keys() - set(allowed))
    if refused:
        raise PropertyNotAllowed(
            f"properties {', '.join(refused)} cannot be set; allowed are {', '.join(sorted(allowed))}"
        )


def connection_config(connection: ConnectionSettings) -> dict[str, Any]:
    """The part of librdkafka's configuration for reaching the cluster, of consumers and producers."""
    config: dict[str, Any] = {
        "bootstrap.servers": connection.bootstrap_text,
        "client.id": connection.client_id,
        "reconnect.backoff.ms": connection.reconnect_backoff_ms,
        "reconnect.backoff.max.ms": connection.reconnect_backoff_max_ms,
        "socket.connection.setup.timeout.ms": max(connection.connect_timeout_ms, 1_000),
        "socket.timeout.ms": connection.request_timeout_ms,
        "socket.keepalive.enable": True,
        "connections.max.idle.ms": min(connection.connections_max_idle_ms, IDLE_MS),
    }
    tls, sasl = connection.tls, connection.sasl
    scheme = "SASL_" if sasl is not None else ""
    config["security.protocol"] = scheme + ("SSL" if tls is not None else "PLAINTEXT")
    if tls is not None:
        files = zip(TLS_FILES, (tls.ca_file, tls.cert_file, tls.key_file), strict=True)
        config |= {name: path for name, path in files if path is not None}
    if sasl is not None:
        config |= {
            "sasl.mechanism": sasl.mechanism,
            # librdkafka takes a refused password for a lost connection; brokers lock out clients that retry quickly.
            "reconnect.backoff.max.ms": max(connection.reconnect_backoff_max_ms, 10_000),
        }
        if sasl.tokens is not None:
            config["oauth_cb"] = _token_callback(sasl.tokens)
        else:
            config |= {"sasl.username": sasl.username, "sasl.password": sasl.password}
            config |= {} if sasl.login_callback is None else {LOGIN: sasl.login_callback}
    return config


def tls_files(config: Mapping[str, Any]) -> FileWatch:
    """A watch over the files that a client with this configuration has read."""
    return FileWatch(config[name] for name in TLS_FILES if name in config)


def resolved(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a client that is about to be made: with the user name and password as they are now, and the
    certificates as text, because librdkafka takes one file only and fewer forms of it.

    Raises KafkaException for files of no use, as librdkafka itself does.
    """
    resolved = dict(config)
    login = resolved.pop(LOGIN, None)
    if login is not None:
        resolved["sasl.username"], resolved["sasl.password"] = login()
    try:
        if CA_FILE in resolved:
            resolved["ssl.ca.pem"] = authorities(resolved.pop(CA_FILE))
        if CERT_FILE in resolved:
            resolved["ssl.certificate.pem"] = chain(resolved.pop(CERT_FILE))
    except (OSError, ValueError) as error:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, str(error))) from error
    return resolved


class Login:
    """User name and password of librdkafka's clients, which otherwise keep those that they were made with."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._ask: Callable[[], tuple[str, str]] | None = config.get(LOGIN)
        self._used = None if self._ask is None else self._ask()

    def renew(self, *clients: confluent_kafka.Consumer | confluent_kafka.Producer) -> None:
        """Give clients the present ones if they have changed; working connections stay, and refused ones try again."""
        if self._ask is None:
            return
        present = self._ask()
        if present != self._used:
            for client in clients:
                client.set_sasl_credentials(*present)
            self._used = present
            logger.info("user name and password have changed: connections are opened with the new ones")


def _token_callback(tokens: TokenSource) -> Callable[[str | None], tuple[str, float, str, dict[str, str]]]:
    """A callback that gives librdkafka the tokens of our own connections, on a thread of its own, which may wait.

    librdkafka asks again after four fifths of a token's life, and ten seconds after a failure, which it reports.
    """

    def callback(_config: str | None) -> tuple[str, float, str, dict[str, str]]:
        token = tokens.wait(TOKEN_WAIT_S)
        return token.value, token.expires_at, "", dict(token.extensions)

    return callback


def consumer_config(
    connection: ConnectionSettings, group_id: str, isolation_level: str, properties: Mapping[str, str]
) -> dict[str, Any]:
    """The whole configuration of a consumer. The group id is only sent in a FindCoordinator, never joined."""
    check_properties(properties)
    return {
        **connection_config(connection),
        **CONSUMER_DEFAULTS,
        **properties,
        "group.id": group_id,
        "isolation.level": isolation_level,
        "logger": logger,
    }


def producer_config(connection: ConnectionSettings, properties: Mapping[str, str]) -> dict[str, Any]:
    """The connection of a producer and the properties of a user. Raises PropertyNotAllowed."""
    check_properties(properties, ALLOWED_PRODUCER_PROPERTIES)
    return {**connection_config(connection), **properties}


def open_consumer(config: Mapping[str, Any]) -> confluent_kafka.Consumer:
    """librdkafka's consumer of this configuration. Raises SettingsRefused."""
    try:
        return confluent_kafka.Consumer(resolved(config))
    except KafkaException as refused:
        raise SettingsRefused(f"the data plane's settings: {refused.args[0].str()}") from refused


def observation_config(
    on_statistics: Callable[[str], object] | None, interval_ms: int, debug: str, log_level: int
) -> dict[str, Any]:
    """The part of the configuration for statistics and debug logs."""
    config: dict[str, Any] = {"log_level": log_level}
    if debug:
        config["debug"] = debug
    if on_statistics is not None:
        notify = on_statistics

        def callback(statistics: str) -> None:
            try:
                notify(statistics)
            except Exception:  # raised from here it would end the read that serves it
                logger.exception("the statistics callback failed")

        config |= {"stats_cb": callback, "statistics.interval.ms": interval_ms}
    return config
