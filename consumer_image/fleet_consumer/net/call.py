"""A request in flight, as returned by `NetworkClient.send`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.net.errors import NetError
from fleet_consumer.wire.message import Request, Response

ResponseT = TypeVar("ResponseT", bound=Response)


class Call(Generic[ResponseT]):
    """A request and, once `done`, its response or error. Only the client's own thread may use it."""

    __slots__ = ("_response", "address", "deadline", "error", "request", "timeout_s")

    def __init__(
        self, address: BrokerAddress, request: Request[ResponseT], *, timeout_s: float, deadline: float
    ) -> None:
        self.address = address
        self.request: Request[Any] = request
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.error: NetError | None = None
        self._response: Response | None = None

    @property
    def done(self) -> bool:
        """True once there is a response or an error."""
        return self._response is not None or self.error is not None

    @property
    def response(self) -> ResponseT:
        """The broker's response; raises `error` if there is none. Only valid once `done`."""
        if self.error is not None:
            raise self.error
        assert self._response is not None, "the call is not done"
        return cast(ResponseT, self._response)

    def succeed(self, response: Response) -> None:
        assert not self.done, "a call ends once"
        self._response = response

    def fail(self, error: NetError) -> None:
        assert not self.done, "a call ends once"
        self.error = error
