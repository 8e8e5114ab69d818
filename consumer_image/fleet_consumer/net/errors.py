"""Errors of requests that got no response; there is one class for each remedy.

A response with an error code is not a NetError: the caller handles the code or raises `KafkaError`.
"""

from collections.abc import Iterable
from typing import ClassVar, Final

from fleet_consumer.net.addresses import BrokerAddress


class NetError(Exception):
    """Base class of the errors of `net`; never raised itself.

    `reason` is a CamelCase word for conditions and metrics, by default the class's name. `address` is the broker's
    address; None if the error concerns several brokers or no broker. `retriable` is True if the same request may
    succeed later without a change of settings.
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
    """No TCP connection: refused, unreachable, timed out, or (reason NameNotResolved) the name has no address."""

    retriable = True


class TlsFailed(NetError):
    """No TLS session: untrusted certificates, unreadable files, or a listener without TLS."""


class AuthenticationFailed(NetError):
    """The broker refused the credentials or the mechanism, or failed to prove that it knows the password (SCRAM). Also
    raised, with `address` None, if the token endpoint refuses the client."""


class TokenUnavailable(NetError):
    """No token for the login is available: the token endpoint failed, or the user's callback raised an error."""

    retriable = True


class RequestTimedOut(NetError):
    """No response in time. The broker may have processed the request."""

    retriable = True


class Disconnected(NetError):
    """The connection ended before the response. The broker may have processed the request."""

    retriable = True


class MalformedResponse(NetError):
    """The peer sent an invalid response."""


class AnotherCluster(NetError):
    """A broker does not belong to the requested cluster."""


class NoBrokersListed(NetError):
    """A broker returned Metadata that lists no brokers, not even itself, because the broker has just started."""

    retriable = True


class UnsupportedByBroker(NetError):
    """The broker does not support the API, or supports no version of the API that can carry the request."""


FAILURES_LISTED: Final = 8
"""Maximum number of errors that a message lists."""


class AllBrokersUnreachable(NetError):
    """No known address answered; `failures` has the last error of each address."""

    retriable = True

    def __init__(self, message: str, *, failures: tuple[NetError, ...] = ()) -> None:
        super().__init__(message)
        self.failures = failures


def listed(failures: Iterable[NetError]) -> str:
    """Return the errors as one string, sorted so that the message does not depend on the order of requests."""
    told = sorted(map(str, failures))
    more = len(told) - FAILURES_LISTED
    return "; ".join(told[:FAILURES_LISTED]) + (f"; and {more} more" if more > 0 else "")
