"""Connection and consumer settings, derived from worker.json, environment variables and the pod's name."""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fleet_consumer.consumer.consumer import ConsumerSettings
from fleet_consumer.contract.brokers import Brokers, SaslSource, credential_files, credential_text
from fleet_consumer.contract.naming import instance_id, main_workers
from fleet_consumer.contract.pod import POD_NAME, POD_UID
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.worker_config import WorkerConfig
from fleet_consumer.handlers.loading import HandlerContext
from fleet_consumer.net import ConnectionSettings, OAuthSettings, SaslSettings
from fleet_consumer.worker.config.role import Role, consumer_group

METADATA_AGE: Final = "metadata.max.age.ms"
METADATA_AGE_DEFAULT_MS: Final = 300_000
"""Kafka's default of `metadata.max.age.ms`."""

ERROR_TEXT: Final = "FLEET_ERROR_TEXT"
"""Environment variable. `off` omits error messages from logs and headers, because they often contain record data."""
PAUSED_BYTES: Final = "FLEET_PAUSED_BYTES_MAX"
"""Environment variable: total limit in bytes of the fetched records of all paused partitions. Records that are not due
yet are included."""

ISOLATION_LEVELS: Final = {"ReadUncommitted": "read_uncommitted", "ReadCommitted": "read_committed"}
"""Kafka's isolation levels by the names in the CRD."""

RETRY_POLL_RECORDS: Final = 100
"""Maximum number of records in a retry worker's poll. A larger number would waste fetches: records after the first
record that is not due are dropped and read again later."""

RETRY_PREFETCH: Final[Mapping[str, str]] = {
    "queued.min.messages": "100",
    "queued.max.messages.kbytes": "1024",
    "fetch.message.max.bytes": "262144",
    # Limit per response. The limit per partition alone would allow very large responses for hundreds of partitions.
    "fetch.max.bytes": "4194304",
}
"""Prefetch limits of a retry worker. A record above the limit is still fetched, alone in its response (KIP-74)."""

RETRY_PREFETCH_ALIASES: Final = frozenset({"max.partition.fetch.bytes"})
"""librdkafka's aliases of properties in `RETRY_PREFETCH`. The user's aliases are removed, because librdkafka applies
whichever of two aliases is set later."""


class CredentialsUnreadable(Exception):
    """The mounted files contain no readable user name and password (or client id and secret)."""

    reason = "AuthenticationFailed"


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """A worker's name for logs and brokers, its group instance id (None without static membership), and its pod's uid
    (None outside a cluster)."""

    worker: str
    instance_id: str | None
    uid: str | None = None


def with_environment(config: WorkerConfig, environment: Mapping[str, str]) -> WorkerConfig:
    """Apply the environment variables `ERROR_TEXT` and `PAUSED_BYTES` to the settings. Raises SettingsInvalid."""
    error_text = environment.get(ERROR_TEXT, "on")
    if error_text not in ("on", "off"):
        raise SettingsInvalid("", f"the environment variable {ERROR_TEXT} must be on or off; it is {error_text!r}")
    handler = replace(config.handler, error_text=error_text == "on")
    budget = environment.get(PAUSED_BYTES, str(config.consumer.paused_bytes_max))
    # The pattern excludes Python's other notations, such as 1_000, and numbers with so many digits that they are slow
    # to parse.
    if re.fullmatch(r"[1-9][0-9]{0,14}", budget) is None:
        raise SettingsInvalid(
            "", f"the environment variable {PAUSED_BYTES} must be a number of bytes, such as 33554432; it is {budget!r}"
        )
    return replace(config, handler=handler, consumer=replace(config.consumer, paused_bytes_max=int(budget)))


def identify(config: WorkerConfig, environment: Mapping[str, str]) -> PodIdentity:
    """Derive the identity from the pod's name in the environment. The name of a StatefulSet's pod ends in its ordinal.

    Static membership needs the ordinal, because workers with the same instance id fence each other. Raises
    SettingsInvalid if it is missing.
    """
    pod, uid = environment.get(POD_NAME, ""), environment.get(POD_UID) or None
    if not config.consumer.static_membership:
        return PodIdentity(pod or config.name, None, uid)
    ordinal = re.fullmatch(r".+-([0-9]+)", pod)
    if ordinal is None:
        raise SettingsInvalid(
            "consumer.staticMembership",
            f"needs the environment variable {POD_NAME} to end in an ordinal, such as {main_workers(config.name)}-0; "
            f"it is {pod!r}",
        )
    return PodIdentity(pod, instance_id(config.namespace, config.name, config.uid, int(ordinal[1])), uid)


def connection_settings(brokers: Brokers, client_id: str) -> ConnectionSettings:
    """Return connection settings; credentials are read again before each login. Raises SettingsInvalid and
    CredentialsUnreadable."""
    tls, sasl = brokers.tls, None
    if brokers.sasl is not None:
        sasl = _login(brokers.sasl, None if tls is None else tls.ca_file)
    try:
        return ConnectionSettings(bootstrap_servers=brokers.bootstrap_servers, client_id=client_id, tls=tls, sasl=sasl)
    except ValueError as error:
        raise SettingsInvalid("connection.bootstrapServers", str(error)) from error


def _login(source: SaslSource, ca_file: str | None) -> SaslSettings:
    """Return the SASL settings with the mounted credentials.

    `ca_file` is also used for the token endpoint, because a private CA usually signs both certificates.
    """
    mounted = MountedLogin(source)
    name, proof = mounted()
    try:
        if source.oauth is None:
            return SaslSettings(mechanism=source.mechanism, username=name, password=proof, login_callback=mounted)
        oauth = OAuthSettings(
            token_endpoint=source.oauth.url,
            client_id=name,
            client_secret=proof,
            scope=source.oauth.scope,
            ca_file=ca_file,
        )
        return SaslSettings(mechanism=source.mechanism, oauth=oauth, login_callback=mounted)
    except ValueError as error:
        raise SettingsInvalid("connection.sasl", str(error)) from error


class MountedLogin:
    """Callable that reads the current user name and password, or client id and client secret, from the mounted files.

    If the files cannot be read, a call returns the last values. Only the constructor raises CredentialsUnreadable.
    """

    def __init__(self, source: SaslSource) -> None:
        self._source = source
        self._last = self._read_files()

    def __call__(self) -> tuple[str, str]:
        with contextlib.suppress(CredentialsUnreadable):
            self._last = self._read_files()
        return self._last

    def _read_files(self) -> tuple[str, str]:
        source = self._source
        identity_file, proof_file = credential_files(source.mechanism)
        identity = source.identity if source.identity is not None else _credential(source.directory, identity_file)
        return identity, _credential(source.directory, proof_file)


def context_of(config: WorkerConfig, worker: str, purpose: str) -> HandlerContext:
    return HandlerContext(
        namespace=config.namespace,
        name=config.name,
        group_id=config.group_id,
        revision=config.revision,
        worker=worker,
        purpose=purpose,
    )


def consumer_settings(
    config: WorkerConfig, connection: ConnectionSettings, identity: PodIdentity, role: Role = Role.MAIN
) -> ConsumerSettings:
    """Return the settings of the group member: the CRD's values with Kafka's names and units.

    A retry worker always has `auto.offset.reset` earliest, so it skips no record. It prefetches only a few records.
    """
    consumer, retries = config.consumer, role is Role.RETRY
    properties = consumer.properties
    if retries:
        kept = {name: value for name, value in properties.items() if name not in RETRY_PREFETCH_ALIASES}
        properties = {**kept, **RETRY_PREFETCH}
    # The same metadata age applies to librdkafka and to our own client. A new topic of a pattern is found after this
    # time.
    metadata_age = consumer.properties.get(METADATA_AGE)
    return ConsumerSettings(
        connection=connection,
        group_id=consumer_group(role, config.group_id),
        assignors=consumer.assignors,
        group_instance_id=identity.instance_id,
        session_timeout_ms=consumer.session_timeout_seconds * 1000,
        heartbeat_interval_ms=consumer.heartbeat_interval_seconds * 1000,
        max_poll_interval_ms=consumer.max_poll_interval_seconds * 1000,
        max_poll_records=min(consumer.max_poll_records, RETRY_POLL_RECORDS) if retries else consumer.max_poll_records,
        auto_offset_reset="earliest" if retries else consumer.auto_offset_reset.lower(),
        isolation_level="read_uncommitted" if retries else ISOLATION_LEVELS[consumer.isolation_level],
        metadata_max_age_ms=METADATA_AGE_DEFAULT_MS if metadata_age is None else int(metadata_age),
        # After a password change, the brokers may expect the new password before the updated Secret reaches this pod.
        # The worker then retries the login, and its status gives the reason.
        retry_authentication=True,
        paused_bytes_max=consumer.paused_bytes_max,
        properties=properties,
    )


def _credential(directory: str, name: str) -> str:
    path = Path(directory) / name
    source = "it is mounted from the Secret that the KafkaCluster names in spec.sasl.secretRef"
    try:
        text = credential_text(path.read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsUnreadable(f"cannot read {path}: {error}; {source}") from error
    if not text or "\0" in text:
        what = "is empty" if not text else "has a zero byte, as text in UTF-16 does"
        raise CredentialsUnreadable(f"{path} {what}; {source}")
    return text
