"""PEM certificates are found in files of any content, in linear time."""

from __future__ import annotations

import base64
import ssl
import time
from typing import Final

import pytest

from fleet_consumer.contract.brokers import certificates

BEGIN: Final = b"-----BEGIN CERTIFICATE-----\n"
END: Final = b"-----END CERTIFICATE-----\n"
GOOD: Final = BEGIN + b"R09PRA==\n" + END
MIB: Final = 2**20


@pytest.mark.parametrize("line", [BEGIN, END], ids=["begin", "end"])
def test_secret_full_of_lines_that_begin_or_end_a_certificate_is_read_at_once(line: bytes) -> None:
    """The operator reads it on its event loop: 200 KiB of them stopped all reconciling for 12 s."""
    began = time.perf_counter()
    assert list(certificates([line * (MIB // len(line))])) == []
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    "text",
    [
        BEGIN + b"dHJ1bmNhdGVk\n" + GOOD,
        b"dHJ1bmNhdGVk\n" + END + GOOD,
        GOOD + BEGIN + b"dHJ1bmNhdGVk\n",
        BEGIN + "dHJ1é\n".encode() + END + GOOD,
        "# Autorité\r\n".encode("latin-1") + GOOD + b"\0",
    ],
    ids=["no end", "no beginning", "no end at the end", "not ASCII", "remarks"],
)
def test_certificate_next_to_broken_ones_is_kept_alone(text: bytes) -> None:
    assert list(certificates([text])) == [GOOD.decode()]


WHOLE: Final = GOOD.decode()


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + GOOD,
        b"".join(b"    " + line for line in GOOD.splitlines(keepends=True)),
        GOOD.replace(b"\n", b"\\n"),
        GOOD.replace(b" CERT", b" X509 CERT"),
        b"Certificate:\n    Version: 3 (0x2)\n" + GOOD,
    ],
    ids=["CRLF", "byte order mark", "indented", "escaped", "X509", "OpenSSL's text"],
)
def test_certificate_is_read_in_the_forms_that_java_s_clients_take(text: bytes) -> None:
    assert list(certificates([text])) == [WHOLE]


def test_certificates_without_a_new_line_between_them_are_all_read() -> None:
    assert list(certificates([GOOD.strip() + GOOD.strip()])) == [WHOLE, WHOLE]


def test_trust_settings_behind_a_certificate_are_left_out() -> None:
    der = b"\x30\x82\x01\x00" + bytes(256)
    trusted = base64.encodebytes(der + b"\x30\x0c trust me too")
    text = b"-----BEGIN TRUSTED CERTIFICATE-----\n" + trusted + b"-----END TRUSTED CERTIFICATE-----\n"
    (found,) = certificates([text])
    assert ssl.PEM_cert_to_DER_cert(found) == der


def test_lines_are_wrapped_as_openssl_does() -> None:
    der = bytes(range(256)) * 3
    one_line = BEGIN + base64.b64encode(der) + b"\n" + END
    assert list(certificates([one_line])) == [ssl.DER_cert_to_PEM_cert(der)]
