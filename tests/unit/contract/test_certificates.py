"""PEM certificates are found in texts of any content, in linear time."""

from __future__ import annotations

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
def test_certificate_beside_broken_ones_is_kept_alone(text: bytes) -> None:
    assert list(certificates([text])) == [GOOD.decode()]
