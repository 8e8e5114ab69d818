"""OAuth settings and tokens. No I/O."""

import base64
import binascii
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

TOKEN_CHARS_MAX: Final = 64 * 1024
"""Maximum number of characters of a token. A few thousand are common; brokers refuse SASL messages above 512 KiB."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_AUTH: Final = "auth"
"""The name that RFC 7628 reserves for the token itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSettings:
    """The client credentials grant (RFC 6749, section 4.4): `token_endpoint` issues a token for the client itself.

    The CAs in `ca_file` (PEM) are trusted in addition to the system's CAs. Raises ValueError for an endpoint without
    https, because the secret would be sent unencrypted; loopback addresses are exempt.
    """

    token_endpoint: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    ca_file: str | None = None

    def __post_init__(self) -> None:
        url = urlsplit(self.token_endpoint)
        if url.scheme not in ("https", "http") or not url.hostname:
            raise ValueError(f"token endpoint {self.token_endpoint!r} is not a URL such as https://login.example/token")
        if url.scheme == "http" and not _is_loopback(url.hostname):
            raise ValueError(
                f"token endpoint {self.token_endpoint!r} would get the client secret unencrypted; use https"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthToken:
    """A bearer token; `extensions` are sent to the broker with the token (KIP-342).

    `expires_at` is in seconds since 1970 (UTC). Raises ValueError for a token or an extension that cannot be sent. The
    token itself never appears in an error or in `repr`.
    """

    value: str = field(repr=False)
    expires_at: float
    extensions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.value) > TOKEN_CHARS_MAX or not _TOKEN.fullmatch(self.value):
            raise ValueError(
                f"a string of {len(self.value)} characters is not a bearer token: it must have 1 to {TOKEN_CHARS_MAX} "
                "letters, digits and -._~+/"
            )
        for name, value in self.extensions.items():
            if not _EXTENSION_NAME.fullmatch(name) or name == _AUTH or not _EXTENSION_VALUE.fullmatch(value):
                raise ValueError(
                    f"SASL extension {name!r} cannot be sent: names are letters (not {_AUTH!r}), values printable ASCII"
                )


def token_from_answer(body: bytes, now: float) -> OAuthToken:
    """Parse a token endpoint's response (RFC 6749, section 5.1) received at `now`. Raises ValueError. Without
    `expires_in`, the token must be a JWT with `exp`."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("the answer is not JSON") from error
    if not isinstance(answer, dict) or not isinstance(answer.get("access_token"), str):
        raise ValueError("the answer has no `access_token`")
    kind = answer.get("token_type", "bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise ValueError(f"the token is of type {str(kind)[:40]!r}, not a bearer token")
    value: str = answer["access_token"]
    lifetime_s = answer.get("expires_in")
    # Some endpoints send the number as a string.
    if isinstance(lifetime_s, str) and lifetime_s.isascii() and lifetime_s.isdigit() and len(lifetime_s) < 12:
        lifetime_s = int(lifetime_s)
    if lifetime_s is None:
        expires_at = _number(_claims(value).get("exp"))
        if expires_at is None:
            raise ValueError("the answer has no `expires_in` and the token no `exp`")
    else:
        seconds = _number(lifetime_s)
        if seconds is None or seconds <= 0:
            raise ValueError(f"`expires_in` is {str(lifetime_s)[:40]!r}, not a number of seconds")
        expires_at = now + seconds
    return OAuthToken(value=value, expires_at=expires_at)


def _claims(token: str) -> dict[str, Any]:
    """Return a JWT's claims, or an empty dict for any other token. The signature is not verified here; the broker
    verifies it."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _number(value: object) -> float | None:
    """Return the value as a float if it is a JSON number (no boolean) with a magnitude below 1e12, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e12 else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
