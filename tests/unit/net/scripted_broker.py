"""A broker that speaks real bytes on a loopback port and says what a test tells it to say.

For each API a test gives a function from what was asked to an answer: a response, raw bytes, SILENT or HANG_UP.
ApiVersions is answered on its own. Gaps: one thread for each connection, no batching, no state, no API has a default
in addition to ApiVersions and Metadata.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from fleet_consumer.net import BrokerAddress
from fleet_consumer.wire.connection import ApiVersionsRequest, ApiVersionsResponse, ApiVersionsResponseKey
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.topics import MetadataRequest, MetadataResponse, MetadataResponseBroker
from tests.protocol.messages import REQUESTS
from tests.support.broker_headers import decode_request_header, encode_response

STOP_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes to be sent as they are, without a size in front."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Silent:
    """No answer at all."""


@dataclass(frozen=True, slots=True)
class HangUp:
    """The connection is closed instead."""


SILENT: Final = Silent()
HANG_UP: Final = HangUp()
Answer = Response | Raw | Silent | HangUp


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the broker got it."""

    connection: int
    version: int
    correlation_id: int
    client_id: str | None
    request: Any
    at: float


class ScriptedBroker:
    """Listens while its context is open. `asked` holds all requests but ApiVersions, `negotiated` those."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[Asked] = []
        self.negotiated: list[Asked] = []
        self.connections = 0
        self.versions = {request.API_KEY: (request.MIN_VERSION, request.MAX_VERSION) for request in REQUESTS}
        self._tls = tls
        self._handlers: dict[int, Callable[[Asked], Answer]] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = BrokerAddress("127.0.0.1", self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._closing = False
        self.on(MetadataRequest, lambda _: self.metadata())

    @property
    def bootstrap(self) -> str:
        return str(self.address)

    def on(self, request: type[Request[Any]], handler: Callable[[Asked], Answer]) -> None:
        """Answer an API by `handler` from now on."""
        self._handlers[request.API_KEY] = handler

    def metadata(self, *others: ScriptedBroker) -> MetadataResponse:
        """An answer that knows this broker as node 0 and `others` from 1 on."""
        return MetadataResponse(
            brokers=tuple(
                MetadataResponseBroker(node_id=node, host=broker.address.host, port=broker.address.port)
                for node, broker in enumerate((self, *others))
            ),
            cluster_id="scripted",
            topics=(),
        )

    def has_unread(self, asked: Asked) -> bool:
        """True if more has come on the connection of a request that is still being answered."""
        readable, _, _ = select.select([self._sockets[asked.connection - 1]], [], [], 0)
        return bool(readable)

    def hang_up_all(self) -> None:
        """Close every connection from the broker's side."""
        for connected in self._sockets:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing = True
        # Closing a listener does not wake an accept that waits on it; connecting does.
        with contextlib.suppress(OSError):
            socket.create_connection(self.address, timeout=STOP_TIMEOUT_S).close()
        self._threads[0].join(STOP_TIMEOUT_S)
        self._listener.close()
        self.hang_up_all()
        for thread in self._threads:
            thread.join(STOP_TIMEOUT_S)
            assert not thread.is_alive()

    def _spawn(self, work: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=work, args=args, name="scripted broker", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            connected, _ = self._listener.accept()
            if self._closing:
                connected.close()
                return
            self.connections += 1
            self._sockets.append(connected)
            self._spawn(self._serve, connected, self.connections)

    def _serve(self, connected: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), connected:
            stream = connected if self._tls is None else self._tls.wrap_socket(connected, server_side=True)
            with stream:
                while (message := _read_message(stream)) is not None and self._answer(stream, message, number):
                    continue

    def _answer(self, stream: socket.socket, message: bytes, number: int) -> bool:
        """Answer one request; False once the connection is to end."""
        key = struct.unpack_from(">h", message)[0]
        request = next(cls for cls in REQUESTS if key == cls.API_KEY)
        header, start = decode_request_header(message, request)
        if request is ApiVersionsRequest:
            asked = Asked(number, header.api_version, header.correlation_id, header.client_id, None, time.monotonic())
            self.negotiated.append(asked)
            answer, version = self._offer(header.api_version)
        else:
            body = request.decode(header.api_version, message[start:])
            asked = Asked(number, header.api_version, header.correlation_id, header.client_id, body, time.monotonic())
            self.asked.append(asked)
            answer, version = self._handlers[key](asked), header.api_version
        if isinstance(answer, Raw):
            stream.sendall(answer.data)
        elif isinstance(answer, Response):
            stream.sendall(framed(encode_response(answer, version, header.correlation_id)))
        return not isinstance(answer, HangUp)

    def _offer(self, version: int) -> tuple[Answer, int]:
        if ApiVersionsRequest.API_KEY in self._handlers:
            return self._handlers[ApiVersionsRequest.API_KEY](self.negotiated[-1]), version
        offer = tuple(
            ApiVersionsResponseKey(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in self.versions.items()
        )
        if version > self.versions[ApiVersionsRequest.API_KEY][1]:
            return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=offer), 0
        return ApiVersionsResponse(error_code=0, api_keys=offer), version


def framed(message: bytes) -> bytes:
    """A message with its size in front."""
    return struct.pack(">i", len(message)) + message


def _read_message(stream: socket.socket) -> bytes | None:
    size = _read_exactly(stream, 4)
    return None if size is None else _read_exactly(stream, struct.unpack(">i", size)[0])


def _read_exactly(stream: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        chunk = stream.recv(count - len(data))
        if not chunk:
            return None
        data += chunk
    return data
