"""Framing of the byte stream: each message is preceded by its size in four bytes. No I/O."""

from __future__ import annotations

import struct
from typing import Final

UNASKED_FRAME_BYTES_MAX: Final = 64 * 1024
"""The most bytes read while no response is due; enough to describe the offence."""

_SIZE: Final = struct.Struct(">i")
_TLS_ALERT: Final = b"\x15\x03"


class FrameTooLong(Exception):
    """The announced size exceeds the limit: not a Kafka broker, or a hostile one."""


def frame(message: bytes) -> bytes:
    """A message with its size in front."""
    return _SIZE.pack(len(message)) + message


class FrameDecoder:
    """A buffer of received bytes that yields whole messages. Memory follows the data, not the announced size."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.frame_bytes_max = UNASKED_FRAME_BYTES_MAX

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """The next whole message, or None if incomplete. Raises FrameTooLong; the stream is then unusable."""
        if len(self._buffer) < _SIZE.size:
            return None
        size = _SIZE.unpack_from(self._buffer)[0]
        if not 0 <= size <= self.frame_bytes_max:
            raise FrameTooLong(self._explain(size))
        end = _SIZE.size + size
        if len(self._buffer) < end:
            return None
        message = bytes(memoryview(self._buffer)[_SIZE.size : end])
        del self._buffer[:end]
        return message

    def _explain(self, size: int) -> str:
        if self._buffer.startswith(_TLS_ALERT):
            return "it speaks TLS, but no TLS is configured"
        return (
            f"it announced a message of {size} bytes, at most {self.frame_bytes_max} are allowed; is it a Kafka broker?"
        )
