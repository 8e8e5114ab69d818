"""Errors of requests without a response.

One class for each remedy. A response with an error code is not a NetError: the caller handles it, or raises
`KafkaError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

from fleet_consumer.net.addresses import BrokerAddress


class NetError(Exception):
    """Base class of the errors of `net`; never raised itself.

    `reason` is a CamelCase word for conditions and metrics, by default the class's name. `address` is the broker, None
    if there was no single one.
    `retriable`: the same request may succeed later without a change of settings.
    """

    reason: str = "NetError"
    retriable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "reason" not in vars(cls):
            cls.reason = cls.__name__

    def __init__(self, message: str, *, address: BrokerAddress | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        self.address = address
        if reason is not None:
            self.reason = reason


class ConnectFailed(NetError):
    """No TCP connection: refused, unreachable, timed out, or (reason NameNotResolved) no address for the name."""

    retriable = True


class TlsFailed(NetError):
    """No TLS session: untrusted certificates, unreadable files, or a listener without TLS."""


class AuthenticationFailed(NetError):
    """The broker refused the credentials or the mechanism, or did not prove that it knows the password (SCRAM).

    Also raised if the token endpoint refuses the client; `address` is then None.
    """


class TokenUnavailable(NetError):
    """No token to log in with: the token endpoint failed, or the user's callback raised."""

    retriable = True


class RequestTimedOut(NetError):
    """No response in time. The broker may have carried out the request."""

    retriable = True


class Disconnected(NetError):
    """The connection ended before the response. The broker may have carried out the request."""

    retriable = True


class MalformedResponse(NetError):
    """The peer sent an invalid response."""


class AnotherCluster(NetError):
    """A broker belongs to another cluster than the one that requests are for."""


class NoBrokersListed(NetError):
    """A broker that is still starting answered Metadata without any broker, itself included."""

    retriable = True


class UnsupportedByBroker(NetError):
    """The broker does not support the API, or no version that can carry the request."""


FAILURES_LISTED: Final = 8
"""The most errors that one message tells."""


class AllBrokersUnreachable(NetError):
    """No known address answered; `failures` holds the last error of each."""

    retriable = True

    def __init__(self, message: str, *, failures: tuple[NetError, ...] = ()) -> None:
        super().__init__(message)
        self.failures = failures


def listed(failures: Iterable[NetError]) -> str:
    """The errors as one text, in the same order each time, whichever address was asked first."""
    told = sorted(map(str, failures))
    more = len(told) - FAILURES_LISTED
    return "; ".join(told[:FAILURES_LISTED]) + (f"; and {more} more" if more > 0 else "")
