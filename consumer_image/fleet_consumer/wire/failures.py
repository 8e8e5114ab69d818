"""The two ways in which a message can be wrong: the peer sent nonsense, or our caller asked for the impossible.

Everything the codec refuses is one of these two, so that a caller needs no knowledge of `struct` or UTF-8.
"""

from __future__ import annotations


class MalformedMessage(Exception):
    """Bytes from a peer that are no message of the claimed type and version: cut short, overlong or absurd."""


class UnencodableMessage(Exception):
    """A message of ours that the asked version cannot carry, such as a static member's id before version 5."""
