"""One way to feed bytes to a decoder, for all codec tests: complete, cut anywhere, and with more behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet_consumer.wire.errors import MalformedMessage

CUTS_MAX = 60
"""Long inputs are cut at so many evenly spread places."""


def feed(decode: Callable[[bytes | bytearray | memoryview], object], data: bytes, expected: object) -> None:
    """Assert that `decode` reads `data` as `expected`, from any kind of buffer, and refuses other lengths."""
    assert decode(data) == expected
    assert decode(bytearray(data)) == expected
    assert decode(memoryview(data)) == expected
    for cut in range(0, len(data), max(1, len(data) // CUTS_MAX)):
        with pytest.raises(MalformedMessage):
            decode(data[:cut])
    with pytest.raises(MalformedMessage, match="too many"):
        decode(data + b"\0")
