"""Inputs of an observer: the connection to the cluster, and the groups to observe."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from fleet_consumer.contract import naming
from fleet_consumer.contract.patterns import Pattern
from fleet_consumer.net import ConnectionSettings, SaslSettings, TlsSettings

CLIENT_ID: Final = "consumer-fleet-operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsMaterial:
    """PEM data from Secrets; None where the connection needs no such data."""

    ca: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverSettings:
    """The connection and poll interval of one cluster. KafkaClusters with equal settings share an observer.

    `awaits_offsets_topic`: the operator creates `__consumer_offsets`, so no poll may cause a broker to create it.
    """

    bootstrap_servers: tuple[str, ...]
    interval_seconds: float = 5.0
    tls: TlsMaterial | None = None
    sasl: SaslSettings | None = None
    client_id: str = CLIENT_ID
    awaits_offsets_topic: bool = False

    def connection(self, directory: Path) -> ConnectionSettings:
        """Settings for `NetworkClient`; TLS files are written to `directory`, which only this user may read."""
        settings = ConnectionSettings(
            bootstrap_servers=self.bootstrap_servers,
            client_id=self.client_id,
            sasl=self.sasl,
            request_timeout_ms=10_000,
            connect_timeout_ms=5_000,
        )
        if self.tls is None:
            return settings
        paths: dict[str, str] = {}
        for name, pem in (("ca", self.tls.ca), ("cert", self.tls.certificate), ("key", self.tls.key)):
            if pem is not None:
                path = directory / f"{name}.pem"
                path.touch(mode=0o600)
                path.write_bytes(pem)
                paths[f"{name}_file"] = str(path)
        sasl = self.sasl
        if sasl is not None and sasl.oauth is not None:
            # The brokers' private CA usually also signs the certificate of the token endpoint.
            sasl = replace(sasl, oauth=replace(sasl.oauth, ca_file=paths.get("ca_file")))
        return replace(settings, tls=TlsSettings(**paths), sasl=sasl)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySubscription:
    """Subscription to the retry flow of a group: the Kafka group of the retry workers, and the topics that they read.

    - `flow`: the topics of the retry workers, each with its delay in seconds. It includes topics that only have to be
      drained. The redrive topic has the delay 0.
    - `discover`: search the cluster for all retry topics of the group, because a former ConsumerGroup may have created
      topics with other delays.
    """

    group_id: str
    flow: Mapping[str, int]
    discover: bool = False


def retry_subscription(group_id: str, delays: Iterable[str], *, discover: bool = False) -> RetrySubscription:
    """Build the subscription to the retry flow of the main group `group_id`; delays are canonical, such as `30s`."""
    retries = {naming.retry_topic(group_id, delay): naming.parse_delay(delay) for delay in delays}
    flow = {**retries, naming.redrive_topic(group_id): 0}
    return RetrySubscription(group_id=naming.retry_group(group_id), flow=flow, discover=discover)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSubscription:
    """One ConsumerGroup's subscription to observations of its Kafka group.

    - `topics`: the source topics; `pattern` matches further source topics at each poll. Without topics and pattern, the
      topics for which the group has commits are used.
    - `other_topics`: further topics, such as outputs, that are only checked for existence.
    - `retry`: None if failed records go directly to the failed topic.
    - `scaled`: requests samples of the group's progress; `asleep`: requests frequent polls of a scaled group without
      workers.
    - `waits`: the Kafka group belongs to another ConsumerGroup, whose subscription is used. The topics of this
      subscription are only checked for existence.
    """

    group_id: str
    topics: tuple[str, ...] = ()
    pattern: Pattern | None = None
    other_topics: tuple[str, ...] = ()
    failed_topic: str = ""
    read_committed: bool = False
    retry: RetrySubscription | None = None
    scaled: bool = False
    asleep: bool = False
    waits: bool = False

    @property
    def named_topics(self) -> tuple[str, ...]:
        """All topics whose metadata is needed to observe this group."""
        flow = self.retry.flow if self.retry is not None else {}
        return (*self.topics, *self.other_topics, *((self.failed_topic,) if self.failed_topic else ()), *flow)

    def resolved(self, matches: Mapping[str, tuple[str, ...]]) -> Self:
        """Return the subscription with the topics that its pattern matches. `matches` has the matching topics, keyed by
        the text of the pattern."""
        if self.pattern is None:
            return self
        return replace(self, topics=tuple(dict.fromkeys((*self.topics, *matches[self.pattern.text]))))
