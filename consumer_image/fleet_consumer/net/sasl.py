"""SASL mechanisms: PLAIN (RFC 4616), SCRAM (RFC 5802, RFC 7677), OAUTHBEARER (RFC 7628). No I/O.

A mechanism is started once and then given each challenge until it returns None. User names and passwords are taken as
UTF-8 without further preparation, as by Kafka's own client and broker.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from typing import Final, Protocol

from fleet_consumer.net.oauth import OAuthToken
from fleet_consumer.net.settings import SaslSettings

SCRAM_ITERATIONS_MIN: Final = 4096
"""RFC 7677; with fewer, an eavesdropper can guess passwords cheaply."""

SCRAM_ITERATIONS_MAX: Final = 100_000
"""Kafka's own limit is 16,384; a hostile server must not keep the I/O thread busy for more than a moment."""

_NO_CHANNEL_BINDING: Final = "n,,"

COMPLAINT_CHARS_MAX: Final = 300
"""The most bytes of a server's reason to refuse a token in an error."""

_SEPARATOR: Final = "\x01"
"""RFC 7628 ends each part of a message with control-A; alone it is the client's response to a refusal."""


class SaslRefused(Exception):
    """The server failed or refused the exchange; `reason` is a CamelCase word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Mechanism(Protocol):
    """One SASL exchange."""

    complaint: str
    """The server's reason for a refusal, if the exchange itself gave one."""

    def start(self) -> bytes:
        """The client's first bytes."""
        ...

    def respond(self, challenge: bytes) -> bytes | None:
        """The client's next bytes, or None when the exchange is over. Raises SaslRefused."""
        ...


def mechanism(settings: SaslSettings, nonce: str, token: OAuthToken | None = None) -> Mechanism:
    """A new exchange; `nonce` must be random text without commas, `token` is for OAUTHBEARER."""
    if settings.mechanism == "PLAIN":
        return Plain(settings)
    if settings.mechanism == "OAUTHBEARER":
        assert token is not None, "OAUTHBEARER without a token"
        return OAuthBearer(token)
    return Scram(settings, nonce)


class Plain:
    """The password itself; only for use inside TLS."""

    complaint = ""

    def __init__(self, settings: SaslSettings) -> None:
        self._settings = settings

    def start(self) -> bytes:
        return f"\0{self._settings.username}\0{self._settings.password}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """End the exchange: the server's acceptance carries nothing to check."""
        return None


class Scram:
    """Mutual proof of knowing the password, without sending it."""

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
            raise SaslRefused("ServerNotAuthentic", "the server's nonce does not continue ours")
        if not salt or not iterations.isascii() or not iterations.isdigit() or len(iterations) > 9:
            raise SaslRefused("ServerNotAuthentic", "the server sent no salt or no iteration count")
        if not SCRAM_ITERATIONS_MIN <= int(iterations) <= SCRAM_ITERATIONS_MAX:
            raise SaslRefused(
                "ServerNotAuthentic",
                f"the server asks for {iterations} iterations, from {SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX}"
                " are accepted",
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
    """A token, with extensions (KIP-342). A bearer token admits anyone, so use it only inside TLS.

    A server that refuses the token reports the reason as JSON, and ends the exchange after the client's control-A.
    """

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
    """Status and required scope from a refusal; other bytes as printable text."""
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
