"""The protocol of one connection: negotiation, then the requests and responses of calls, in order. No I/O, no clock.

`outbox` collects the bytes to send; `receive` processes received bytes. Several requests may be in flight; a broker
answers them in order. After an exception the session is unusable.
"""

import struct
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.net.errors import MalformedResponse, NetError
from fleet_consumer.net.negotiation import BrokerVersions, Step, authenticate, learn_versions, pick_version
from fleet_consumer.net.oauth import OAuthToken
from fleet_consumer.net.settings import SaslSettings
from fleet_consumer.wire.connection import decode_response_header, encode_request
from fleet_consumer.wire.errors import MalformedMessage
from fleet_consumer.wire.message import Request, Response

ResponseT = TypeVar("ResponseT", bound=Response)

IN_FLIGHT_MAX: Final = 100
"""Maximum number of requests in flight on one connection, as in Kafka's consumer. Further requests wait in the lane."""

RENEWAL_SECONDS_MIN: Final = 1.05
"""Minimum seconds from a login to its renewal, because Kafka's brokers refuse a renewal within one second. If the login
expires earlier, requests wait for the renewal."""

USABLE_SHARE: Final = 0.95
"""The share of a login's lifetime in which requests are sent. The share is below 1, because the lifetime begins earlier
at the broker than here, and a request takes time to arrive."""

UNASKED_FRAME_BYTES_MAX: Final = 64 * 1024
"""Maximum size in bytes of a message that arrives while no response is due. This is enough to describe the message in
the error."""

_SIZE: Final = struct.Struct(">i")
_TLS_ALERT: Final = b"\x15\x03"


@dataclass(slots=True, eq=False)
class Call(Generic[ResponseT]):
    """A request and, once `done`, its response or error. Only the client's thread may use it."""

    address: BrokerAddress
    request: Request[Any]
    timeout_s: float = field(kw_only=True)
    deadline: float = field(kw_only=True)
    error: NetError | None = None
    _response: Response | None = None

    @property
    def done(self) -> bool:
        return self._response is not None or self.error is not None

    @property
    def response(self) -> ResponseT:
        """The broker's response, once `done`; raises `error` if the call failed."""
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


class FrameDecoder:
    """Splits received bytes into whole messages. Memory grows with the received data, not with a message's announced
    size."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.frame_bytes_max = UNASKED_FRAME_BYTES_MAX

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """Return the next message, or None if the message is incomplete. Raises MalformedMessage if the message is too
        long."""
        if len(self._buffer) < _SIZE.size:
            return None
        size = _SIZE.unpack_from(self._buffer)[0]
        if not 0 <= size <= self.frame_bytes_max:
            raise MalformedMessage(self._explain(size))
        end = _SIZE.size + size
        if len(self._buffer) < end:
            return None
        message = bytes(memoryview(self._buffer)[_SIZE.size : end])
        del self._buffer[:end]
        return message

    def _explain(self, size: int) -> str:
        if self._buffer.startswith(_TLS_ALERT):
            return "it speaks TLS, but no TLS is configured"
        return (
            f"it announced a message of {size} bytes, above the limit of {self.frame_bytes_max}; is it a Kafka broker?"
        )


class _Outstanding(NamedTuple):
    correlation_id: int
    version: int
    request: Request[Any]
    call: Call[Any] | None
    """The call that the request belongs to; None for requests of the negotiation."""


class AuthenticatedSession:
    """The requests and responses of one connection. `renewal_share`: see `lane.RENEWAL_SHARES`."""

    def __init__(self, address: BrokerAddress, client_id: str, sasl: SaslSettings | None, renewal_share: float) -> None:
        self.outbox = bytearray()
        self.ready = False
        """True after the negotiation; False again during re-authentication."""
        self.muted_until = 0.0
        """Time until which the broker throttles this client, so no requests are sent (KIP-219)."""
        self.renew_at: float | None = None
        """Time of the next re-authentication, or None if none is needed."""
        self.expires_at = float("inf")
        """Time after which no requests are sent with this login, because the broker would close the connection
        (KIP-368)."""
        self.renewing = False
        """True while re-authentication waits for pending responses; new requests are then not accepted."""
        self.answers = 0
        """Number of responses received, including those of the negotiation."""
        self.calls_ended = 0
        self._address = address
        self._client_id = client_id
        self._sasl = sasl
        self._renewal_share = renewal_share
        self._frames = FrameDecoder()
        self._outstanding: deque[_Outstanding] = deque()
        self._versions: BrokerVersions = {}
        self._setup: Generator[Step, Response, float | None] | None = None
        self._correlation_id = 0

    @property
    def in_flight(self) -> list[Call[Any]]:
        return [entry.call for entry in self._outstanding if entry.call is not None]

    @property
    def idle(self) -> bool:
        return not self._outstanding

    def start_session(self, token: OAuthToken | None) -> None:
        """Put the first request of the negotiation into the outbox; `token` is for OAUTHBEARER."""
        self._start(self._open(token))

    def renew(self, token: OAuthToken | None) -> None:
        """Re-authenticate on the same connection (KIP-368); brokers require that no request is in flight."""
        assert self._sasl is not None
        assert self.idle, "responses are pending"
        self.ready = self.renewing = False
        self.renew_at = None
        self.expires_at = float("inf")
        self._start(authenticate(self._sasl.current(), token, self._address, self._versions))

    def can_take(self, now: float) -> bool:
        free = self.ready and not self.renewing and len(self._outstanding) < IN_FLIGHT_MAX
        return free and self.muted_until <= now < self.expires_at

    def submit(self, call: Call[Any]) -> None:
        """Queue a call's request. Raises UnsupportedByBroker or UnencodableMessage; the session remains usable."""
        self._write(call.request, pick_version(call.request, self._versions, self._address), call)

    def receive(self, data: bytes, now: float) -> None:
        """Process received bytes. Complete responses end their calls, which `calls_ended` counts.

        Raises MalformedResponse or, during the negotiation, AuthenticationFailed or UnsupportedByBroker. Calls whose
        responses arrived before the error have ended normally.
        """
        self._frames.feed(data)
        try:
            while (message := self._next_answer()) is not None:
                self._take(message, now)
        except MalformedMessage as error:
            raise MalformedResponse(
                f"broker {self._address} sent an invalid response: {error}", address=self._address
            ) from error

    def _next_answer(self) -> bytes | None:
        """Return the next whole response, or None. Its size limit depends on the request (small for a heartbeat)."""
        due = self._outstanding[0].request.RESPONSE.BYTES_MAX if self._outstanding else UNASKED_FRAME_BYTES_MAX
        self._frames.frame_bytes_max = due
        return self._frames.next_frame()

    def _open(self, token: OAuthToken | None) -> Generator[Step, Response, float | None]:
        self._versions = yield from learn_versions(self._address)
        if self._sasl is None:
            return None
        return (yield from authenticate(self._sasl.current(), token, self._address, self._versions))

    def _start(self, setup: Generator[Step, Response, float | None]) -> None:
        self._setup = setup
        request, version = next(setup)
        self._write(request, version, None)

    def _write(self, request: Request[Any], version: int, call: Call[Any] | None) -> None:
        correlation_id = self._correlation_id
        message = encode_request(request, version, correlation_id, self._client_id)
        self.outbox += _SIZE.pack(len(message)) + message
        self._correlation_id = correlation_id + 1 & 0x7FFF_FFFF
        self._outstanding.append(_Outstanding(correlation_id, version, request, call))

    def _take(self, message: bytes, now: float) -> None:
        if not self._outstanding:
            raise MalformedMessage("a response without a request")
        correlation_id, version, request, call = self._outstanding.popleft()
        try:
            answered, start = decode_response_header(message, request.RESPONSE, version)
            if answered != correlation_id:
                raise MalformedMessage(f"correlation id {answered} instead of {correlation_id}")
            response = request.decode_response(version, message[start:])
        except MalformedMessage:
            # Put the call back, because it must fail with the other calls when the session ends.
            self._outstanding.appendleft(_Outstanding(correlation_id, version, request, call))
            raise
        self.answers += 1
        throttle_ms: int = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self.muted_until = max(self.muted_until, now + throttle_ms / 1000)
        if call is None:
            self._go_on(response, now)
        else:
            call.succeed(response)
            self.calls_ended += 1

    def _go_on(self, response: Response, now: float) -> None:
        assert self._setup is not None
        try:
            request, version = self._setup.send(response)
        except StopIteration as stop:
            lifetime_s: float | None = stop.value
            self._setup = None
            self.ready = True
            if lifetime_s is not None:
                self.renew_at = now + max(lifetime_s * self._renewal_share, RENEWAL_SECONDS_MIN)
                self.expires_at = now + lifetime_s * USABLE_SHARE
        else:
            self._write(request, version, None)
