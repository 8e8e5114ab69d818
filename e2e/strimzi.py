"""Strimzi's certificate authorities and Secrets, in exactly the form that its operators write.

Sources: `KafkaUserModel.generateSecret`, `CaProvider.createCaCertSecret` and `InternalCa.createRenewOrReplace` of
Strimzi 1.2. After a new key of the cluster's authority, the old certificate stays under `ca-<end of validity>.crt`
until every broker presents a certificate of the new one.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from e2e.local_cluster.commands import run
from e2e.local_cluster.pki import Authority

CLUSTER: Final = "my-cluster"
CLUSTER_CA_SECRET: Final = f"{CLUSTER}-cluster-ca-cert"
STORE_PASSWORD: Final = "changeit"
CREDENTIALS_LABEL: Final = {"consumerfleet.io/credentials": "true"}
"""Set through `spec.template` of a KafkaUser, and `spec.kafka.template.clusterCaCert` of a Kafka."""


@dataclass
class Strimzi:
    """The authorities of one Kafka cluster; files are made in `directory`."""

    directory: Path
    _cluster_keys: int = 0
    _clients_keys: int = 0
    _users: int = 0
    _old: list[int] = field(default_factory=list)

    def cluster_authority(self, generation: int | None = None) -> Authority:
        """The authority of brokers' certificates: the present one, or that of an earlier key."""
        number = self._cluster_keys if generation is None else generation
        return self._authority("cluster-ca", number)

    @property
    def clients_authority(self) -> Authority:
        """The authority of users' certificates."""
        return self._authority("clients-ca", self._clients_keys)

    def replace_cluster_key(self) -> None:
        """The annotation `strimzi.io/force-replace`: a new key; the old certificate stays trusted for a while."""
        self._old.append(self._cluster_keys)
        self._cluster_keys += 1

    def forget_old_authorities(self) -> None:
        """End a replacement, once every broker presents a certificate of the new authority."""
        self._old.clear()

    def replace_clients_key(self) -> None:
        """Users then get certificates of a new authority."""
        self._clients_keys += 1

    def broker_files(self, names: Sequence[str], generation: int | None = None) -> tuple[str, str]:
        """Key store and trust store of a broker, as PEM: its certificate and key, and the clients' authority."""
        certificate, key = self.cluster_authority(generation).issue("broker", "broker", names=names)
        return key.read_text() + certificate.read_text(), self.clients_authority.root_certificate.read_text()

    def cluster_ca_secret(self) -> dict[str, Any]:
        """`<cluster>-cluster-ca-cert`, with old authorities while they are kept."""
        files = {"ca.crt": self.cluster_authority().root_certificate}
        for generation in self._old:
            old = self.cluster_authority(generation).root_certificate
            files[f"ca-{_end_of(old)}.crt"] = old
        store = self.directory / "ca.p12"
        trusted = self.directory / "trusted.pem"
        trusted.write_text("".join(file.read_text() for file in files.values()))
        _pkcs12(store, "-nokeys", "-in", trusted)
        data = {key: file.read_bytes() for key, file in files.items()}
        data |= {"ca.p12": store.read_bytes(), "ca.password": STORE_PASSWORD.encode()}
        labels = {
            "strimzi.io/kind": "Kafka",
            "strimzi.io/name": "strimzi",
            "strimzi.io/component-type": "certificate-authority",
        }
        made = _secret(CLUSTER_CA_SECRET, data, labels)
        made["metadata"]["annotations"] = {"strimzi.io/ca-cert-generation": str(self._cluster_keys)}
        return made

    def tls_user(self, name: str) -> dict[str, Any]:
        """Secret of a KafkaUser of type `tls`; each call is a renewal. `ca.crt` is the clients' authority."""
        self._users += 1
        authority = self.clients_authority
        certificate, key = authority.issue(f"{name}-{self._users}", name)
        store = self.directory / "user.p12"
        _pkcs12(store, "-in", certificate, "-inkey", key)
        data = {
            "ca.crt": authority.root_certificate.read_bytes(),
            "user.crt": certificate.read_bytes(),
            "user.key": key.read_bytes(),
            "user.p12": store.read_bytes(),
            "user.password": STORE_PASSWORD.encode(),
        }
        return _secret(name, data, {"strimzi.io/kind": "KafkaUser"})

    def _authority(self, role: str, generation: int) -> Authority:
        made = Authority(self.directory / f"{role}-{generation}", subject=f"/O=io.strimzi/CN={role} v{generation}")
        made.ensure()
        return made


def scram_user(name: str, password: str) -> dict[str, Any]:
    """Secret of a KafkaUser with `authentication.type: scram-sha-512`; it has no key with the user name."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = f'{module} required username="{name}" password="{password}";'
    data = {"password": password.encode(), "sasl.jaas.config": jaas.encode()}
    return _secret(name, data, {"strimzi.io/kind": "KafkaUser"})


def _secret(name: str, data: dict[str, bytes], labels: dict[str, str]) -> dict[str, Any]:
    """Labels and type as Strimzi sets them, with those of the template."""
    common = {
        "strimzi.io/cluster": CLUSTER,
        "app.kubernetes.io/managed-by": "strimzi-user-operator",
        "app.kubernetes.io/instance": name,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": {**common, **labels, **CREDENTIALS_LABEL}},
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def _pkcs12(store: Path, *arguments: str | Path) -> None:
    run(["openssl", "pkcs12", "-export", *arguments, "-out", store, "-passout", f"pass:{STORE_PASSWORD}"])


def _end_of(certificate: Path) -> str:
    """The end of a certificate's validity, as Strimzi writes it into a key."""
    text = run(["openssl", "x509", "-in", certificate, "-noout", "-enddate"]).strip().partition("=")[2]
    return datetime.strptime(text, "%b %d %H:%M:%S %Y %Z").replace(tzinfo=UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
