"""What an observer is told: how to reach the cluster, and which groups matter."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet_consumer.net import ConnectionSettings, SaslSettings, TlsSettings, parse_address


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsMaterial:
    """PEM texts from Secrets; None where the cluster needs none."""

    ca: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverSettings:
    """One cluster's connection and pace. Two equal values need no new observer; secrets never show in `repr`."""

    bootstrap_servers: tuple[str, ...]
    interval_seconds: float = 5.0
    tls: TlsMaterial | None = None
    sasl: SaslSettings | None = None
    client_id: str = "consumer-fleet-operator"

    def check(self) -> None:
        """Raises ValueError for addresses that are none, before a thread is started for them."""
        for text in self.bootstrap_servers:
            parse_address(text)

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
class GroupInterest:
    """One ConsumerGroup's wish to be observed.

    `topics` are its source topics, `pattern` matches further ones at each look; where neither is known, those it has
    commits for count. `other_topics` are those whose
    existence matters (outputs). `expects_members` says whether workers should be there, that is whether a group
    without members is worth looking at more often.
    """

    group_id: str
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    other_topics: tuple[str, ...] = ()
    failed_topic: str = ""
    read_committed: bool = False
    expects_members: bool = True

    @property
    def named_topics(self) -> tuple[str, ...]:
        """Every topic that Metadata is asked for on behalf of this group."""
        return (*self.topics, *self.other_topics, *((self.failed_topic,) if self.failed_topic else ()))
