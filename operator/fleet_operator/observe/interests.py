"""An observer's input: the connection to the cluster, and the groups to observe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.patterns import Pattern
from fleet_consumer.net import ConnectionSettings, SaslSettings, TlsSettings, parse_addresses

CLIENT_ID: Final = "consumer-fleet-operator"
"""The operator's name at the brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsMaterial:
    """PEM texts from Secrets; None where the cluster needs none."""

    ca: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverSettings:
    """One cluster's connection and pace. Two equal values need no new observer; secrets never show in `repr`.

    `awaits_offsets_topic`: the operator creates `__consumer_offsets`, and no poll may make a broker do it.
    """

    bootstrap_servers: tuple[str, ...]
    interval_seconds: float = 5.0
    tls: TlsMaterial | None = None
    sasl: SaslSettings | None = None
    client_id: str = CLIENT_ID
    awaits_offsets_topic: bool = False

    def check(self) -> None:
        """Raises ValueError for addresses that are none, before a thread is started for them."""
        parse_addresses(self.bootstrap_servers)

    def connection(self, directory: Path) -> ConnectionSettings:
        """Settings for `NetworkClient`; TLS material is written into `directory`, which only we can read."""
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
            # Who signs the brokers' certificates signs the token endpoint's too, where both are private.
            sasl = replace(sasl, oauth=replace(sasl.oauth, ca_file=paths.get("ca_file")))
        return replace(settings, tls=TlsSettings(**paths), sasl=sasl)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryInterest:
    """The wish to have a group's retry flow observed: its Kafka group, and the topics that this group reads.

    `delays` has each retry topic with its delay in seconds, those that are only being drained too; the redrive topic
    counts as one whose delay is 0. `discover` asks for the delays of all retry topics that the group has on the
    cluster, for an object that does not know what a predecessor left there.
    """

    group_id: str
    delays: Mapping[str, int]
    redrive_topic: str
    discover: bool = False

    @property
    def flow(self) -> dict[str, int]:
        """Every topic that the retry workers read, with its delay in seconds."""
        return {**self.delays, self.redrive_topic: 0}


def retry_interest(group_id: str, delays: Iterable[str], *, discover: bool = False) -> RetryInterest:
    """The interest in the retry flow of the main group `group_id`, whose delays are canonical texts such as `30s`."""
    return RetryInterest(
        group_id=naming.retry_group(group_id),
        delays={naming.retry_topic(group_id, delay): naming.parse_delay(delay) for delay in delays},
        redrive_topic=naming.redrive_topic(group_id),
        discover=discover,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInterest:
    """One ConsumerGroup's wish to be observed.

    `topics` are its source topics, `pattern` matches further ones at each poll; where neither is known, those it has
    commits for count. `other_topics` are those whose existence matters (outputs). `retry` is None for a group whose
    failures go to the failed topic at once. `scaled` asks for samples of the group's progress, `asleep` for quick polls
    at a scaled group without workers. `waits` is set for an object whose Kafka group belongs to another one: that one's
    wishes count, and topics of this one only have to exist.
    """

    group_id: str
    topics: tuple[str, ...] = ()
    pattern: Pattern | None = None
    other_topics: tuple[str, ...] = ()
    failed_topic: str = ""
    read_committed: bool = False
    retry: RetryInterest | None = None
    scaled: bool = False
    asleep: bool = False
    waits: bool = False

    @property
    def named_topics(self) -> tuple[str, ...]:
        """Every topic that Metadata is asked for on behalf of this group."""
        flow = self.retry.flow if self.retry is not None else {}
        return (*self.topics, *self.other_topics, *((self.failed_topic,) if self.failed_topic else ()), *flow)

    def resolved(self, matches: Mapping[str, tuple[str, ...]]) -> GroupInterest:
        """With the topics that the pattern matches; `matches` has those of each pattern's text."""
        if self.pattern is None:
            return self
        return replace(self, topics=tuple(dict.fromkeys((*self.topics, *matches[self.pattern.text]))))
