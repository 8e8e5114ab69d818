"""Options of Java's Kafka client: PEM inline, logins quoted, and clear errors for files of no use."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.local_cluster.pki import Authority
from fleet_consumer.backfill.brokers_view import check_mechanism, connection_options
from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.contract.brokers import Brokers, SaslSource, TlsFiles, TokenEndpoint
from fleet_consumer.net import ConnectionSettings, SaslSettings


def options(tls: TlsFiles | None = None, sasl: SaslSettings | None = None) -> dict[str, str]:
    connection = ConnectionSettings(bootstrap_servers=("a:1", "b:2"), client_id="fleet-backfill-x", sasl=sasl)
    return connection_options(Brokers(bootstrap_servers=("a:1", "b:2"), tls=tls, sasl=None), connection)


def test_plain_text() -> None:
    assert options() == {
        "kafka.bootstrap.servers": "a:1,b:2",
        "kafka.client.id": "fleet-backfill-x",
        "kafka.security.protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize(
    ("password", "quoted"),
    [("simple", '"simple"'), ('a"b\\c', '"a\\"b\\\\c"'), ("x'; y=1;", '"x\'; y=1;"'), ("é\t", '"é\\t"')],
)
def test_passwords_are_quoted(password: str, quoted: str) -> None:
    found = options(sasl=SaslSettings(mechanism="SCRAM-SHA-256", username="u", password=password))
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    assert found["kafka.sasl.jaas.config"] == f'{module} required username="u" password={quoted};'
    assert found["kafka.security.protocol"] == "SASL_PLAINTEXT"
    assert found["kafka.sasl.mechanism"] == "SCRAM-SHA-256"


def test_certificates_go_inline_and_several_authorities_are_joined(tmp_path: Path) -> None:
    one, two = Authority(tmp_path / "one"), Authority(tmp_path / "two")
    one.ensure()
    two.ensure()
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "a.crt").write_text("a comment\n" + one.root_certificate.read_text())
    (mounted / "b.crt").write_text(two.root_certificate.read_text())
    certificate, key = one.issue("client", "client")
    found = options(TlsFiles(ca_file=f"{mounted}/*.crt", cert_file=str(certificate), key_file=str(key)))
    trusted = found["kafka.ssl.truststore.certificates"]
    assert trusted.count("BEGIN CERTIFICATE") == 2
    assert "comment" not in trusted
    assert found["kafka.ssl.keystore.key"].startswith("-----BEGIN PRIVATE KEY-----")
    assert found["kafka.ssl.keystore.certificate.chain"].startswith("-----BEGIN CERTIFICATE-----")
    assert found["kafka.ssl.truststore.type"] == found["kafka.ssl.keystore.type"] == "PEM"
    assert found["kafka.security.protocol"] == "SSL"
    alone = options(TlsFiles(ca_file=str(mounted / "a.crt"), cert_file=None, key_file=None))
    assert alone["kafka.ssl.truststore.certificates"] == "".join(trusted.partition("-----END CERTIFICATE-----\n")[:2])


def test_key_in_another_format_says_how_to_convert_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "one")
    authority.ensure()
    certificate, key = authority.issue("client", "client")
    old = tmp_path / "old.key"
    old.write_text("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\n")
    with pytest.raises(BackfillFailed, match=r"BEGIN RSA PRIVATE KEY.*openssl pkcs8 -topk8") as failed:
        options(TlsFiles(ca_file=None, cert_file=str(certificate), key_file=str(old)))
    assert "MII" not in str(failed.value)
    for ca_file in (str(old), str(tmp_path / "none"), str(tmp_path / "*.none")):
        with pytest.raises(BackfillFailed, match=r"certificate|No such file"):
            options(TlsFiles(ca_file=ca_file, cert_file=None, key_file=None))
    assert key.exists()


def test_tokens_are_refused_for_good() -> None:
    endpoint = TokenEndpoint(url="https://idp/token", scope=None)
    sasl = SaslSource(mechanism="OAUTHBEARER", directory="/s", identity=None, oauth=endpoint)
    with pytest.raises(BackfillFailed, match="OAUTHBEARER") as failed:
        check_mechanism(Brokers(bootstrap_servers=("a:1",), tls=None, sasl=sasl))
    assert (failed.value.reason, failed.value.final) == ("SaslMechanismUnsupported", True)
