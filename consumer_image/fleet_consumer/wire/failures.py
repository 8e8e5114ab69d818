"""Errors of encoding and decoding.

The codec raises nothing else, so that callers need not know about `struct` or UTF-8.
"""

from __future__ import annotations


class MalformedMessage(Exception):
    """Bytes from a peer that are not a valid message of the expected type and version."""


class UnencodableMessage(Exception):
    """A message that the requested version cannot carry, such as a static member's id before version 5."""
