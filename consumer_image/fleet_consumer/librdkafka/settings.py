"""librdkafka's configuration, made from our settings, and the properties that users may set.

librdkafka only transfers records here. It never joins a group or resets an offset, and commits only for groups without
members (`bounded.py`). Users may not set properties that would change this. They also may not set addresses and
credentials as librdkafka properties, because our own coordinator client needs the same values.
"""

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
"""Properties that name files. librdkafka reads the files once, when a client is made."""
LOGIN = "consumer-fleet.login"
"""Our own property, unknown to librdkafka: its value is `SaslSettings.login_callback`, and `resolved` removes it."""
TOKEN_WAIT_S = 20.0
"""Maximum seconds that librdkafka's callback waits for a token."""

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
"""Producer properties that users may set. Acknowledgements, idempotence, order and partitioning cannot be set."""

IDLE_MS = 180_000
"""Maximum idle time of a connection in milliseconds. Load balancers silently drop idle connections, Azure's after four
minutes. A request on a dropped connection times out."""

CONSUMER_DEFAULTS: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # librdkafka reports an offset out of range as an error of the partition. We apply the reset policy ourselves, so
    # that skipped offsets are known and reported.
    "auto.offset.reset": "error",
    # Lets positions advance past offsets without records (transaction markers, compacted records) at the end of a
    # partition.
    "enable.partition.eof": True,
    # Java's default. By default, librdkafka does not verify checksums, and would return records with flipped bits.
    "check.crcs": True,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 65_536,
    # With the default of one second, a reader pauses whenever its queue was full (measured: 19 times slower).
    "fetch.queue.backoff.ms": 10,
    "allow.auto.create.topics": False,
    "log.connection.close": False,
}
"""Our defaults; users may change those that `ALLOWED_PROPERTIES` lists."""


class PropertyNotAllowed(ValueError):
    """A librdkafka property that users may not set here."""

    reason = "PropertyNotAllowed"


class SettingsRefused(ValueError):
    """librdkafka does not accept a value, such as a number out of range or an unreadable certificate."""

    reason = "SettingsRefused"


def check_properties(properties: Mapping[str, str], allowed: Collection[str] = ALLOWED_PROPERTIES) -> None:
    """Raise PropertyNotAllowed, which lists the refused and the allowed properties, if a property is not `allowed`."""
    refused = sorted(properties.keys() - set(allowed))
    if refused:
        raise PropertyNotAllowed(
            f"properties {', '.join(refused)} cannot be set; allowed are {', '.join(sorted(allowed))}"
        )


def connection_config(connection: ConnectionSettings) -> dict[str, Any]:
    """Return the part of librdkafka's configuration that connects a consumer or a producer to the cluster."""
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
            # librdkafka retries a refused password as fast as a lost connection, but brokers lock out clients that
            # retry quickly.
            "reconnect.backoff.max.ms": max(connection.reconnect_backoff_max_ms, 10_000),
        }
        if sasl.tokens is not None:
            config["oauth_cb"] = _token_callback(sasl.tokens)
        else:
            config |= {"sasl.username": sasl.username, "sasl.password": sasl.password}
            config |= {} if sasl.login_callback is None else {LOGIN: sasl.login_callback}
    return config


def tls_files(config: Mapping[str, Any]) -> FileWatch:
    return FileWatch(config[name] for name in TLS_FILES if name in config)


def resolved(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration for a new client, with the current user name and password. Certificates are passed as
    strings, because librdkafka itself reads only single files, and fewer formats. Raises KafkaException for unusable
    files, as librdkafka does."""
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
    """Renews the user name and password of librdkafka's clients, which otherwise keep the login that they were created
    with."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._ask: Callable[[], tuple[str, str]] | None = config.get(LOGIN)
        self._used = None if self._ask is None else self._ask()

    def renew(self, *clients: confluent_kafka.Consumer | confluent_kafka.Producer) -> None:
        """Give clients the current login if it has changed. Open connections stay; refused logins are tried again."""
        if self._ask is None:
            return
        present = self._ask()
        if present != self._used:
            for client in clients:
                client.set_sasl_credentials(*present)
            self._used = present
            logger.info("user name or password has changed: new connections use the current login")


def _token_callback(tokens: TokenSource) -> Callable[[str | None], tuple[str, float, str, dict[str, str]]]:
    """Return a callback that gives librdkafka the tokens of our own connections; it may block for `TOKEN_WAIT_S`.
    librdkafka calls the callback after four fifths of a token's lifetime. If the callback fails, librdkafka reports an
    error, and calls the callback again after ten seconds."""

    def callback(_config: str | None) -> tuple[str, float, str, dict[str, str]]:
        token = tokens.wait(TOKEN_WAIT_S)
        return token.value, token.expires_at, "", dict(token.extensions)

    return callback


def consumer_config(
    connection: ConnectionSettings, group_id: str, isolation_level: str, properties: Mapping[str, str]
) -> dict[str, Any]:
    """Return the configuration of a consumer. Raises PropertyNotAllowed. librdkafka sends the group id only to find the
    coordinator, and in the requests for offsets of a `BoundedReader`."""
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
    """Return the configuration of a producer with a user's properties. Raises PropertyNotAllowed."""
    check_properties(properties, ALLOWED_PRODUCER_PROPERTIES)
    return {**connection_config(connection), **properties}


def open_consumer(config: Mapping[str, Any]) -> confluent_kafka.Consumer:
    """Make librdkafka's consumer with this configuration. Raises SettingsRefused."""
    try:
        return confluent_kafka.Consumer(resolved(config))
    except KafkaException as refused:
        raise SettingsRefused(f"the settings of librdkafka's consumer: {refused.args[0].str()}") from refused


def observation_config(
    on_statistics: Callable[[str], object] | None, interval_ms: int, debug: str, log_level: int
) -> dict[str, Any]:
    """Return the part of the configuration for statistics and debug logs."""
    config: dict[str, Any] = {"log_level": log_level}
    if debug:
        config["debug"] = debug
    if on_statistics is not None:
        notify = on_statistics

        def callback(statistics: str) -> None:
            try:
                notify(statistics)
            except Exception:  # otherwise the error would end the `poll` that runs this callback
                logger.exception("the statistics callback failed")

        config |= {"stats_cb": callback, "statistics.interval.ms": interval_ms}
    return config
