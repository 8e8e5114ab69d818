"""KafkaCluster (`kcl`): the connection to a Kafka cluster, and wanted settings of its topic `__consumer_offsets`."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from fleet_consumer.contract.brokers import credential_files
from fleet_consumer.contract.naming import content_hash
from fleet_operator.api.v1alpha1.model import INT32_MAX, CustomResource, Model, ObjectName

SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
SecretKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*$")]
Identity = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A user name or client id in the KafkaCluster's spec, not in a Secret."""
_PORT: Final = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_HOST: Final = r"(\[[0-9a-fA-F:.]+(%[^\s\]/,]+)?\]|[0-9a-fA-F.]*:[0-9a-fA-F:.]*|[^\s,:\[\]/]+)"
_ADDRESS: Final = rf"([A-Za-z0-9_.-]+://)?{_HOST}:{_PORT}"
BootstrapServer = Annotated[
    str, Field(min_length=3, max_length=1000, pattern=rf"^\s*{_ADDRESS}\s*(,\s*{_ADDRESS}\s*)*$")
]
CA_KEY: Final = "ca.crt"


class CaSecretReference(Model):
    """CA certificates in a labelled Secret: in `key` (by default `CA_KEY`), or in all keys that match `pattern`."""

    name: ObjectName
    key: SecretKey | None = None
    pattern: (
        Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]*\*[-._a-zA-Z0-9]*$")] | None
    ) = None


class ClientCertSecretReference(Model):
    """The client's certificate and private key in a labelled Secret."""

    name: ObjectName
    cert_key: SecretKey = "tls.crt"
    key_key: SecretKey = "tls.key"


class Tls(Model):
    """TLS settings of connections to the brokers. Without `ca_secret_ref`, the system's CA certificates are trusted."""

    ca_secret_ref: CaSecretReference | None = None
    client_cert_secret_ref: ClientCertSecretReference | None = None


class OAuth(Model):
    """Source of OAUTHBEARER tokens (client credentials grant)."""

    token_endpoint: Annotated[str, Field(min_length=1, max_length=2048, pattern=r"^https://[^\s/?#@]+([/?][^\s#]*)?$")]
    """Only https. With http, the creator of a KafkaCluster could make the operator call services on its localhost."""
    client_id: Identity | None = None
    scope: Annotated[str, Field(min_length=1, max_length=1024)] | None = None


class LoginSecretReference(Model):
    """User name and password, or client id and client secret, in a labelled Secret."""

    name: ObjectName
    username_key: SecretKey | None = None
    password_key: SecretKey | None = None
    client_id_key: SecretKey | None = None
    client_secret_key: SecretKey | None = None


class Sasl(Model):
    mechanism: SaslMechanism
    username: Identity | None = None
    secret_ref: LoginSecretReference
    oauth: OAuth | None = None
    allow_without_tls: bool = False

    @property
    def identity(self) -> str | None:
        """The user name or client id in the spec; None if the Secret has it."""
        return self.username if self.oauth is None else self.oauth.client_id

    @property
    def secret_keys(self) -> dict[str, str]:
        """Keys of the Secret, keyed by the worker's credential file (`credential_files`). A user name or client id in
        the spec needs no key."""
        ref = self.secret_ref
        chosen = (
            (ref.username_key, ref.password_key) if self.oauth is None else (ref.client_id_key, ref.client_secret_key)
        )
        keys = {file: key or file for file, key in zip(credential_files(self.mechanism), chosen, strict=True)}
        if self.identity is not None:
            del keys[credential_files(self.mechanism)[0]]
        return keys


class OffsetsTopic(Model):
    """Wanted settings of `__consumer_offsets`. A setting that is None stays unchanged, except `replication_factor`:
    None means at least 3 replicas, or one on each live broker if there are fewer than 3."""

    partitions: Annotated[int, Field(ge=1, le=10_000)] | None = None
    replication_factor: Annotated[int, Field(ge=1, le=32)] | None = None
    segment_bytes: Annotated[int, Field(ge=1_048_576, le=INT32_MAX)] | None = None
    manage: Literal["Observe", "Provision"] = "Observe"


class KafkaClusterSpec(Model):
    bootstrap_servers: Annotated[tuple[BootstrapServer, ...], Field(min_length=1, max_length=32)]
    tls: Tls | None = None
    sasl: Sasl | None = None
    observe_interval_seconds: Annotated[int, Field(ge=2, le=3600)] = 5
    offsets_topic: OffsetsTopic = OffsetsTopic()

    @property
    def connection(self) -> str:
        """Hash of the addresses and of the TLS and SASL settings. The contents of the Secrets are not included."""
        return content_hash(self.model_dump(mode="json", include={"bootstrap_servers", "tls", "sasl"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterIdentity:
    """The Kafka cluster to which a KafkaCluster refers, as recorded in the operator's state.

    - `cluster_id`: None until a broker has reported the cluster id.
    - `answered`: the bootstrap addresses that have answered; None before the first answer.
    - `other`: a message if brokers with another cluster id answer; otherwise empty.
    - `had_offsets_topic`: True if `__consumer_offsets` has been observed.
    """

    cluster_id: str | None = None
    answered: tuple[str, ...] | None = None
    other: str = ""
    had_offsets_topic: bool = False


class KafkaCluster(CustomResource):
    """A KafkaCluster object. `identity` comes from the operator's state, not from the Kubernetes object."""

    spec: KafkaClusterSpec
    identity: ClusterIdentity = Field(default_factory=ClusterIdentity, exclude=True)
