"""The group's brokers: Spark's options for them, and the driver's own look at ranges and limits of topics.

Spark would notice a missing range only in a task, after minutes of waiting, or when a part of a slice is done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.backfill.slices import TaskRange
from fleet_consumer.clock import SystemClock
from fleet_consumer.contract.backfill_config import BackfillConfig
from fleet_consumer.contract.brokers import OAUTHBEARER, Brokers, TlsFiles, certificates
from fleet_consumer.group.errors import ConsumerError, TopicMissing
from fleet_consumer.librdkafka.bounded import BoundedReader
from fleet_consumer.librdkafka.settings import SettingsRefused, connection_config, consumer_config, resolved
from fleet_consumer.net import ConnectionSettings, NetError, NetworkClient, authorities
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.schema import ZERO_UUID
from fleet_consumer.worker.config.settings import ISOLATION_LEVELS, CredentialsUnreadable, connection_settings
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.backfill")

MISSING_TRIES: Final = 10
"""A topic is missing if brokers say so again and again: one that has just started may not know it."""
TRIES: Final = 30
"""Tries for any other answer: leaders move, and brokers restart, within a minute or two."""
PAUSE_S: Final = 2.0
PATIENCE_S: Final = 120.0
"""Time of all tries: with a wrong password each of them takes as long as the query may."""
LIMITS_TIMEOUT_S: Final = 10.0
PROOF_TIMEOUT_S: Final = 10.0


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
        """Raise BackfillFailed if the topic or a part of these ranges is gone, or if it is another topic by now."""
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
                LOG.info("a topic's size limit is not known", extra=fields(topic=resource.name, error=str(error)))
        return found

    def _bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The log start and end of each partition, asked until all have a leader that answers."""
        missing = lost = failed = 0
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
                # As with a missing topic: a broker that was away may still know the one that was deleted.
                lost += error.final
                if lost >= MISSING_TRIES or failed >= TRIES or self._clock.monotonic() >= deadline:
                    raise
                LOG.info("brokers are asked again", extra=fields(error=str(error)))
            self._wait(PAUSE_S)

    def _asked(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        topic, connection = self._config.topic, self.connection()
        settings = consumer_config(connection, f"fleet-backfill-{self._config.id}", self._isolation, {})
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
        # Behind the bounds: a topic never gets its former id back, so they are of this one.
        self._prove(connection)
        return bounds

    def _prove(self, connection: ConnectionSettings) -> None:
        """Raise BackfillFailed unless cluster and topic are those of the range, as far as the settings name them."""
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
            raise BackfillFailed("RangeNotProven", f"{what} {wanted}, and a broker does not say its id", final=False)
        seen = f"{what} {wanted}, and now it is {found}: the offsets of the range are those of other records"
        raise BackfillFailed("RangeLost", seen, final=True)

    def _expired(self, planned: TaskRange, seen: str) -> BackfillFailed:
        return BackfillFailed("RangeExpired", f"{self._place(planned)}: {seen}", final=True)

    def _place(self, planned: TaskRange) -> str:
        return f"topic {self._config.topic!r} partition {planned.partition}, offsets {planned.first} to {planned.end}"


PREFIX: Final = "kafka."
LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
PKCS8: Final = "-----BEGIN PRIVATE KEY-----"


def check_mechanism(brokers: Brokers) -> None:
    """Raise BackfillFailed for a login that Spark's source cannot do."""
    if brokers.sasl is not None and brokers.sasl.mechanism == OAUTHBEARER:
        message = (
            "the KafkaCluster logs in with OAUTHBEARER, whose tokens Spark's Kafka source cannot get here; give a "
            "KafkaCluster for backfills with SCRAM-SHA-512, PLAIN or a client certificate"
        )
        raise BackfillFailed("SaslMechanismUnsupported", message, final=True)


def connection_options(brokers: Brokers, connection: ConnectionSettings) -> dict[str, str]:
    """Options of Spark's Kafka source for reaching the cluster. Raises BackfillFailed for files of no use.

    Certificates and keys go inline, because executors on other nodes have no file that the driver makes. They are read
    again for every slice, so that renewed ones need no restart.
    """
    options = {
        "bootstrap.servers": connection.bootstrap_text,
        "client.id": connection.client_id,
    }
    scheme = "SASL_" if connection.sasl is not None else ""
    options["security.protocol"] = scheme + ("SSL" if brokers.tls is not None else "PLAINTEXT")
    if brokers.tls is not None:
        options |= _tls_options(brokers.tls)
    if connection.sasl is not None:
        mechanism = connection.sasl.mechanism
        login = f"username={_quoted(connection.sasl.username)} password={_quoted(connection.sasl.password)}"
        options |= {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"{LOGIN_MODULES[mechanism]} required {login};",
        }
    return {PREFIX + name: value for name, value in options.items()}


def _tls_options(files: TlsFiles) -> dict[str, str]:
    options: dict[str, str] = {}
    if files.ca_file is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _authorities(files.ca_file)}
    if files.cert_file is not None and files.key_file is not None:
        chain = "".join(certificates([_read(files.cert_file)]))
        key = _read(files.key_file).decode("utf-8", "replace").strip()
        if not chain:
            raise _unusable(files.cert_file, "it holds no PEM certificate")
        if not key.startswith(PKCS8):
            begins = key.splitlines()[0][:40] if key.startswith("-----BEGIN") else "no PEM"
            advice = "convert it with `openssl pkcs8 -topk8 -nocrypt`"
            raise _unusable(files.key_file, f"Java reads unencrypted PKCS#8 keys only, and it is {begins}; {advice}")
        options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": chain,
            "ssl.keystore.key": key,
        }
    return options


def _authorities(path: str) -> str:
    try:
        return authorities(path)
    except (OSError, ValueError) as error:
        raise _unusable(path, str(error)) from error


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unusable(path, str(error)) from error


def _unusable(path: str, seen: str) -> BackfillFailed:
    # Not final: the Secret may be mended without a new Backfill.
    return BackfillFailed("TlsFilesUnusable", f"{path}: {seen}", final=False)


def _quoted(text: str) -> str:
    """A value of a JAAS configuration, whose parser reads C's escapes."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(each, each) for each in text) + '"'
