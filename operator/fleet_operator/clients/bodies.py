"""Reads of HTTP bodies up to a number of bytes."""

from __future__ import annotations

import aiohttp


async def read_body(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes | None:
    """The body; None if it has more than `bytes_max` bytes: the rest is not read. Raises what aiohttp raises."""
    pieces, left = list[bytes](), bytes_max + 1
    # One read returns what has arrived, and a long body comes in pieces.
    while piece := await answer.content.read(left):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces) if left > 0 else None
