"""Secrets are used only when labelled for it, and what is wrong with one is said without showing it."""

from __future__ import annotations

import base64
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.local_cluster.pki import Authority
from fleet_consumer.net import OAuthSettings, parse_address
from fleet_consumer.net.tls_files import authorities
from fleet_operator.api.v1alpha1 import KafkaCluster
from fleet_operator.clients.kinds import SECRET
from fleet_operator.clients.kube import KubeForbiddenError
from fleet_operator.observe.subscriptions import ObserverSettings
from fleet_operator.reconcilers.credentials import SecretReader, UnusableSecretError
from fleet_operator.reconcilers.kafkacluster import FIXED_BY_SECRETS
from tests.unit.runtime.memory_kube import MemoryKube

PASSWORD = "correct horse"


@dataclass(frozen=True, slots=True)
class Pem:
    """Two authorities, and two pairs of a client's certificate and key."""

    authorities: tuple[str, str]
    pairs: tuple[tuple[str, str], tuple[str, str]]

    @property
    def data(self) -> dict[str, str]:
        """A Secret's usual keys."""
        return {"ca.crt": self.authorities[0], "tls.crt": self.pairs[0][0], "tls.key": self.pairs[0][1]}


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Pem:
    made = [Authority(tmp_path_factory.mktemp("pki") / str(number)) for number in range(2)]
    for authority in made:
        authority.ensure()
    pairs = [each.issue("client", "client") for each in made]
    one, other = [(certificate.read_text(), key.read_text()) for certificate, key in pairs]
    return Pem((made[0].root_certificate.read_text(), made[1].root_certificate.read_text()), (one, other))


OAUTH_ENDPOINT = {"tokenEndpoint": "https://login.example/token", "scope": "kafka"}
OAUTH = {"mechanism": "OAUTHBEARER", "secretRef": {"name": "login"}, "oauth": OAUTH_ENDPOINT}


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
    assert caught.value.problem.reason in FIXED_BY_SECRETS, "a right that is granted later is taken up soon"
    refuse(401)
    with pytest.raises(KubeForbiddenError):
        await SecretReader(kube, "ns").observer_settings(with_sasl())


async def test_password_is_read_and_never_shown() -> None:
    settings = await read(secret({"username": "alice", "password": PASSWORD}), of=with_sasl())
    assert settings.sasl
    assert settings.sasl.password == PASSWORD
    assert PASSWORD not in repr(settings)


async def test_client_credentials_are_read_for_oauthbearer(tmp_path: Path, pem: Pem) -> None:
    of = cluster(tls={"caSecretRef": {"name": "login"}}, sasl=OAUTH)
    body = secret({"clientId": "fleet", "clientSecret": PASSWORD, "ca.crt": pem.authorities[0]})
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


async def test_renewed_secrets_make_settings_that_need_a_new_observer(pem: Pem) -> None:
    """Certificates and credentials alike: the observers replaces an observer whose settings differ."""
    of = cluster(tls={"caSecretRef": {"name": "login"}, "clientCertSecretRef": {"name": "login"}}, sasl=OAUTH)
    data = {"clientId": "fleet", "clientSecret": PASSWORD} | pem.data
    before = await read(secret(data), of=of)
    certificate, key = pem.pairs[1]
    for renewed in (
        {"clientId": "renewed"},
        {"clientSecret": "renewed"},
        {"ca.crt": pem.authorities[1]},
        {"tls.crt": certificate, "tls.key": key},
    ):
        assert await read(secret(data | renewed), of=of) != before


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example/token",
        "http://localhost:8080/token",
        "http://127.0.0.1/token",
        "https://",
        "https:///token",
        "https://user:password@login.example/token",
        "https://login.example/token#fragment",
        "HTTP://login.example",
        "file:///etc/passwd",
    ],
)
def test_operator_asks_for_tokens_with_https_only(url: str) -> None:
    """Also on loopback, which is exempt in the library: there it is the operator's own pod that would be asked."""
    with pytest.raises(ValueError, match=r"spec\.sasl\.oauth\.tokenEndpoint"):
        cluster(tls={}, sasl=OAUTH | {"oauth": {"tokenEndpoint": url}})


def test_empty_scope_is_refused() -> None:
    """Workers take no empty text for one; the operator asked without."""
    with pytest.raises(ValueError, match=r"spec\.sasl\.oauth\.scope"):
        cluster(tls={}, sasl=OAUTH | {"oauth": OAUTH_ENDPOINT | {"scope": ""}})


@pytest.mark.parametrize("port", ["0", "65536", "99999", "00000", "-1", "", "9092x"])
def test_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(ValueError, match=r"spec\.bootstrapServers\.0"):
        cluster(bootstrapServers=[f"kafka:{port}"])


@pytest.mark.parametrize("address", ["kafka:1", "kafka:9092", "kafka:59999", "[fd00::1]:65535"])
def test_address_that_the_model_takes_is_one(address: str) -> None:
    assert str(parse_address(*cluster(bootstrapServers=[address]).spec.bootstrap_servers)) == address


@pytest.mark.parametrize(
    ("secrets", "reason", "hint"),
    [
        ((), "SecretNotFound", "`login` does not exist"),
        ((secret({"username": "a", "password": PASSWORD}, labelled=False),), "SecretNotLabelled", "label secret login"),
        ((secret({"username": "alice"}),), "SecretIncomplete", "lacks a value for key `password`"),
        ((secret({"username": "alice", "password": ""}),), "SecretIncomplete", "lacks a value for key `password`"),
        (
            (secret({"username": "\n", "password": "p"}),),
            "SecretIncomplete",
            "key `username` of secret `login` is",
        ),
        ((secret({"username": "alice", "password": "p\0"}),), "SecretIncomplete", "has a zero byte"),
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


async def test_tls_material_comes_from_its_keys(pem: Pem) -> None:
    tls = {"caSecretRef": {"name": "login"}, "clientCertSecretRef": {"name": "login"}}
    settings = await read(secret(pem.data), of=cluster(tls=tls))
    assert settings.tls
    found = {"ca.crt": settings.tls.ca, "tls.crt": settings.tls.certificate, "tls.key": settings.tls.key}
    assert found == {key: value.encode() for key, value in pem.data.items()}
    assert "KEY" not in repr(settings)


async def test_keys_of_a_strimzi_user_are_read(pem: Pem) -> None:
    tls = {"clientCertSecretRef": {"name": "login", "certKey": "user.crt", "keyKey": "user.key"}}
    certificate, key = pem.pairs[0]
    body = secret(
        {"ca.crt": "CLIENTS CA", "user.crt": certificate, "user.key": key, "user.p12": "x", "user.password": "y"}
    )
    settings = await read(body, of=cluster(tls=tls))
    assert settings.tls
    assert (settings.tls.ca, settings.tls.certificate, settings.tls.key) == (None, certificate.encode(), key.encode())


def encrypted(key: str, folder: Path) -> str:
    (folder / "tls.key").write_text(key)
    words = ["openssl", "ec", "-in", str(folder / "tls.key"), "-aes256", "-passout", "pass:secret"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("broken", ["other key", "no certificate", "no key", "passphrase", "no authority", "cut"])
async def test_pem_that_cannot_be_used_is_reported_with_secret_and_key(broken: str, pem: Pem, tmp_path: Path) -> None:
    """The observer's own error names files that nobody can see."""
    authority, _, key = pem.data.values()
    data = (
        pem.data
        | {
            "other key": {"tls.key": pem.pairs[1][1]},
            "no certificate": {"tls.crt": "CERT"},
            "no key": {"tls.key": "KEY"},
            "passphrase": {"tls.key": encrypted(key, tmp_path)},
            "no authority": {"ca.crt": key},
            "cut": {"ca.crt": authority[:200]},
        }[broken]
    )
    tls = {"caSecretRef": {"name": "login"}, "clientCertSecretRef": {"name": "login"}}
    with pytest.raises(UnusableSecretError) as caught:
        await read(secret(data), of=cluster(tls=tls))
    problem = caught.value.problem
    assert problem.reason == "SecretIncomplete"
    named = "key `ca.crt` of" if broken in ("no authority", "cut") else "keys `tls.crt` and `tls.key` of"
    assert f"{named} secret `login`" in problem.message
    assert ".pem" not in problem.message
    assert "/tmp" not in problem.message


async def test_authorities_with_remarks_are_taken_as_openssl_does(pem: Pem) -> None:
    text = "# Autorité\n" + "".join(pem.authorities)
    settings = await read(secret({"ca.crt": text}), of=cluster(tls={"caSecretRef": {"name": "login"}}))
    assert settings.tls
    assert settings.tls.ca == text.encode()


def strimzi_ca(pem: Pem) -> dict[str, str]:
    """Its Secret of the cluster's authority while a new one comes."""
    new, old = pem.authorities
    return {"ca.crt": new, "ca-2026-12-01T00-00-00Z.crt": old, "ca.p12": "binary", "ca.password": "changeit"}


async def test_all_authorities_that_match_are_trusted_together(pem: Pem) -> None:
    new, old = pem.authorities
    for pattern, expected in (("*.crt", old + new), ("ca.c*", new)):
        body = secret(strimzi_ca(pem))
        settings = await read(body, of=cluster(tls={"caSecretRef": {"name": "login", "pattern": pattern}}))
        assert settings.tls
        assert settings.tls.ca == expected.encode()


async def test_operator_and_workers_read_the_same_certificates_of_a_pattern(tmp_path: Path, pem: Pem) -> None:
    """Else a Secret with a remark in another encoding, or a broken one, would work for one of them only."""
    good = pem.authorities[0]
    broken = good[:200] + good[240:]
    data = {"ca.crt": "# Autorité\n" + good, "bad.crt": broken, "empty.crt": "", "old.crt": broken + good.strip()}
    for name, text in data.items():
        (tmp_path / name).write_text(text)
    settings = await read(secret(data), of=cluster(tls={"caSecretRef": {"name": "login", "pattern": "*.crt"}}))
    assert settings.tls
    assert settings.tls.ca == authorities(f"{tmp_path}/*.crt").encode()
    assert settings.tls.ca == good.encode() * 2


async def test_pattern_whose_keys_hold_no_certificate_is_reported(pem: Pem) -> None:
    of = cluster(tls={"caSecretRef": {"name": "login", "pattern": "ca*"}})
    for data in ({"ca.p12": "binary"}, {"ca.crt": pem.authorities[0].replace("M", "!")}):
        with pytest.raises(UnusableSecretError, match=r"holds a PEM certificate") as caught:
            await read(secret(data), of=of)
        assert caught.value.problem.reason == "SecretIncomplete"


async def test_pattern_without_a_match_is_reported(pem: Pem) -> None:
    with pytest.raises(UnusableSecretError, match=r"no key that matches `\*\.pem`") as caught:
        await read(secret(strimzi_ca(pem)), of=cluster(tls={"caSecretRef": {"name": "login", "pattern": "*.pem"}}))
    assert caught.value.problem.reason == "SecretIncomplete"


async def test_user_name_of_the_spec_joins_the_password_of_the_secret() -> None:
    body = secret({"password": PASSWORD, "sasl.jaas.config": "org.apache.kafka…"})
    login = {"mechanism": "SCRAM-SHA-512", "username": "shop", "secretRef": {"name": "login"}}
    settings = await read(body, of=cluster(tls={}, sasl=login))
    assert settings.sasl
    assert (settings.sasl.username, settings.sasl.password) == ("shop", PASSWORD)


async def test_chosen_keys_of_a_login_are_read() -> None:
    login = {"name": "login", "usernameKey": "api-key", "passwordKey": "api-secret"}
    body = secret({"api-key": "shop", "api-secret": PASSWORD})
    settings = await read(body, of=cluster(tls={}, sasl={"mechanism": "PLAIN", "secretRef": login}))
    assert settings.sasl
    assert (settings.sasl.username, settings.sasl.password) == ("shop", PASSWORD)
    oauth = OAUTH | {"secretRef": {"name": "login", "clientIdKey": "api-key", "clientSecretKey": "api-secret"}}
    settings = await read(body, of=cluster(tls={}, sasl=oauth))
    assert settings.sasl
    assert settings.sasl.oauth
    assert (settings.sasl.oauth.client_id, settings.sasl.oauth.client_secret) == ("shop", PASSWORD)
    named = OAUTH | {"oauth": {**OAUTH_ENDPOINT, "clientId": "inline"}}
    settings = await read(secret({"clientSecret": PASSWORD}), of=cluster(tls={}, sasl=named))
    assert settings.sasl
    assert settings.sasl.oauth
    assert settings.sasl.oauth.client_id == "inline"


async def test_line_end_of_a_credential_is_no_part_of_it() -> None:
    """Workers leave it out as well; else one of the two would be refused."""
    settings = await read(secret({"username": "alice\n", "password": f"{PASSWORD}\r\n"}), of=with_sasl())
    assert settings.sasl
    assert (settings.sasl.username, settings.sasl.password) == ("alice", PASSWORD)


async def test_byte_order_mark_of_a_credential_is_no_part_of_it() -> None:
    """Editors on Windows write one, and no terminal shows it."""
    settings = await read(secret({"username": "\ufeffalice", "password": f"\ufeff{PASSWORD}\r\n"}), of=with_sasl())
    assert settings.sasl
    assert (settings.sasl.username, settings.sasl.password) == ("alice", PASSWORD)
    with pytest.raises(UnusableSecretError, match="is empty"):
        await read(secret({"username": "alice", "password": "\ufeff\n"}), of=with_sasl())


OWN = {"consumerfleet.io/allowed-addresses": "kafka:9092, https://login.example/token"}


def bound(annotations: dict[str, str]) -> dict[str, Any]:
    made = secret({"username": "alice", "password": PASSWORD, "clientId": "alice", "clientSecret": PASSWORD})
    made["metadata"]["annotations"] = annotations
    return made


async def test_secret_that_lists_addresses_is_used_for_these() -> None:
    assert (await read(bound(OWN), of=with_sasl())).sasl is not None
    assert (await read(bound(OWN), of=cluster(sasl=OAUTH, tls={}))).sasl is not None


@pytest.mark.parametrize(
    ("servers", "endpoint", "named"),
    [
        (["kafka:9092", "mine.evil:9092"], None, "mine.evil:9092"),
        (["kafka:9092"], "https://mine.evil/token", "https://mine.evil/token"),
    ],
)
async def test_secret_that_lists_addresses_is_sent_nowhere_else(
    servers: list[str], endpoint: str | None, named: str
) -> None:
    sasl = {"mechanism": "PLAIN", "secretRef": {"name": "login"}, "allowWithoutTls": True}
    if endpoint is not None:
        sasl = {**OAUTH, "oauth": {**OAUTH_ENDPOINT, "tokenEndpoint": endpoint}}
    wrong = cluster(bootstrapServers=servers, sasl=sasl, tls={} if endpoint else None)
    with pytest.raises(UnusableSecretError, match="may not be sent to") as caught:
        await read(bound(OWN), of=wrong)
    assert named in str(caught.value)
    assert PASSWORD not in str(caught.value)
