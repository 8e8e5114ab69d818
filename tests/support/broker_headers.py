"""The broker's side of `wire.headers`: request headers read, response headers written."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from fleet_consumer.wire import primitives
from fleet_consumer.wire.connection import ApiVersionsResponse
from fleet_consumer.wire.errors import MalformedMessage
from fleet_consumer.wire.message import Request, Response

_FIXED: Final = struct.Struct(">hhi")
_CORRELATION: Final = struct.Struct(">i")
_read_client_id: Final = primitives.prefixed_reader(
    primitives.read_length_int16, nullable=True, read_body=primitives.read_string
)


class RequestHeader(NamedTuple):
    """API, version, client and correlation id of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(data: bytes, request: type[Request[Any]]) -> tuple[RequestHeader, int]:
    """Read a request header; returns it and the position of the body. Raises MalformedMessage."""
    try:
        api_key, version, correlation_id = _FIXED.unpack_from(data)
        client_id, pos = _read_client_id(data, _FIXED.size)
        if request.is_flexible(version):
            pos = primitives.read_tags(data, pos, {}, {})
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise MalformedMessage(f"request header in {len(data)} bytes: {error}") from error
    return RequestHeader(api_key, version, correlation_id, client_id), pos


def encode_response(response: Response, version: int, correlation_id: int) -> bytes:
    """Header and body of a response, as a broker sends it. Raises UnencodableMessage."""
    tagged = response.is_flexible(version) and not isinstance(response, ApiVersionsResponse)
    tags = b"\0" if tagged else b""
    return _CORRELATION.pack(correlation_id) + tags + response.encode(version)
