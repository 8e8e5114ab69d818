"""HTTP handlers: one POST per record or batch, to a container beside the worker.

A record: the body is its value, everything else is in `X-Kafka-` headers; bytes in headers are base64. A batch: a JSON
object `{"records": [...]}`, and `{"results": [...]}` in the response, one for each record in order. Outputs are JSON
objects with base64 keys and values. `_raise_for_status` defines the meaning of a status.

A handler that does not listen (yet) fails no record: the call waits until it does. Nor does one that answers as a wrong
path or a missing login would (`ENDPOINT_STATUSES`), and has not answered any request with 2xx since it was last
reached: its records stay and are tried again. So do those of a port that answers something other than HTTP. A handler
counts as reached anew when nothing listened at one of the looks at its port (`LOOK_S`), which go on while there is
nothing to send.

If it breaks the connection instead of answering, the call is repeated a few times, and then the record fails; otherwise
a record that kills its handler would stop its partition for ever. No call is sent, or sent again, once its record has
left this worker (`check_wanted`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from fleet_consumer.clock import Clock
from fleet_consumer.handlers.call import begin_anew, check_wanted
from fleet_consumer.handlers.loading import Handler, HandlerContext
from fleet_consumer.record import Headers, Produce, Record, RetryAfter
from fleet_consumer.retry.failure import HttpStatus, NotHttp, OutputRefused, TimedOut

HOST: Final = "127.0.0.1"
"""The handler's container shares the worker's network, so nothing leaves the pod."""

LISTEN_WAIT_S: Final = 10.0
"""Longest wait of `setup` for the handler to listen before it reports an error."""
LISTEN_POLL_S: Final = 0.2
UNREACHABLE_PAUSE_S: Final = 0.5
"""Pause between two attempts to reach a handler that does not listen."""
LOOK_S: Final = 0.5
"""Interval of looks whether anything listens: shorter than the kubelet takes to start a container again."""
HEADER_BYTES_MAX: Final = 64 << 10
"""Limit of a header of a response, and of its first line: traces and tokens exceed the usual 8 KiB."""
BROKEN_MAX: Final = 3
"""The number of lost connections after which a call's record fails."""
ANSWER_BYTES_MAX: Final = 64 << 20
"""A larger response is refused: its outputs would have to be held in memory all at once."""
ERROR_BODY_BYTES_MAX: Final = 512
"""The most bytes of an error's body in the failure's text."""

ENDPOINT_STATUSES: Final = frozenset(
    (*range(300, 400), 401, 403, 404, 405, 406, 407, 410, 411, 415, 421, 426, 501, 505, 511)
)
"""Statuses that speak of the endpoint as long as it has answered no request with 2xx: redirections, logins, a wrong
path, method or media type. Later ones are the record's. 400, 413, 422 and all others always are."""

CONTENT_TYPES: Final = {
    "Bytes": "application/octet-stream",
    "String": "text/plain; charset=utf-8",
    "Json": "application/json",
}


class HandlerUnreachable(Exception):
    """The handler does not accept connections."""

    reason = "HandlerUnreachable"


class HandlerMisconfigured(Exception):
    """The handler answers, but no HTTP, or as if its path, method or login were wrong, and has not answered any record
    well."""

    reason = "HandlerMisconfigured"


class HandlerBroken(Exception):
    """The handler broke the connection instead of answering, several times for the same record."""


class HttpHandler:
    """Calls of one endpoint. Everything but `last_error` runs in the event loop of `setup`."""

    def __init__(self, port: int, path: str, *, batch: bool, timeout_s: float, value_format: str, clock: Clock) -> None:
        self.url = f"http://{HOST}:{port}{path}"
        self._port = port
        self._batch = batch
        self._timeout_s = timeout_s
        self._content_type = CONTENT_TYPES[value_format]
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._looking: asyncio.Task[None] | None = None
        self._answered_well = False
        self.last_error: HandlerUnreachable | HandlerMisconfigured | None = None

    def handler(self) -> Handler:
        return Handler(
            self.url,
            self.many if self._batch else self.one,
            self.setup,
            self.teardown,
            batch=self._batch,
            asynchronous=True,
            times_itself=True,
            takes_bytes=True,
            last_error=lambda: self.last_error,
        )

    async def setup(self, context: HandlerContext) -> None:
        """Wait for the handler to listen. Raises HandlerUnreachable after LISTEN_WAIT_S."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "consumer-fleet"},
                max_line_size=HEADER_BYTES_MAX,
                max_field_size=HEADER_BYTES_MAX,
            )
        deadline = self._clock.monotonic() + LISTEN_WAIT_S
        while not await listens(self._port):
            if self._clock.monotonic() >= deadline:
                raise self._unreachable()
            await asyncio.sleep(LISTEN_POLL_S)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())

    async def teardown(self, context: HandlerContext) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._session is not None:
            await self._session.close()

    async def one(self, record: Record) -> list[Produce]:
        """POST one record; returns its outputs. Raises the error of any other outcome."""
        body = record.value if record.value is not None else b""
        headers, answer = await self._post(body, _headers(record) | {"Content-Type": self._content_type})
        if headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
            return []
        document = _json(answer)
        return _outputs(document.get("outputs")) if isinstance(document, dict) else []

    async def many(self, records: Sequence[Record]) -> list[list[Produce] | Exception] | None:
        """POST a batch; returns a result for each record. Raises if the request as a whole failed."""
        body = json.dumps({"records": [_document(record) for record in records]}).encode()
        _, answer = await self._post(body, {"Content-Type": "application/json"})
        if not answer.strip():
            return None
        document = _json(answer)
        results = document.get("results") if isinstance(document, dict) else None
        if not isinstance(results, list) or len(results) != len(records):
            raise OutputRefused(f"the response must hold `results`, a list of {len(records)}, one for each record")
        return [_result(result) for result in results]

    async def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[Mapping[str, str], bytes]:
        """POST until the handler answers; headers and body of a 2xx. Raises the error of another status, TimedOut and
        HandlerBroken."""
        assert self._session is not None, "call setup first"
        broken = 0
        while True:
            # Hours may have passed since the record was read: another worker may have handled it, and those behind it.
            check_wanted()
            limit = asyncio.timeout(self._timeout_s)
            try:
                async with (
                    limit,
                    self._session.post(self.url, data=body, headers=headers, allow_redirects=False) as got,
                ):
                    answer = await _body(got)
                    self.last_error = None
                    self._judge(got.status, got.headers.get("Retry-After"), answer)
                    return got.headers, answer
            except aiohttp.ClientConnectorError:
                self.last_error = self._unreachable()
                self._answered_well = False  # another one may come up in its place
                await asyncio.sleep(UNREACHABLE_PAUSE_S)
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
                # Also an ordinary race: the handler closes an idle connection just when it is used again.
                broken += 1
                if broken >= BROKEN_MAX:
                    raise HandlerBroken(f"{self.url} broke {broken} connections in the middle: {error!r}") from error
                await asyncio.sleep(UNREACHABLE_PAUSE_S)
            except aiohttp.ClientResponseError as error:
                if self._answered_well:
                    raise
                self._report(f"does not answer HTTP (with headers of at most {HEADER_BYTES_MAX >> 10} KiB)")
                raise NotHttp(f"{self.url} does not answer HTTP") from error  # what it says may be data
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise TimedOut(f"{self.url} did not answer within {self._timeout_s:g} s") from error
            begin_anew()

    def _judge(self, status: int, retry_after: str | None, body: bytes) -> None:
        """Raise the error of a status that is no success."""
        try:
            _raise_for_status(status, retry_after, body)
        except HttpStatus as error:
            if status in ENDPOINT_STATUSES and not self._answered_well:
                error.endpoint = True
                words = str(error).partition(":")[0]  # what follows may be data of a record
                self._report(f"answers {words}", "; a handler that means the record by this should answer 422")
            raise
        self._answered_well = True

    def _report(self, seen: str, hint: str = "") -> None:
        """Show that the handler is deployed wrong."""
        self.last_error = HandlerMisconfigured(
            f"{self.url} {seen}, and has answered no record with 2xx yet: correct `handler.http` or the handler's "
            f"container{hint}"
        )

    async def _look(self) -> None:
        """Notice a handler that went away and came back while there was nothing to send, until `teardown`."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                _, writer = await asyncio.open_connection(HOST, self._port)
                writer.close()
            except ConnectionRefusedError:
                self._answered_well = False
                continue
            except OSError:  # such as a full backlog: a handler that is busy was not replaced
                continue
            if isinstance(self.last_error, HandlerUnreachable):
                self.last_error = None  # the calls that waited may have ended unsent, and no other may come

    def _unreachable(self) -> HandlerUnreachable:
        return HandlerUnreachable(f"nothing listens on port {self._port} of the pod; check the handler's container")


async def listens(port: int) -> bool:
    """True if this port of the pod accepts connections."""
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    return True


def _raise_for_status(status: int, retry_after: str | None, body: bytes) -> None:
    """Raise the error of a status that is no success; 2xx means done."""
    if 200 <= status < 300:
        return
    try:
        words = HTTPStatus(status).phrase
    except ValueError:
        words = "unknown status"
    text = " ".join(body[:ERROR_BODY_BYTES_MAX].decode("utf-8", "replace").split())
    error = HttpStatus(status, f"{status} {words}{': ' if text else ''}{text}")
    seconds = _seconds(retry_after) if status in (429, 503) else None
    if seconds is not None:
        raise RetryAfter(seconds) from error
    raise error


def _seconds(retry_after: str | None) -> float | None:
    """Read Retry-After (RFC 9110), seconds or a date, as seconds."""
    if retry_after is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", retry_after.strip()):
        return float(retry_after)
    try:
        at = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, (at.astimezone(UTC) - datetime.now(UTC)).total_seconds())


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            answer.close()
            raise OutputRefused(f"the response is larger than {ANSWER_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)


def _headers(record: Record) -> dict[str, str]:
    headers = {
        "X-Kafka-Topic": record.topic,
        "X-Kafka-Partition": str(record.partition),
        "X-Kafka-Offset": str(record.offset),
        "X-Kafka-Timestamp": str(record.timestamp),
        "X-Kafka-Attempt": str(record.attempt),
    }
    if record.first_failed_at is not None:
        headers["X-Kafka-First-Failed-At"] = str(record.first_failed_at)
    if record.key is not None:
        headers["X-Kafka-Key"] = _encoded(record.key) or ""
    if record.value is None:
        headers["X-Kafka-Tombstone"] = "true"
    if record.headers:
        headers["X-Kafka-Headers"] = json.dumps(_encoded_headers(record.headers))
    return headers


def _document(record: Record) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "attempt": record.attempt,
        "firstFailedAt": record.first_failed_at,
        "key": _encoded(record.key),
        "value": _encoded(record.value),
        "headers": _encoded_headers(record.headers),
    }


def _encoded(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _encoded_headers(headers: Headers) -> list[list[str | None]]:
    return [[name, _encoded(value)] for name, value in headers]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise OutputRefused(f"the response is not valid JSON: {error}") from error


def _result(result: object) -> list[Produce] | Exception:
    """One entry of `results`: `status` as for a single record, `outputs`, and for errors `error` and `retryAfter`."""
    if not isinstance(result, dict) or type(result.get("status")) is not int:
        return OutputRefused("each entry of `results` must be an object with a `status`")
    after = result.get("retryAfter")
    try:
        body = str(result.get("error") or "").encode()
        _raise_for_status(result["status"], None if after is None else str(after), body)
        return _outputs(result.get("outputs"))
    except Exception as error:
        return error


def _outputs(outputs: object) -> list[Produce]:
    if outputs is None:
        return []
    if not isinstance(outputs, list):
        raise OutputRefused("`outputs` must be a list")
    return [_output(output) for output in outputs]


def _output(output: object) -> Produce:
    if not isinstance(output, dict) or not isinstance(output.get("topic"), str):
        raise OutputRefused("each output must be an object with a `topic`")
    headers = output.get("headers") or []
    if not isinstance(headers, list) or not all(isinstance(each, list) and len(each) == 2 for each in headers):
        raise OutputRefused("the `headers` of an output must be a list of pairs")
    return Produce(
        output["topic"],
        _decoded("value", output.get("value")),
        _decoded("key", output.get("key")),
        [(name, _decoded("header", value)) for name, value in headers],
    )


def _decoded(field: str, text: object) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError) as error:
        raise OutputRefused(f"the {field} of an output is not base64: {error}") from error
