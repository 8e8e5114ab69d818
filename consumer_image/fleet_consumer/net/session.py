"""The conversation on one connection: negotiation first, then requests and answers in order. No I/O, no clock.

Bytes to send collect in `outbox`; received bytes go into `receive`. Several requests may be under way at once; a
broker answers them in the order in which they were sent. After an exception the session is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, Final, NamedTuple

from fleet_consumer.net.addresses import BrokerAddress
from fleet_consumer.net.call import Call
from fleet_consumer.net.errors import MalformedResponse
from fleet_consumer.net.framing import UNASKED_FRAME_BYTES_MAX, FrameDecoder, FrameTooLong, frame
from fleet_consumer.net.negotiation import BrokerVersions, Step, authenticate, learn_versions, pick_version
from fleet_consumer.net.oauth import OAuthToken
from fleet_consumer.net.settings import SaslSettings
from fleet_consumer.wire.failures import MalformedMessage
from fleet_consumer.wire.headers import decode_response_header, encode_request
from fleet_consumer.wire.message import Request, Response

IN_FLIGHT_MAX: Final = 100
"""Requests without an answer on one connection, as in Kafka's consumer; more wait on our side."""

RENEWAL_SECONDS_MIN: Final = 1.05
"""Kafka's brokers refuse to renew a login within a second of the last; one that ends sooner lets requests wait."""

USABLE_SHARE: Final = 0.95
"""The part of a login's lifetime in which requests are sent: by the broker's clock it began a little before it did by
ours, and a request takes time to arrive."""


class _Outstanding(NamedTuple):
    correlation_id: int
    version: int
    request: Request[Any]
    call: Call[Any] | None
    """None for the negotiation's own requests."""


class AuthenticatedSession:
    """One conversation. `renewal_share` is the part of a SASL session's lifetime after which to log in again."""

    def __init__(self, address: BrokerAddress, client_id: str, sasl: SaslSettings | None, renewal_share: float) -> None:
        self.outbox = bytearray()
        self.ready = False
        """Whether the negotiation is over; False again while the login is renewed."""
        self.muted_until = 0.0
        """Until then the broker's quota forbids to send (KIP-219)."""
        self.renew_at: float | None = None
        """When to log in again, None while that need not be."""
        self.expires_at = float("inf")
        """When the login must be used no more; requests after its end would cost the connection (KIP-368)."""
        self.renewing = False
        """Whether nothing new is taken, because the login is to be renewed as soon as all answers are there."""
        self.answers = 0
        """How many answers have come, those of the negotiation included."""
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
        """The calls that wait for their answer."""
        return [entry.call for entry in self._outstanding if entry.call is not None]

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._outstanding

    def begin(self, token: OAuthToken | None) -> None:
        """Put the first request into the outbox; `token` is for OAUTHBEARER."""
        self._start(self._open(token))

    def renew(self, token: OAuthToken | None) -> None:
        """Log in again on the same connection (KIP-368). Only while idle, since brokers take nothing in between."""
        assert self._sasl is not None
        assert self.idle, "answers are still to come"
        self.ready = self.renewing = False
        self.renew_at = None
        self.expires_at = float("inf")
        self._start(authenticate(self._sasl, token, self._address, self._versions))

    def can_take(self, now: float) -> bool:
        """Whether a call may be submitted now."""
        free = self.ready and not self.renewing and len(self._outstanding) < IN_FLIGHT_MAX
        return free and self.muted_until <= now < self.expires_at

    def submit(self, call: Call[Any]) -> None:
        """Put a call's request into the outbox. Raises UnsupportedByBroker or UnencodableMessage; the session lives."""
        self._write(call.request, pick_version(call.request, self._versions, self._address), call)

    def receive(self, data: bytes, now: float) -> None:
        """Take received bytes, and end the calls that they answer; `calls_ended` counts them.

        Raises MalformedResponse or, out of the negotiation, AuthenticationFailed or UnsupportedByBroker; answers that
        came before the offence have been given to their calls by then.
        """
        self._frames.feed(data)
        try:
            while (message := self._next_answer()) is not None:
                self._take(message, now)
        except (FrameTooLong, MalformedMessage) as error:
            raise MalformedResponse(
                f"broker {self._address} sent what is no answer: {error}", address=self._address
            ) from error

    def _next_answer(self) -> bytes | None:
        """The next whole answer. What is due says how long it may be: a heartbeat's is no place for 30 MiB."""
        due = self._outstanding[0].request.RESPONSE.BYTES_MAX if self._outstanding else UNASKED_FRAME_BYTES_MAX
        self._frames.frame_bytes_max = due
        return self._frames.next_frame()

    def _open(self, token: OAuthToken | None) -> Generator[Step, Response, float | None]:
        self._versions = yield from learn_versions(self._address)
        if self._sasl is None:
            return None
        return (yield from authenticate(self._sasl, token, self._address, self._versions))

    def _start(self, setup: Generator[Step, Response, float | None]) -> None:
        self._setup = setup
        request, version = next(setup)
        self._write(request, version, None)

    def _write(self, request: Request[Any], version: int, call: Call[Any] | None) -> None:
        correlation_id = self._correlation_id
        self.outbox += frame(encode_request(request, version, correlation_id, self._client_id))
        self._correlation_id = correlation_id + 1 & 0x7FFF_FFFF
        self._outstanding.append(_Outstanding(correlation_id, version, request, call))

    def _take(self, message: bytes, now: float) -> None:
        if not self._outstanding:
            raise MalformedMessage("an answer that nothing was asked for")
        correlation_id, version, request, call = self._outstanding.popleft()
        try:
            answered, start = decode_response_header(message, request.RESPONSE, version)
            if answered != correlation_id:
                raise MalformedMessage(f"answer number {answered} where {correlation_id} was due")
            response = request.decode_response(version, message[start:])
        except MalformedMessage:
            # The call has left the queue already, but must end with the others when the session does.
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
