"""KafkaCluster (`kcl`): how to reach a cluster, and how its `__consumer_offsets` must be sized."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fleet_consumer.contract.brokers import credential_keys
from fleet_operator.api.v1alpha1.model import INT32_MAX, CustomResource, Model, ObjectName, ObjectReference

SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


class SecretKeyReference(Model):
    """One key of a labelled Secret."""

    name: ObjectName
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = "ca.crt"


class Tls(Model):
    """TLS to the brokers; both references absent means the system's authorities and no client certificate."""

    ca_secret_ref: SecretKeyReference | None = None
    client_cert_secret_ref: ObjectReference | None = None


class OAuth(Model):
    """Source of OAUTHBEARER tokens (client credentials grant)."""

    token_endpoint: Annotated[str, Field(min_length=1, max_length=2048)]
    scope: Annotated[str, Field(max_length=1024)] | None = None


class Sasl(Model):
    """Login to the brokers; the Secret holds `username` and `password`, or `clientId` and `clientSecret`."""

    mechanism: SaslMechanism
    secret_ref: ObjectReference
    oauth: OAuth | None = None
    allow_without_tls: bool = False

    @property
    def secret_keys(self) -> tuple[str, str]:
        """The keys of the Secret: who we are, and our proof."""
        return credential_keys(self.mechanism)


class OffsetsTopic(Model):
    """Wanted settings of `__consumer_offsets`."""

    partitions: Annotated[int, Field(ge=1, le=10_000)] = 50
    replication_factor: Annotated[int, Field(ge=1, le=32)] = 3
    segment_bytes: Annotated[int, Field(ge=1_048_576, le=INT32_MAX)] = 104_857_600
    manage: Literal["Observe", "Provision"] = "Observe"


class KafkaClusterSpec(Model):
    """The wanted connection."""

    bootstrap_servers: Annotated[
        tuple[Annotated[str, Field(min_length=3, max_length=300)], ...], Field(min_length=1, max_length=32)
    ]
    tls: Tls | None = None
    sasl: Sasl | None = None
    observe_interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 5
    offsets_topic: OffsetsTopic = OffsetsTopic()


class KafkaCluster(CustomResource):
    """A KafkaCluster object."""

    spec: KafkaClusterSpec
