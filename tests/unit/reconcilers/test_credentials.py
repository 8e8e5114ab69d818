"""Secrets are used only when labelled for it, and what is wrong with one is said without showing it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.net import OAuthSettings
from fleet_operator.api.v1alpha1 import KafkaCluster
from fleet_operator.clients.kinds import SECRET
from fleet_operator.clients.kube import KubeForbiddenError
from fleet_operator.observe.interests import ObserverSettings
from fleet_operator.reconcilers.credentials import SecretReader, UnusableSecretError
from fleet_operator.reconcilers.kafkacluster import MENDED_BY_SECRETS
from tests.unit.runtime.memory_kube import MemoryKube

PASSWORD = "correct horse"


OAUTH = {
    "mechanism": "OAUTHBEARER",
    "secretRef": {"name": "login"},
    "oauth": {"tokenEndpoint": "https://login.example/token", "scope": "kafka"},
}


def cluster(**spec: Any) -> KafkaCluster:
    wanted = {"bootstrapServers": ["kafka:9092"], **spec}
    return KafkaCluster.model_validate({"metadata": {"name": "main", "namespace": "ns"}, "spec": wanted})


def with_sasl() -> KafkaCluster:
    return cluster(sasl={"mechanism": "PLAIN", "secretRef": {"name": "login"}, "allowWithoutTls": True})


async def read(*secrets: dict[str, Any], of: KafkaCluster) -> ObserverSettings:
    kube = MemoryKube()
    for secret in secrets:
        await kube.create(secret)
    return await SecretReader(kube, "ns").observer_settings(of)


def secret(data: dict[str, str], *, labelled: bool = True) -> dict[str, Any]:
    labels = {"consumerfleet.io/credentials": "true"} if labelled else {}
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    metadata = {"namespace": "ns", "name": "login", "labels": labels}
    return {"apiVersion": SECRET.api_version, "kind": SECRET.kind, "metadata": metadata, "data": encoded}


async def test_cluster_without_secrets_needs_none() -> None:
    settings = await read(of=cluster())
    assert (settings.bootstrap_servers, settings.tls, settings.sasl) == (("kafka:9092",), None, None)


async def test_unreadable_secret_is_reported_with_the_right_to_grant() -> None:
    kube = MemoryKube()

    def refuse(status: int) -> None:
        def before(verb: str, kind: str, name: str) -> None:
            raise KubeForbiddenError("secrets is forbidden", status=status)

        kube.before = before

    refuse(403)
    with pytest.raises(UnusableSecretError, match=r"secrets\.namespaces") as caught:
        await SecretReader(kube, "ns").observer_settings(with_sasl())
    assert caught.value.problem.reason == "SecretForbidden"
    assert caught.value.problem.reason in MENDED_BY_SECRETS, "a right that is granted later is taken up soon"
    refuse(401)
    with pytest.raises(KubeForbiddenError):
        await SecretReader(kube, "ns").observer_settings(with_sasl())


async def test_password_is_read_and_never_shown() -> None:
    settings = await read(secret({"username": "alice", "password": PASSWORD}), of=with_sasl())
    assert settings.sasl
    assert settings.sasl.password == PASSWORD
    assert PASSWORD not in repr(settings)


async def test_client_credentials_are_read_for_oauthbearer(tmp_path: Path) -> None:
    of = cluster(tls={"caSecretRef": {"name": "login"}}, sasl=OAUTH)
    body = secret({"clientId": "fleet", "clientSecret": PASSWORD, "ca.crt": "CA"})
    settings = await read(body, of=of)
    assert PASSWORD not in repr(settings)
    assert settings == await read(body, of=of)  # no new observer without need
    connection = settings.connection(tmp_path)
    assert connection.sasl
    assert connection.tls
    assert connection.sasl.oauth == OAuthSettings(
        token_endpoint="https://login.example/token",
        client_id="fleet",
        client_secret=PASSWORD,
        scope="kafka",
        ca_file=connection.tls.ca_file,
    )


async def test_renewed_secrets_make_settings_that_need_a_new_observer() -> None:
    """Certificates and credentials alike: the observers replaces an observer whose settings differ."""
    of = cluster(tls={"caSecretRef": {"name": "login"}, "clientCertSecretRef": {"name": "login"}}, sasl=OAUTH)
    data = {"clientId": "fleet", "clientSecret": PASSWORD, "ca.crt": "CA", "tls.crt": "CERT", "tls.key": "KEY"}
    before = await read(secret(data), of=of)
    for key in data:
        assert await read(secret(data | {key: "renewed"}), of=of) != before


async def test_token_endpoint_that_would_show_the_secret_is_refused() -> None:
    oauth = {"tokenEndpoint": "http://login.example/token"}
    with pytest.raises(ValueError, match="readable on the wire; use https"):
        await read(secret({"clientId": "a", "clientSecret": "b"}), of=cluster(tls={}, sasl=OAUTH | {"oauth": oauth}))


@pytest.mark.parametrize(
    ("secrets", "reason", "hint"),
    [
        ((), "SecretNotFound", "`login` does not exist"),
        ((secret({"username": "a", "password": PASSWORD}, labelled=False),), "SecretNotLabelled", "label secret login"),
        ((secret({"username": "alice"}),), "SecretIncomplete", "lacks a value for key `password`"),
        ((secret({"username": "alice", "password": ""}),), "SecretIncomplete", "lacks a value for key `password`"),
    ],
)
async def test_unusable_secret_is_named_with_the_remedy(
    secrets: tuple[dict[str, Any], ...], reason: str, hint: str
) -> None:
    with pytest.raises(UnusableSecretError) as caught:
        await read(*secrets, of=with_sasl())
    assert caught.value.problem.reason == reason
    assert hint in caught.value.problem.message
    assert PASSWORD not in caught.value.problem.message


async def test_tls_material_comes_from_its_keys() -> None:
    body = secret({"ca.crt": "CA", "tls.crt": "CERT", "tls.key": "KEY"})
    tls = {"caSecretRef": {"name": "login"}, "clientCertSecretRef": {"name": "login"}}
    settings = await read(body, of=cluster(tls=tls))
    assert settings.tls
    assert (settings.tls.ca, settings.tls.certificate, settings.tls.key) == (b"CA", b"CERT", b"KEY")
    assert "KEY" not in repr(settings)
