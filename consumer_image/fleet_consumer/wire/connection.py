"""Message headers, and the requests that are sent when a connection opens.

Flexible messages (KIP-482) have a header with tagged fields, other messages have the old header. There are two
exceptions. The client id always has the old string encoding. An ApiVersions response always has the old header, because
the client does not know the broker's versions yet.

- ApiVersions (key 18): returns a broker's APIs and their versions; the first request on every connection. A broker that
  does not support the request's version answers in version 0 with UNSUPPORTED_VERSION (KIP-511).
- SaslHandshake (17): chooses a SASL mechanism; version 1 announces that SaslAuthenticate requests follow.
- SaslAuthenticate (36, KIP-152): one step of a SASL exchange. From version 1 on, the response has the session's
  lifetime (KIP-368).
"""

import struct
from typing import Any, Final

from fleet_consumer.wire import primitives
from fleet_consumer.wire.errors import ErrorCode, MalformedMessage, UnencodableMessage
from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import STRING, Structure, array, blob, boolean, int16, int32, int64, string


class ApiVersionsResponseKey(Structure):
    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


class ApiVersionsSupportedFeature(Structure):
    """A cluster feature and the levels that this broker supports."""

    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


class ApiVersionsFinalizedFeature(Structure):
    """A cluster feature and the levels that the cluster has finalized."""

    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


class ApiVersionsResponse(Response, api_key=18, versions=(0, 4), flexible_from=3, bytes_max=1024 * 1024):
    error_code: int = int16()
    api_keys: tuple[ApiVersionsResponseKey, ...] = array(ApiVersionsResponseKey)
    throttle_time_ms: int = int32(since=1, default=0, ignorable=True)
    supported_features: tuple[ApiVersionsSupportedFeature, ...] = array(
        ApiVersionsSupportedFeature, since=3, default=(), tag=0, ignorable=True
    )
    finalized_features_epoch: int = int64(since=3, default=-1, tag=1, ignorable=True)
    finalized_features: tuple[ApiVersionsFinalizedFeature, ...] = array(
        ApiVersionsFinalizedFeature, since=3, default=(), tag=2, ignorable=True
    )
    zk_migration_ready: bool = boolean(since=3, default=False, tag=3, ignorable=True)


class ApiVersionsRequest(Request[ApiVersionsResponse]):
    """Requests the supported APIs. Brokers publish metrics by client software name and version (KIP-511)."""

    client_software_name: str = string(since=3, default="", ignorable=True)
    client_software_version: str = string(since=3, default="", ignorable=True)

    @classmethod
    def decode_response(cls, version: int, buffer: bytes | bytearray | memoryview) -> Response:
        """Decode a response; UNSUPPORTED_VERSION always arrives in version 0. Raises only MalformedMessage."""
        refused = int.from_bytes(bytes(buffer[:2]), "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION
        return cls.RESPONSE.decode(0 if refused else version, buffer)


class SaslHandshakeResponse(Response, api_key=17, versions=(0, 1), bytes_max=64 * 1024):
    """`mechanisms` are the mechanisms that the broker supports, listed even with the error
    UNSUPPORTED_SASL_MECHANISM."""

    error_code: int = int16()
    mechanisms: tuple[str, ...] = array(STRING)


class SaslHandshakeRequest(Request[SaslHandshakeResponse]):
    mechanism: str = string()


class SaslAuthenticateResponse(Response, api_key=36, versions=(0, 2), flexible_from=2, bytes_max=1024 * 1024):
    """The server's next bytes. A `session_lifetime_ms` of 0 means that the session does not expire."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    auth_bytes: bytes = blob()
    session_lifetime_ms: int = int64(since=1, default=0, ignorable=True)


class SaslAuthenticateRequest(Request[SaslAuthenticateResponse]):
    """The client's next bytes, which must never be logged."""

    auth_bytes: bytes = blob()


_FIXED: Final = struct.Struct(">hhi")
_CORRELATION: Final = struct.Struct(">i")
_write_client_id: Final = primitives.prefixed_writer(
    primitives.write_length_int16, nullable=True, write_body=primitives.write_string
)


def encode_request(request: Request[Any], version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a request with its header. Raises UnencodableMessage if `version` cannot carry it."""
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
    """Decode a response header. Returns the correlation id and the position where the body begins. Raises
    MalformedMessage."""
    try:
        correlation_id, pos = _CORRELATION.unpack_from(data)[0], _CORRELATION.size
        if response.is_flexible(version) and response is not ApiVersionsResponse:
            pos = primitives.read_tags(data, pos, {}, {})  # no tagged field of a header is used
    except (IndexError, struct.error) as error:
        raise MalformedMessage(f"response header in {len(data)} bytes: {error}") from error
    return correlation_id, pos
