"""Authorities and chains as people write them, with the group's own connections and with librdkafka's.

The peer is a TLS server of one leaf that an intermediate authority has signed.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException

from fleet_consumer.librdkafka.settings import connection_config, resolved
from fleet_consumer.net import BrokerAddress, ConnectionSettings, TlsFailed, TlsSettings, tls_files
from fleet_consumer.net.transport import client_context, not_trusted
from tests.support.waiting import eventually

PATIENCE_S = 60.0
WITHOUT_KEY_IDENTIFIERS = "subjectKeyIdentifier=none\nauthorityKeyIdentifier=none\n"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root, an intermediate authority and a leaf, none with key identifiers, as private authorities often are."""
    folder = tmp_path_factory.mktemp("pki")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    for name, signer, extensions in (
        ("root", "", "basicConstraints=critical,CA:TRUE"),
        ("inter", "root", "basicConstraints=critical,CA:TRUE"),
        ("leaf", "inter", "subjectAltName=DNS:localhost"),
    ):
        (folder / f"{name}.ext").write_text(f"{extensions}\n{WITHOUT_KEY_IDENTIFIERS}")
        openssl(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        signing = (
            ("-CA", f"{signer}.crt", "-CAkey", f"{signer}.key", "-CAcreateserial")
            if signer
            else ("-signkey", "root.key")
        )
        openssl(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            *signing,
            "-out",
            f"{name}.crt",
            "-days",
            "30",
            "-extfile",
            f"{name}.ext",
        )
    (folder / "chain.crt").write_text((folder / "leaf.crt").read_text() + (folder / "inter.crt").read_text())
    return folder


@contextmanager
def server(pki: Path, *, asks: bool = False) -> Iterator[tuple[int, list[str]]]:
    """A TLS server and what became of each handshake, as it saw it; `asks` for a client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "chain.crt", pki / "leaf.key")
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(pki / "root.crt")
    listener, seen = socket.create_server(("127.0.0.1", 0)), list[str]()

    def serve() -> None:
        with suppress(OSError):
            while True:
                connected, _ = listener.accept()
                connected.settimeout(PATIENCE_S)
                try:
                    with context.wrap_socket(connected, server_side=True) as secured:
                        secured.recv(1)
                    seen.append("trusted")
                except OSError as error:
                    seen.append(str(error))

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1], seen
    finally:
        listener.close()


def shake(port: int, tls: TlsSettings) -> None:
    """Open a connection of the group's own kind."""
    context = client_context(tls, BrokerAddress("localhost", port))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.send(b"x")


def shake_librdkafka(port: int, tls: TlsSettings, seen: list[str]) -> str:
    """Open one of librdkafka's; returns what the server saw."""
    seen.clear()
    connection = ConnectionSettings(bootstrap_servers=(f"localhost:{port}",), client_id="c", tls=tls)
    config: dict[str, Any] = {**resolved(connection_config(connection)), "log_level": 0, "error_cb": lambda error: None}
    client = confluent_kafka.Producer(config)
    eventually(lambda: (client.poll(0.05), bool(seen))[1], timeout_s=PATIENCE_S, what="the handshake of librdkafka")
    return seen[0]


FORMS: dict[str, Callable[[str, str], str]] = {
    "CRLF": lambda root, inter: root.replace("\n", "\r\n"),
    "a byte order mark": lambda root, inter: "\ufeff" + root,
    "a remark": lambda root, inter: "# Größe der Behörde\n" + root,
    "indented": lambda root, inter: "".join(f"    {line}\n" for line in root.splitlines()),
    "escaped": lambda root, inter: root.replace("\n", "\\n"),
    "nothing between two": lambda root, inter: inter.strip() + root.strip(),
    "a broken one first": lambda root, inter: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n" + root,
    "twice": lambda root, inter: root + root,
}


@pytest.mark.parametrize("form", FORMS)
def test_authority_is_trusted_in_every_form_that_people_write(pki: Path, tmp_path: Path, form: str) -> None:
    root, inter = (pki / "root.crt").read_text(), (pki / "inter.crt").read_text()
    file = tmp_path / "ca.crt"
    file.write_text(FORMS[form](root, inter))
    tls = TlsSettings(ca_file=str(file))
    with server(pki) as (port, seen):
        shake(port, tls)
        eventually(lambda: seen == ["trusted"], timeout_s=PATIENCE_S, what="the handshake")
        # The server sees that its certificate was taken, or the alert; what librdkafka sends next is no matter.
        assert "alert" not in shake_librdkafka(port, tls, seen)


def test_strict_checks_of_later_pythons_are_off_and_chains_go_up_to_a_root(pki: Path) -> None:
    """Python 3.13 sets both flags; librdkafka knows neither, and both kinds of connections must agree."""
    context = client_context(TlsSettings(ca_file=str(pki / "root.crt")), BrokerAddress("localhost", 1))
    assert not context.verify_flags & (ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN)


def test_authority_without_its_root_is_named_as_that(pki: Path) -> None:
    tls = TlsSettings(ca_file=str(pki / "inter.crt"))
    with server(pki) as (port, _), pytest.raises(ssl.SSLCertVerificationError) as caught:
        shake(port, tls)
    assert "add the root's certificate" in str(not_trusted(caught.value, BrokerAddress("localhost", port)))


@pytest.mark.parametrize("between", ["", "\n", "\r\n\r\n# the authority\r\n"])
def test_client_s_chain_is_presented_whole(pki: Path, tmp_path: Path, between: str) -> None:
    """The server knows the root only, so the authority between must come with the leaf."""
    leaf, inter = (pki / "leaf.crt").read_text(), (pki / "inter.crt").read_text()
    file = tmp_path / "client.crt"
    file.write_text(leaf.strip() + between + inter)
    tls = TlsSettings(ca_file=str(pki / "root.crt"), cert_file=str(file), key_file=str(pki / "leaf.key"))
    with server(pki, asks=True) as (port, seen):
        shake(port, tls)
        eventually(lambda: seen == ["trusted"], timeout_s=PATIENCE_S, what="the handshake")
        assert "certificate" not in shake_librdkafka(port, tls, seen).lower()


def test_file_without_a_certificate_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_text("-----BEGIN CERTIFICATE-----\nMIIB")
    tls = TlsSettings(ca_file=str(file))
    with pytest.raises(TlsFailed, match="holds no PEM certificate that can be read"):
        client_context(tls, BrokerAddress("localhost", 1))
    connection = ConnectionSettings(bootstrap_servers=("localhost:1",), client_id="c", tls=tls)
    with pytest.raises(KafkaException, match="holds no PEM certificate that can be read"):
        resolved(connection_config(connection))


def presented(pki: Path) -> TlsSettings:
    files = {"ca_file": "root.crt", "cert_file": "chain.crt", "key_file": "leaf.key"}
    return TlsSettings(**{name: str(pki / file) for name, file in files.items()})


def test_client_certificate_is_presented_on_a_full_disk_and_leaves_no_file_open(
    pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file for each connection kept a worker from its coordinator for want of a few kilobytes."""

    def full(*arguments: Any, **named: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("NamedTemporaryFile", "TemporaryDirectory"):
        monkeypatch.setattr(tempfile, name, full)
    opened = len(os.listdir("/proc/self/fd"))
    client_context(presented(pki), BrokerAddress("localhost", 1))
    assert len(os.listdir("/proc/self/fd")) == opened


@pytest.mark.parametrize("lacking", ["memfd_create", "memory", "/proc"])
def test_client_certificate_is_presented_where_there_are_no_files_in_memory(
    pki: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    """As on macOS and Windows, and in sandboxes that forbid them or hide a process's own files."""

    def forbidden(name: str, flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    match lacking:
        case "memfd_create":
            monkeypatch.delattr(os, "memfd_create")
        case "memory":
            monkeypatch.setattr(os, "memfd_create", forbidden)
        case _:
            monkeypatch.setattr(tls_files, "OWN_FILES", str(pki / "none"))
    with server(pki, asks=True) as (port, seen):
        shake(port, presented(pki))
        eventually(lambda: seen == ["trusted"], timeout_s=PATIENCE_S, what="the handshake")
