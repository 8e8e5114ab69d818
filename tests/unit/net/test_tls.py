"""TLS: trusted, not trusted, wrong host, wrong listener, files that cannot be used."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet_consumer.contract.brokers import matching_files
from fleet_consumer.net import (
    AllBrokersUnreachable,
    BrokerAddress,
    ConnectFailed,
    FileWatch,
    NetError,
    TlsFailed,
    TlsSettings,
)
from fleet_consumer.net.transport import make_transport
from fleet_consumer.wire.groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from tests.unit.net.clients import LIST_GROUPS, NO_GROUPS, PATIENCE_S, connected
from tests.unit.net.scripted_broker import ScriptedBroker


@dataclass(frozen=True, slots=True)
class KeyPair:
    cert: str
    key: str


def self_signed(folder: Path, name: str, subject_names: str) -> KeyPair:
    pair = KeyPair(str(folder / f"{name}.crt"), str(folder / f"{name}.key"))
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-addext", f"subjectAltName={subject_names}",
            "-keyout", pair.key, "-out", pair.cert,
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return pair


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KeyPair]:
    folder = tmp_path_factory.mktemp("pki")
    names = {"broker": "IP:127.0.0.1", "elsewhere": "DNS:elsewhere.example", "client": "DNS:client"}
    return {name: self_signed(folder, name, subject_names) for name, subject_names in names.items()}


def serving(pair: KeyPair, *, client_ca: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


def test_trusted_broker_is_talked_to_also_in_large_messages(pairs: dict[str, KeyPair]) -> None:
    """Large ones span many TLS records in both directions."""
    groups = tuple(ListedGroup(group_id=f"group-{number:05}", protocol_type="consumer") for number in range(50_000))
    asked = ListGroupsRequest(states_filter=tuple(f"state-{number}" for number in range(50_000)), types_filter=())
    with (
        ScriptedBroker(serving(pairs["broker"])) as broker,
        connected(broker.address, tls=TlsSettings(ca_file=pairs["broker"].cert)) as client,
    ):
        broker.on(ListGroupsRequest, lambda _: ListGroupsResponse(error_code=0, groups=groups))
        assert client.call(broker.address, asked, timeout_s=PATIENCE_S).groups == groups
        assert broker.asked[0].request == asked


def test_client_certificate_is_shown_where_the_broker_wants_one(pairs: dict[str, KeyPair]) -> None:
    ca, own = pairs["broker"].cert, pairs["client"]
    with ScriptedBroker(serving(pairs["broker"], client_ca=own.cert)) as broker:
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        with connected(broker.address, tls=TlsSettings(ca_file=ca, cert_file=own.cert, key_file=own.key)) as client:
            assert client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S) == NO_GROUPS
        with connected(broker.address, tls=TlsSettings(ca_file=ca)) as client:
            with pytest.raises(NetError) as caught:
                client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)
            # OpenSSL's server sends the alert and hangs up at once; when our request meets that, the alert may be lost.
            assert caught.value.reason in ("ClientCertificateMissing", "Disconnected")
            assert "client certificate" in str(caught.value)


@pytest.mark.parametrize(
    ("serves", "trusts", "complaint", "reason"),
    [
        ("broker", "elsewhere", "not trusted: .*self-signed.*CA file", "CertificateNotTrusted"),
        ("elsewhere", "elsewhere", "not trusted: .*mismatch.*also names 127.0.0.1", "HostNameMismatch"),
    ],
    ids=["unknown authority", "other host name"],
)
def test_untrusted_broker_gets_no_request(
    pairs: dict[str, KeyPair], serves: str, trusts: str, complaint: str, reason: str
) -> None:
    with (
        ScriptedBroker(serving(pairs[serves])) as broker,
        connected(broker.address, tls=TlsSettings(ca_file=pairs[trusts].cert)) as client,
    ):
        with pytest.raises(TlsFailed, match=complaint) as caught:
            client.metadata(timeout_s=PATIENCE_S)
        assert caught.value.reason == reason
        assert broker.negotiated == []


def test_expired_certificate_of_a_broker_is_named(pairs: dict[str, KeyPair], tmp_path: Path) -> None:
    old, request = KeyPair(str(tmp_path / "old.crt"), pairs["broker"].key), str(tmp_path / "old.csr")
    names = tmp_path / "names.cnf"
    names.write_text("subjectAltName=IP:127.0.0.1")
    for words in (
        ["req", "-new", "-key", old.key, "-subj", "/CN=broker", "-out", request],
        ["x509", "-req", "-in", request, "-signkey", old.key, "-days", "-1", "-extfile", str(names), "-out", old.cert],
    ):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    with (
        ScriptedBroker(serving(old)) as broker,
        connected(broker.address, tls=TlsSettings(ca_file=old.cert)) as client,
    ):
        with pytest.raises(TlsFailed, match="has expired; renew it at the broker") as caught:
            client.metadata(timeout_s=PATIENCE_S)
        assert caught.value.reason == "CertificateExpired"


def test_listener_without_tls_is_recognized(pairs: dict[str, KeyPair]) -> None:
    """A broker takes the TLS greeting for the size of a huge message and hangs up."""

    class RefusingHugeMessages(ScriptedBroker):
        def _serve(self, connected: object, number: int) -> None:
            connected.recv(5)  # type: ignore[attr-defined]
            connected.close()  # type: ignore[attr-defined]

    tls = TlsSettings(ca_file=pairs["broker"].cert)
    with (
        RefusingHugeMessages() as broker,
        connected(broker.address, tls=tls) as client,
        pytest.raises(ConnectFailed, match="does this listener speak TLS"),
    ):
        client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S)


def test_listener_with_tls_is_recognized_by_a_client_without(pairs: dict[str, KeyPair]) -> None:
    with (
        ScriptedBroker(serving(pairs["broker"])) as broker,
        connected(broker.address) as client,
        pytest.raises(NetError, match="TLS"),
    ):
        client.metadata(timeout_s=0.5)


def test_files_that_cannot_be_used_are_named(pairs: dict[str, KeyPair], tmp_path: Path) -> None:
    own, other = pairs["client"], pairs["broker"]
    encrypted = tmp_path / "encrypted.key"
    subprocess.run(
        ["openssl", "ec", "-in", own.key, "-aes256", "-passout", "pass:secret", "-out", str(encrypted)],
        check=True,
        capture_output=True,
    )
    unusable = [
        TlsSettings(ca_file=str(tmp_path / "missing.crt")),
        TlsSettings(ca_file=own.key),
        TlsSettings(ca_file=own.cert, cert_file=own.cert, key_file=other.key),
        TlsSettings(ca_file=own.cert, cert_file=own.cert, key_file=str(encrypted)),
    ]
    with ScriptedBroker(serving(pairs["broker"])) as broker:
        for tls in unusable:
            with connected(broker.address, tls=tls) as client:
                with pytest.raises(TlsFailed) as caught:
                    client.metadata(timeout_s=PATIENCE_S)
                assert caught.value.reason == "TlsFilesInvalid"
                assert str(tls.key_file or tls.ca_file) in str(caught.value)


def test_renewed_ca_file_is_used_by_the_next_connection(pairs: dict[str, KeyPair], tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text(Path(pairs["elsewhere"].cert).read_text())
    tls = TlsSettings(ca_file=str(ca))
    with ScriptedBroker(serving(pairs["broker"])) as broker, connected(broker.address, tls=tls) as client:
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        with pytest.raises((TlsFailed, AllBrokersUnreachable)):
            client.metadata(timeout_s=0.5)
        ca.write_text(Path(pairs["broker"].cert).read_text())
        assert client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S) == NO_GROUPS


def test_files_that_are_swapped_while_they_are_read_are_read_again(pairs: dict[str, KeyPair], tmp_path: Path) -> None:
    """The kubelet turns one link; the certificate may be read before that, and the key after it.

    Here the first key is a pipe, so that the reader stands still between the two.
    """
    for folder, name in (("old", "broker"), ("new", "client")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tls.crt").write_bytes(Path(pairs[name].cert).read_bytes())
    new_key = Path(pairs["client"].key).read_bytes()
    (tmp_path / "new" / "tls.key").write_bytes(new_key)
    os.mkfifo(tmp_path / "old" / "tls.key")
    link = tmp_path / "..data"
    link.symlink_to("old")

    def swap() -> None:
        with (tmp_path / "old" / "tls.key").open("wb") as pipe:  # opens once somebody reads
            (tmp_path / "fresh").symlink_to("new")
            (tmp_path / "fresh").rename(link)
            pipe.write(new_key)

    swapping = threading.Thread(target=swap)
    swapping.start()
    tls = TlsSettings(ca_file=pairs["broker"].cert, cert_file=str(link / "tls.crt"), key_file=str(link / "tls.key"))
    one, other = socket.socketpair()
    with one, other:
        make_transport(one, tls, BrokerAddress("127.0.0.1", 1)).close()
    swapping.join()


def test_watch_reports_a_renewal_until_it_is_in_use(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    watch = FileWatch([str(file)])
    assert not watch.changed()
    file.write_text("one")
    assert watch.changed()
    assert watch.changed()
    watch.used()
    assert not watch.changed()
    file.unlink()
    assert watch.changed()


def test_authorities_of_all_matching_files_are_trusted_together(pairs: dict[str, KeyPair], tmp_path: Path) -> None:
    """As in Strimzi's Secret while a new authority comes: brokers still show certificates of the old one."""
    tls = TlsSettings(ca_file=str(tmp_path / "*.crt"))
    with ScriptedBroker(serving(pairs["broker"])) as broker, connected(broker.address, tls=tls) as client:
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        with pytest.raises(TlsFailed, match=r"no file that matches .*\*\.crt holds a PEM certificate"):
            client.metadata(timeout_s=0.5)
        (tmp_path / "ca.crt").write_bytes(b"Autorit\xe4t\n" + Path(pairs["elsewhere"].cert).read_bytes())
        (tmp_path / "ca.p12").write_bytes(b"\0\1")
        with pytest.raises((TlsFailed, AllBrokersUnreachable)):
            client.metadata(timeout_s=0.5)
        (tmp_path / "ca-2026-12-01T00-00-00Z.crt").write_bytes(Path(pairs["broker"].cert).read_bytes())
        assert client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S) == NO_GROUPS


def test_authority_with_a_foreign_character_leaves_the_others_in_use(pairs: dict[str, KeyPair], tmp_path: Path) -> None:
    """It ended the thread that talks to the brokers, as OpenSSL's text must be ASCII."""
    broken = Path(pairs["elsewhere"].cert).read_bytes().replace(b"\nM", "\né".encode(), 1)
    (tmp_path / "broken.crt").write_bytes(broken)
    tls = TlsSettings(ca_file=str(tmp_path / "*.crt"))
    with ScriptedBroker(serving(pairs["broker"])) as broker, connected(broker.address, tls=tls) as client:
        broker.on(ListGroupsRequest, lambda _: NO_GROUPS)
        with pytest.raises(TlsFailed, match=r"holds a PEM certificate"):
            client.metadata(timeout_s=0.5)
        (tmp_path / "ca.crt").write_bytes(Path(pairs["broker"].cert).read_bytes())
        assert client.call(broker.address, LIST_GROUPS, timeout_s=PATIENCE_S) == NO_GROUPS


def test_watch_reports_files_that_match_come_and_go(tmp_path: Path) -> None:
    watch = FileWatch([str(tmp_path / "*.crt")])
    (tmp_path / "ca.p12").write_text("no match")
    (tmp_path / ".hidden.crt").write_text("the kubelet's own")
    assert not watch.changed()
    (tmp_path / "old.crt").write_text("one")
    assert watch.changed()
    watch.used()
    (tmp_path / "new.crt").write_text("two")
    assert watch.changed()
    watch.used()
    (tmp_path / "old.crt").unlink()
    assert watch.changed()


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.crt", ["a.crt", "ca.crt"]),
        ("ca*", ["ca.crt", "ca.p12"]),
        ("*", ["a.crt", "ca.crt", "ca.p12"]),
        ("ca.crt*crt", []),
    ],
)
def test_pattern_has_one_asterisk_for_any_characters(pattern: str, found: list[str]) -> None:
    assert matching_files(["ca.p12", "ca.crt", "..data", ".a.crt", "a.crt"], pattern) == found
