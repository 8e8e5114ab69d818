"""SaslHandshake (key 17): choose a SASL mechanism; version 1 wraps what follows in SaslAuthenticate (KIP-152)."""

from __future__ import annotations

from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.schema import STRING, array, int16, string, structure


@structure
class SaslHandshakeResponse(Response, api_key=17, versions=(0, 1), bytes_max=64 * 1024):
    """UNSUPPORTED_SASL_MECHANISM comes with the supported mechanisms."""

    error_code: int = int16()
    mechanisms: tuple[str, ...] = array(STRING)


@structure
class SaslHandshakeRequest(Request[SaslHandshakeResponse]):
    """The chosen mechanism."""

    mechanism: str = string()
