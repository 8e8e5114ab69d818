"""Negotiation after a connection opens: API versions, then SASL. No I/O.

Mechanisms: PLAIN (RFC 4616), SCRAM (RFC 5802, RFC 7677), OAUTHBEARER (RFC 7628). The generators yield each request with
its version; the caller passes the response to `send`. User names and passwords are encoded as UTF-8 without SASLprep,
as in Kafka's own client and broker.
"""

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from fleet_consumer.contract.brokers import OAUTHBEARER
from fleet_consumer.distribution import DISTRIBUTION, own_version
from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.net.errors import AuthenticationFailed, MalformedResponse, UnsupportedByBroker
from fleet_consumer.net.oauth import OAuthToken
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

SCRAM_ITERATIONS_MIN: Final = 4096
"""Minimum number of iterations, from RFC 7677. With fewer iterations, an eavesdropper can guess passwords cheaply."""

SCRAM_ITERATIONS_MAX: Final = 100_000
"""Maximum number of iterations, so that a hostile server cannot keep the I/O thread busy for long. Kafka's own limit is
16,384."""

_NO_CHANNEL_BINDING: Final = "n,,"

COMPLAINT_CHARS_MAX: Final = 300
"""Maximum number of characters that an error quotes from a server's reason for refusing a token."""

_SEPARATOR: Final = "\x01"
"""Control-A, which ends each part of a message (RFC 7628). A message of only this character is the client's response to
a refusal."""


class SaslRefused(Exception):
    """The server refused the login or violated the protocol; `reason` is a CamelCase word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Mechanism(Protocol):
    """A SASL exchange: `start` once, then `respond` to each challenge until it returns None."""

    complaint: str
    """The server's reason for a refusal, if the exchange reported one; otherwise empty."""

    def start(self) -> bytes:
        """The client's first bytes."""

    def respond(self, challenge: bytes) -> bytes | None:
        """The client's next bytes, or None at the end of the exchange. Raises SaslRefused."""


def mechanism(settings: SaslSettings, nonce: str, token: OAuthToken | None = None) -> Mechanism:
    """Return a new exchange. `nonce` must be a random string without commas; `token` is for OAUTHBEARER."""
    if settings.mechanism == "PLAIN":
        return Plain(settings)
    if settings.mechanism == OAUTHBEARER:
        assert token is not None, "OAUTHBEARER without a token"
        return OAuthBearer(token)
    return Scram(settings, nonce)


class Plain:
    """PLAIN sends the password itself, so use it only with TLS."""

    complaint = ""

    def __init__(self, settings: SaslSettings) -> None:
        self._settings = settings

    def start(self) -> bytes:
        return f"\0{self._settings.username}\0{self._settings.password}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """End the exchange, because the server's response needs no check."""
        return None


class Scram:
    """SCRAM: client and server prove to each other that they know the password, without sending it."""

    complaint = ""

    def __init__(self, settings: SaslSettings, nonce: str) -> None:
        self._hash = "sha256" if settings.mechanism == "SCRAM-SHA-256" else "sha512"
        self._password = settings.password.encode()
        self._nonce = nonce
        name = settings.username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={nonce}"
        self._server_signature: bytes | None = None

    def start(self) -> bytes:
        return (_NO_CHANNEL_BINDING + self._first_bare).encode()

    def respond(self, challenge: bytes) -> bytes | None:
        if self._server_signature is None:
            return self._prove(_text(challenge))
        self._check_server(_text(challenge), self._server_signature)
        return None

    def _prove(self, server_first: str) -> bytes:
        attributes = _attributes(server_first)
        nonce, salt, iterations = attributes.get("r", ""), _decode(attributes.get("s", "")), attributes.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslRefused("ServerNotAuthentic", "the server's nonce does not begin with ours")
        if not salt or not iterations.isascii() or not iterations.isdigit() or len(iterations) > 9:
            raise SaslRefused("ServerNotAuthentic", "the server sent no salt or no iteration count")
        if not SCRAM_ITERATIONS_MIN <= int(iterations) <= SCRAM_ITERATIONS_MAX:
            raise SaslRefused(
                "ServerNotAuthentic",
                f"the server asks for {iterations} iterations, but only {SCRAM_ITERATIONS_MIN} to "
                f"{SCRAM_ITERATIONS_MAX} are accepted",
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, int(iterations))
        client_key = self._hmac(salted, b"Client Key")
        final_without_proof = f"c={_encode(_NO_CHANNEL_BINDING.encode())},r={nonce}"
        signed = f"{self._first_bare},{server_first},{final_without_proof}".encode()
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), signed)
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{final_without_proof},p={_encode(proof)}".encode()

    def _check_server(self, server_final: str, expected: bytes) -> None:
        attributes = _attributes(server_final)
        if "e" in attributes:
            raise SaslRefused("AuthenticationFailed", f"the server reports {attributes['e'][:100]!r}")
        if not hmac.compare_digest(_decode(attributes.get("v", "")), expected):
            raise SaslRefused("ServerNotAuthentic", "the server could not prove that it knows the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


class OAuthBearer:
    """OAUTHBEARER sends a bearer token with extensions (KIP-342). Anybody who reads the token can log in, so use this
    mechanism only with TLS. A server that refuses the token reports the reason as JSON, and ends the exchange after the
    client's control-A."""

    def __init__(self, token: OAuthToken) -> None:
        self._token = token
        self.complaint = ""

    def start(self) -> bytes:
        parts = [
            f"auth=Bearer {self._token.value}",
            *(f"{key}={value}" for key, value in self._token.extensions.items()),
        ]
        return (_NO_CHANNEL_BINDING + "".join(f"{_SEPARATOR}{part}" for part in parts) + _SEPARATOR * 2).encode()

    def respond(self, challenge: bytes) -> bytes | None:
        if self.complaint:
            raise SaslRefused("AuthenticationFailed", f"the server reports {self.complaint}")
        if not challenge:
            return None
        self.complaint = _complaint(challenge)
        return _SEPARATOR.encode()


def _complaint(challenge: bytes) -> str:
    """Return the server's reason for a refusal as a printable string. From a refusal in JSON, this is the status and
    the required scope; otherwise, the beginning of the refusal."""
    text = challenge[: 4 * COMPLAINT_CHARS_MAX].decode(errors="replace")
    try:
        refusal = json.loads(text)
    except (ValueError, RecursionError):
        refusal = None
    if isinstance(refusal, dict) and isinstance(refusal.get("status"), str):
        scope = refusal.get("scope")
        text = refusal["status"] + (f" (required scope: {scope})" if isinstance(scope, str) and scope else "")
    return repr(text[:COMPLAINT_CHARS_MAX])


def _text(challenge: bytes) -> str:
    try:
        return challenge.decode()
    except UnicodeDecodeError:
        raise SaslRefused("ServerNotAuthentic", "the server's message is not text") from None


def _attributes(message: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in message.split(",") if part[1:2] == "="}


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


SASL_ROUNDS_MAX: Final = 8
"""Maximum number of SASL requests of a login; SCRAM needs two."""

BROKER_TEXT_MAX: Final = 300
"""Maximum number of characters that an error quotes from a broker's message."""

NONCE_BYTES: Final = 24


class VersionRange(NamedTuple):
    lowest: int
    highest: int


BrokerVersions = Mapping[int, VersionRange]
Step = tuple[Request[Any], int]


def pick_version(request: Request[Any], broker: BrokerVersions, address: BrokerAddress) -> int:
    """Return the highest version that both sides support and `request` can use. Raises UnsupportedByBroker."""
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
    """Request the broker's API versions. If the broker does not support the version of ApiVersions, retry with a lower
    version (KIP-511)."""
    request = ApiVersionsRequest(client_software_name=DISTRIBUTION, client_software_version=own_version())
    answer = yield request, request.MAX_VERSION
    assert isinstance(answer, ApiVersionsResponse)
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        offered = _ranges(answer).get(request.API_KEY, VersionRange(0, 0))
        answer = yield request, max(0, min(request.MAX_VERSION - 1, offered.highest))
        assert isinstance(answer, ApiVersionsResponse)
    if answer.error_code != ErrorCode.NONE:
        raise MalformedResponse(
            f"broker {address} answered ApiVersions with {describe(answer.error_code)}", address=address
        )
    return _ranges(answer)


def authenticate(
    sasl: SaslSettings, token: OAuthToken | None, address: BrokerAddress, broker: BrokerVersions
) -> Generator[Step, Response, float | None]:
    """Log in. Returns the lifetime of the login in seconds (KIP-368), or None if it is unlimited.

    `token` is for OAUTHBEARER. Raises AuthenticationFailed, whose message has mechanism, user and the broker's message,
    but never the password or the token.
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
    exchange: Mechanism, verdict: SaslAuthenticateResponse, sasl: SaslSettings, address: BrokerAddress
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
    if sasl.mechanism == OAUTHBEARER:
        remedy = "that the broker trusts this issuer, and the token's audience, scope and lifetime"
    return AuthenticationFailed(
        f"broker {address} did not authenticate {sasl.identity} with {sasl.mechanism}: {seen}; check {remedy}",
        address=address,
        reason=reason,
    )


def _ranges(answer: ApiVersionsResponse) -> BrokerVersions:
    return {entry.api_key: VersionRange(entry.min_version, entry.max_version) for entry in answer.api_keys}
