"""Opening of a connection: API versions, then SASL. No I/O.

Written as generators that yield the next request with its version, and are sent the response.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple

from fleet_consumer.distribution import DISTRIBUTION, own_version
from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.net.errors import AuthenticationFailed, MalformedResponse, UnsupportedByBroker
from fleet_consumer.net.oauth import OAuthToken
from fleet_consumer.net.sasl import Mechanism, SaslRefused, mechanism
from fleet_consumer.net.settings import SaslSettings
from fleet_consumer.wire.connection import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from fleet_consumer.wire.errors import ErrorCode, describe
from fleet_consumer.wire.message import Request, Response

SASL_ROUNDS_MAX: Final = 8
"""The most SASL requests of a login; SCRAM needs two."""

BROKER_TEXT_MAX: Final = 300
"""The most characters of a broker's own text in an error."""

NONCE_BYTES: Final = 24


class VersionRange(NamedTuple):
    """The versions of one API that a broker supports."""

    lowest: int
    highest: int


BrokerVersions = Mapping[int, VersionRange]
Step = tuple[Request[Any], int]


def pick_version(request: Request[Any], broker: BrokerVersions, address: BrokerAddress) -> int:
    """The highest version that both sides support and that can carry this request. Raises UnsupportedByBroker."""
    offered = broker.get(request.API_KEY)
    api = type(request).__name__.removesuffix("Request")
    if offered is None:
        raise UnsupportedByBroker(f"broker {address} does not support {api}; upgrade the broker", address=address)
    version = min(request.version_max, offered.highest)
    if version < max(request.MIN_VERSION, offered.lowest):
        raise UnsupportedByBroker(
            f"broker {address} supports {api} versions {offered.lowest} to {offered.highest}, this client "
            f"{request.MIN_VERSION} to {request.version_max}; upgrade the older of the two",
            address=address,
        )
    return version


def learn_versions(address: BrokerAddress) -> Generator[Step, Response, BrokerVersions]:
    """Request the broker's versions; an unsupported version of ApiVersions itself is retried lower (KIP-511)."""
    request = ApiVersionsRequest(client_software_name=DISTRIBUTION, client_software_version=own_version())
    answer = yield request, request.MAX_VERSION
    assert isinstance(answer, ApiVersionsResponse)
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        offered = _ranges(answer).get(request.API_KEY, VersionRange(0, 0))
        answer = yield request, max(0, min(request.MAX_VERSION - 1, offered.highest))
        assert isinstance(answer, ApiVersionsResponse)
    if answer.error_code != ErrorCode.NONE:
        raise MalformedResponse(
            f"broker {address} answered ApiVersions with {describe(answer.error_code)}",
            address=address,
        )
    return _ranges(answer)


def authenticate(
    sasl: SaslSettings, token: OAuthToken | None, address: BrokerAddress, broker: BrokerVersions
) -> Generator[Step, Response, float | None]:
    """Log in; returns the seconds until the session must be renewed (KIP-368), or None.

    `token` is for OAUTHBEARER. Raises AuthenticationFailed with the mechanism, the user and the broker's text, never
    the password or the token.
    """
    handshake = SaslHandshakeRequest(mechanism=sasl.mechanism)
    answer = yield handshake, pick_version(handshake, broker, address)
    assert isinstance(answer, SaslHandshakeResponse)
    if answer.error_code != ErrorCode.NONE:
        offered = ", ".join(answer.mechanisms[:20]) or "none"
        raise AuthenticationFailed(
            f"broker {address} refuses SASL mechanism {sasl.mechanism} ({describe(answer.error_code)}); "
            f"choose one that it offers: {offered[:BROKER_TEXT_MAX]}",
            address=address,
        )
    exchange = mechanism(sasl, secrets.token_urlsafe(NONCE_BYTES), token)
    to_send: bytes | None = exchange.start()
    for _ in range(SASL_ROUNDS_MAX):
        assert to_send is not None
        request = SaslAuthenticateRequest(auth_bytes=to_send)
        verdict = yield request, pick_version(request, broker, address)
        assert isinstance(verdict, SaslAuthenticateResponse)
        to_send = _next_bytes(exchange, verdict, sasl, address)
        if to_send is None:
            return verdict.session_lifetime_ms / 1000 if verdict.session_lifetime_ms > 0 else None
    raise _refused(sasl, address, f"the exchange did not end after {SASL_ROUNDS_MAX} rounds")


def _next_bytes(
    exchange: Mechanism,
    verdict: SaslAuthenticateResponse,
    sasl: SaslSettings,
    address: BrokerAddress,
) -> bytes | None:
    if verdict.error_code != ErrorCode.NONE:
        words = (verdict.error_message or "")[:BROKER_TEXT_MAX]
        complaint = f"; it reports {exchange.complaint}" if exchange.complaint else ""
        raise _refused(sasl, address, f"{describe(verdict.error_code)} {words}".strip() + complaint)
    try:
        return exchange.respond(verdict.auth_bytes)
    except SaslRefused as error:
        raise _refused(sasl, address, str(error), error.reason) from error


def _refused(sasl: SaslSettings, address: BrokerAddress, seen: str, reason: str | None = None) -> AuthenticationFailed:
    remedy = "user name, password and mechanism"
    if sasl.mechanism == "OAUTHBEARER":
        remedy = "that the broker trusts this issuer, and the token's audience, scope and lifetime"
    return AuthenticationFailed(
        f"broker {address} did not authenticate {sasl.identity} by {sasl.mechanism}: {seen}; check {remedy}",
        address=address,
        reason=reason,
    )


def _ranges(answer: ApiVersionsResponse) -> BrokerVersions:
    return {entry.api_key: VersionRange(entry.min_version, entry.max_version) for entry in answer.api_keys}
