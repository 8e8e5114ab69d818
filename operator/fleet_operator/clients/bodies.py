"""Reads of HTTP bodies up to a number of bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp


async def read_body(answer: aiohttp.ClientResponse, bytes_max: int) -> bytes | None:
    """The body; None if it has more than `bytes_max` bytes: the rest is not read. Raises what aiohttp raises."""
    pieces, left = list[bytes](), bytes_max + 1
    # One read returns what has arrived, and a long body comes in pieces.
    while piece := await answer.content.read(left):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces) if left > 0 else None


async def read_lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The lines of a body as they arrive, of any length, without empty ones. Raises what aiohttp raises."""
    parts: list[bytes] = []
    async for data in answer.content.iter_any():
        head, newline, rest = data.rpartition(b"\n")
        if not newline:
            parts.append(data)  # a long line comes in many pieces, which are joined once
            continue
        for line in b"".join((*parts, head)).split(b"\n"):
            if line:
                yield line
        parts = [rest]
