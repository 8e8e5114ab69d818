"""SaslAuthenticate (key 36): one step of a SASL exchange; from version 1 on with the session's lifetime (KIP-368)."""

from __future__ import annotations

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import blob, int16, int64, string, structure


@structure
class SaslAuthenticateResponse(Response, api_key=36, versions=(0, 2), flexible_from=2, bytes_max=1024 * 1024):
    """The server's next bytes; a lifetime of 0 means no expiry."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)
    auth_bytes: bytes = blob()
    session_lifetime_ms: int = int64(since=1, default=0, ignorable=True)


@structure
class SaslAuthenticateRequest(Request[SaslAuthenticateResponse]):
    """The client's next bytes; never to be logged."""

    auth_bytes: bytes = blob()
