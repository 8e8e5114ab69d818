"""Requests that are made again with every look, and their last answers.

Most groups are as they were at the last look, and a broker that is asked the same answers with the same bytes. Such an
answer is not decoded again: it is the very object that came before, so that whoever made something of it can tell by
identity that nothing has changed. Used by one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from fleet_consumer.net import Call
from fleet_consumer.wire.message import Request, Response

ResponseT = TypeVar("ResponseT", bound=Response)
T = TypeVar("T")


class _Repeated:
    """A request, its last encoding and its last answer. Everything else is the request's own."""

    __slots__ = ("_answered", "_encoded", "_request", "derived")

    def __init__(self, request: Request[Any]) -> None:
        self._request = request
        self._encoded: tuple[int, bytes] | None = None
        self._answered: tuple[int, bytes, Response] | None = None
        self.derived: tuple[Response, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def encode(self, version: int) -> bytes:
        """As `Request.encode`, once for a version."""
        if self._encoded is None or self._encoded[0] != version:
            self._encoded = (version, self._request.encode(version))
        return self._encoded[1]

    def decode_response(self, version: int, buffer: bytes) -> Response:
        """As `Request.decode_response`; the last answer itself if this one has the same bytes."""
        if self._answered is None or self._answered[:2] != (version, buffer):
            self._answered = (version, buffer, self._request.decode_response(version, buffer))
        return self._answered[2]


class Repeats:
    """The requests of one part of the groups, by broker. Those that a look did not make are forgotten at its end."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Request[Any]], _Repeated] = {}
        self._made: dict[tuple[int, Request[Any]], _Repeated] = {}

    def of(self, node_id: int, request: Request[ResponseT]) -> Request[ResponseT]:
        """The request as made before, if it was."""
        key = (node_id, request)
        found = self._made.get(key) or self._known.get(key) or _Repeated(request)
        self._made[key] = found
        return cast("Request[ResponseT]", found)

    def end_look(self) -> None:
        self._known, self._made = self._made, {}


def derived(call: Call[ResponseT], make: Callable[[ResponseT], T]) -> T:
    """Result of `make` for a call's response; made once for each answer of a repeated request.

    One request has one such result: always call it with the same function.
    """
    response, repeated = call.response, call.request
    if not isinstance(repeated, _Repeated):
        return make(response)
    if repeated.derived is None or repeated.derived[0] is not response:
        repeated.derived = (response, make(response))
    return cast("T", repeated.derived[1])
