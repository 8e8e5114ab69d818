"""Settings of Java's Kafka client for Spark's source, from the group's connection.

Certificates and keys go inline, because executors on other nodes have no file that the driver makes. They are read
again for every slice, so that renewed ones need no restart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fleet_consumer.backfill.errors import BackfillFailed
from fleet_consumer.contract.brokers import OAUTHBEARER, Brokers, TlsFiles, certificates
from fleet_consumer.net import ConnectionSettings, authorities

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
    """Options of Spark's Kafka source for reaching the cluster. Raises BackfillFailed for files of no use."""
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
