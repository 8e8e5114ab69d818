"""Request and response headers, which precede every message.

Their form depends on whether the message is flexible (KIP-482), with two exceptions: the client id always has the old
string encoding, and an ApiVersions response always has the old header, because it is read before the broker's
versions are known.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from fleet_consumer.wire import primitives
from fleet_consumer.wire.api_versions import ApiVersionsResponse
from fleet_consumer.wire.failures import MalformedMessage, UnencodableMessage
from fleet_consumer.wire.message import Request, Response

_FIXED: Final = struct.Struct(">hhi")
_CORRELATION: Final = struct.Struct(">i")
_write_client_id: Final = primitives.string_writer(primitives.write_length_int16, nullable=True)
_read_client_id: Final = primitives.string_reader(primitives.read_length_int16, nullable=True)


class RequestHeader(NamedTuple):
    """API, version, client and correlation id of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


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


def decode_request_header(data: bytes, request: type[Request[Any]]) -> tuple[RequestHeader, int]:
    """Read a request header; returns it and the position of the body. Raises MalformedMessage."""
    try:
        api_key, version, correlation_id = _FIXED.unpack_from(data)
        client_id, pos = _read_client_id(data, _FIXED.size)
        if request.is_flexible(version):
            pos = skip_tags(data, pos)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise MalformedMessage(f"request header in {len(data)} bytes: {error}") from error
    return RequestHeader(api_key, version, correlation_id, client_id), pos


def encode_response(response: Response, version: int, correlation_id: int) -> bytes:
    """Header and body of a response, as a broker sends it. Raises UnencodableMessage."""
    tags = b"\0" if _has_tags(type(response), version) else b""
    return _CORRELATION.pack(correlation_id) + tags + response.encode(version)


def decode_response_header(data: bytes, response: type[Response], version: int) -> tuple[int, int]:
    """Read a response header; returns the correlation id and the position of the body. Raises MalformedMessage."""
    try:
        correlation_id = _CORRELATION.unpack_from(data)[0]
        pos = skip_tags(data, _CORRELATION.size) if _has_tags(response, version) else _CORRELATION.size
    except (IndexError, struct.error) as error:
        raise MalformedMessage(f"response header in {len(data)} bytes: {error}") from error
    return correlation_id, pos


def skip_tags(data: bytes, pos: int) -> int:
    """The position after a tagged section; headers have no tagged fields that we use."""
    return primitives.read_tags(data, pos, {}, {})


def _has_tags(response: type[Response], version: int) -> bool:
    return response.is_flexible(version) and response is not ApiVersionsResponse
