"""Why a request got no answer.

One class for each thing that the user must do something different about. A broker that answers with an error code is
no NetError: that is the caller's business, or a `KafkaError`.
"""

from __future__ import annotations

from typing import ClassVar

from fleet_consumer.net.addresses import BrokerAddress


class NetError(Exception):
    """Root of what `net` reports; never raised itself.

    `reason` is a CamelCase word for conditions and metrics. `address` is the broker, None when there was no single one.
    `retriable` tells whether the same request may get through later without anybody changing a setting.
    """

    reason: str = "NetError"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, *, address: BrokerAddress | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        self.address = address
        if reason is not None:
            self.reason = reason


class ConnectFailed(NetError):
    """No TCP connection: refused, unreachable, timed out, or (reason NameNotResolved) no address for the name."""

    reason = "ConnectFailed"
    retriable = True


class TlsFailed(NetError):
    """No TLS session: certificates that do not match, files that cannot be read, or a listener without TLS."""

    reason = "TlsFailed"


class AuthenticationFailed(NetError):
    """The broker refused the credentials or the mechanism, or could not prove that it knows the password (SCRAM).

    Also when the token endpoint (then `address` is None) refuses the client.
    """

    reason = "AuthenticationFailed"


class TokenUnavailable(NetError):
    """No token to log in with: the token endpoint is away or talks nonsense, or the user's callback raised."""

    reason = "TokenUnavailable"
    retriable = True


class RequestTimedOut(NetError):
    """The caller's patience ended first. Whether the broker has carried out the request is unknown."""

    reason = "RequestTimedOut"
    retriable = True


class Disconnected(NetError):
    """The connection ended before the answer came. Whether the broker has carried out the request is unknown."""

    reason = "Disconnected"
    retriable = True


class MalformedResponse(NetError):
    """The other side sent what is no answer to our request; the connection was closed."""

    reason = "MalformedResponse"


class UnsupportedByBroker(NetError):
    """The broker does not speak the API, or no version of it that can carry what is asked."""

    reason = "UnsupportedByBroker"


class AllBrokersUnreachable(NetError):
    """Every known address failed; `failures` holds the last error of each."""

    reason = "AllBrokersUnreachable"
    retriable = True

    def __init__(self, message: str, *, failures: tuple[NetError, ...] = ()) -> None:
        super().__init__(message)
        self.failures = failures
