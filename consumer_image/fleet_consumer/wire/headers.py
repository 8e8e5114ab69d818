"""Request and response headers, which precede every message.

Their form depends on whether the message is flexible (KIP-482), with two exceptions: the client id always has the old
string encoding, and an ApiVersions response always has the old header, because it is read before the broker's
versions are known.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from fleet_consumer.wire import primitives
from fleet_consumer.wire.api_versions import ApiVersionsResponse
from fleet_consumer.wire.failures import MalformedMessage, UnencodableMessage
from fleet_consumer.wire.message import Request, Response

_FIXED: Final = struct.Struct(">hhi")
_CORRELATION: Final = struct.Struct(">i")
_write_client_id: Final = primitives.string_writer(primitives.write_length_int16, nullable=True)


def encode_request(request: Request[Any], version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Header and body of a request. Raises UnencodableMessage when `version` cannot carry it."""
    body = request.encode(version)
    out = bytearray(_FIXED.pack(request.API_KEY, version, correlation_id))
    try:
        _write_client_id(out, client_id)
    except UnicodeEncodeError as error:
        raise UnencodableMessage(f"client id is not Unicode text: {error}") from error
    if request.is_flexible(version):
        out.append(0)
    out += body
    return bytes(out)


def decode_response_header(data: bytes, response: type[Response], version: int) -> tuple[int, int]:
    """Read a response header; returns the correlation id and the position of the body. Raises MalformedMessage."""
    try:
        correlation_id, pos = _CORRELATION.unpack_from(data)[0], _CORRELATION.size
        if response.is_flexible(version) and response is not ApiVersionsResponse:
            pos = primitives.read_tags(data, pos, {}, {})  # headers have no tagged fields that we use
    except (IndexError, struct.error) as error:
        raise MalformedMessage(f"response header in {len(data)} bytes: {error}") from error
    return correlation_id, pos
