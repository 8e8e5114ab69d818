"""Request of a token from an OAuth token endpoint. Blocks, so it runs on a thread of `tokens.TokenSource`."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import urllib.error
import urllib.request
from email.message import Message
from typing import IO, Any, Final
from urllib.parse import quote_plus, urlencode

from fleet_consumer.clock import Clock
from fleet_consumer.net.errors import AuthenticationFailed, NetError, TlsFailed, TokenUnavailable
from fleet_consumer.net.oauth import OAuthSettings, OAuthToken, token_from_answer
from fleet_consumer.net.tls_files import authorities

ANSWER_BYTES_MAX: Final = 256 * 1024
WAIT_S: Final = 10.0
"""Timeout of each step: connecting, and every piece of the response."""
WORDS_MAX: Final = 200
"""The most characters of the endpoint's own text in an error."""
REFUSALS: Final = (400, 401, 403)
"""The statuses by which an endpoint refuses these credentials (RFC 6749, section 5.2)."""


def ask_for_token(settings: OAuthSettings, clock: Clock) -> OAuthToken:
    """Request a token with the client's credentials in the Authorization header. Raises NetError.

    AuthenticationFailed: the endpoint refuses the client. TlsFailed: its certificate is not trusted, or `ca_file`
    cannot be read. TokenUnavailable: any error that may be transient.
    """
    endpoint = settings.token_endpoint
    fields = {"grant_type": "client_credentials"} | ({"scope": settings.scope} if settings.scope else {})
    login = f"{quote_plus(settings.client_id)}:{quote_plus(settings.client_secret)}"
    request = urllib.request.Request(
        endpoint,
        data=urlencode(fields).encode(),
        headers={
            "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}",
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        },
        method="POST",
    )
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=_trust(settings)))
    try:
        with opener.open(request, timeout=WAIT_S) as answer:
            body = answer.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as refusal:
        raise _refused(settings, refusal) from refusal
    except urllib.error.URLError as error:
        raise _unreachable(endpoint, error.reason) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unreachable(endpoint, error) from error
    try:
        return token_from_answer(body, clock.wall())
    except ValueError as error:
        raise TokenUnavailable(
            f"token endpoint {endpoint}: {error}; check that this is the URL of the token endpoint"
        ) from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """No redirects: the secret is sent to the configured URL only; a redirect is reported as an HTTP error."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        return None


def _trust(settings: OAuthSettings) -> ssl.SSLContext:
    context = ssl.create_default_context()
    # Python 3.13 sets it. Private authorities often lack the key identifiers that it asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    try:
        if settings.ca_file is not None:
            context.load_verify_locations(cadata=authorities(settings.ca_file))
    except (OSError, ValueError) as error:
        raise TlsFailed(
            f"token endpoint {settings.token_endpoint}: cannot use the file ca={settings.ca_file}: {error}; "
            "it must exist and be PEM",
            reason="TlsFilesInvalid",
        ) from error
    return context


def _refused(settings: OAuthSettings, refusal: urllib.error.HTTPError) -> NetError:
    body = b""
    with refusal, contextlib.suppress(OSError, http.client.HTTPException):  # the status alone is enough
        body = refusal.read(ANSWER_BYTES_MAX)
    words = f"HTTP {refusal.code} {_words(body)}".strip()
    if refusal.code in REFUSALS:
        return AuthenticationFailed(
            f"token endpoint {settings.token_endpoint} refuses client {settings.client_id!r} a token: {words}; "
            "check client id, client secret and scope",
        )
    return TokenUnavailable(f"token endpoint {settings.token_endpoint} answered {words}; check the URL and the server")


def _words(body: bytes) -> str:
    """The error of a response in the form of RFC 6749, else the beginning of its text."""
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        text = f"{answer['error']} {answer.get('error_description') or ''}"
    else:
        text = body.decode(errors="replace")
    return "".join(char if char.isprintable() else " " for char in text[:WORDS_MAX]).strip()


def _unreachable(endpoint: str, cause: object) -> NetError:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return TlsFailed(
            f"token endpoint {endpoint}: its certificate is not trusted: {cause.verify_message}; "
            "check the CA file and the host name in the certificate",
            reason="CertificateNotTrusted",
        )
    seen = "no answer in time" if isinstance(cause, socket.timeout) else str(cause)
    return TokenUnavailable(f"token endpoint {endpoint} cannot be reached: {seen}; check URL, DNS and network policies")
