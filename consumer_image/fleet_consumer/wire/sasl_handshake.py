"""SaslHandshake (key 17): choose a SASL mechanism; version 1 wraps what follows in SaslAuthenticate (KIP-152)."""

from __future__ import annotations

from typing import ClassVar

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import STRING, array, int16, string, structure


@structure
class SaslHandshakeResponse(Response):
    """UNSUPPORTED_SASL_MECHANISM comes with the supported mechanisms."""

    API_KEY: ClassVar[int] = 17
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = 1
    BYTES_MAX: ClassVar[int] = 64 * 1024

    error_code: int = int16()
    mechanisms: tuple[str, ...] = array(STRING)


@structure
class SaslHandshakeRequest(Request[SaslHandshakeResponse]):
    """The chosen mechanism."""

    RESPONSE: ClassVar[type[Response]] = SaslHandshakeResponse

    mechanism: str = string()
