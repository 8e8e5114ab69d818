"""HTTP handlers: one POST per record or batch, to a container of the worker's pod.

For a single record, the body is the record's value, and everything else is in `X-Kafka-` headers; bytes in headers are
base64. For a batch, the body is `{"records": [...]}` and the response `{"results": [...]}`, with one result for each
record, in order. Outputs are JSON objects with base64 keys and values. `_raise_for_status` defines the meaning of a
status.

No record fails while the handler does not listen; the call waits until the handler listens.

Until the handler has returned its first 2xx, two kinds of responses do not fail a record, and the call is tried again.
One kind is a response that is not HTTP. The other is a status that points to a wrong path or a missing login
(`ENDPOINT_STATUSES`). Later, such responses fail the record. After a probe of the port or a call has found that nothing
listens, this rule applies again until the next 2xx. Probes run every `PROBE_INTERVAL_S`, even while there are no
records to send.

If the handler breaks the connection instead of answering, the call is repeated a few times before the record fails.
Without this limit, a record that kills its handler would block its partition permanently. A call is not sent if its
record no longer belongs to this worker (`check_wanted`).

Decision: docs/decisions/0010-handler-execution.md.
"""

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
from fleet_consumer.handlers.call import begin_next_call, check_wanted
from fleet_consumer.handlers.loading import Handler, HandlerContext
from fleet_consumer.record import Headers, Produce, Record, RetryAfter
from fleet_consumer.retry.failure import HttpStatus, NotHttp, OutputRefused, TimedOut

HOST: Final = "127.0.0.1"
"""Loopback address: the handler's container shares the pod's network with the worker, so no data leaves the pod."""

LISTEN_WAIT_S: Final = 10.0
"""Maximum seconds that `setup` waits for the handler to listen."""
LISTEN_POLL_S: Final = 0.2
UNREACHABLE_PAUSE_S: Final = 0.5
"""Seconds before another attempt to reach a handler that does not listen, or broke the connection."""
PROBE_INTERVAL_S: Final = 0.5
"""Seconds between probes of the handler's port; less than the kubelet needs to restart a container."""
HEADER_BYTES_MAX: Final = 64 << 10
"""Maximum size in bytes of a response's header or first line. Headers for traces and tokens exceed the usual 8 KiB."""
BROKEN_MAX: Final = 3
"""Number of connections that the handler may break during one call before the call's record fails."""
ANSWER_BYTES_MAX: Final = 64 << 20
"""Maximum size of a response in bytes; all its outputs are in memory together."""
ERROR_BODY_BYTES_MAX: Final = 512
"""Number of bytes of an error response's body that are kept in the failure's text."""

ENDPOINT_STATUSES: Final = frozenset(
    (*range(300, 400), 401, 403, 404, 405, 406, 407, 410, 411, 415, 421, 426, 501, 505, 511)
)
"""Statuses that point to a misconfigured handler if the handler has not returned 2xx yet: redirections, missing logins,
a wrong path, method or media type. After the first 2xx these statuses fail the record. All other statuses (such as 400,
413, 422) always fail the record."""

CONTENT_TYPES: Final = {
    "Bytes": "application/octet-stream",
    "String": "text/plain; charset=utf-8",
    "Json": "application/json",
}


class HandlerUnreachable(Exception):
    """The handler does not accept connections."""

    reason = "HandlerUnreachable"


class HandlerMisconfigured(Exception):
    """The handler has not returned 2xx yet. Its response is not HTTP, or points to a wrong path, method or login."""

    reason = "HandlerMisconfigured"


class HandlerBroken(Exception):
    """While handling one record, the handler repeatedly broke the connection instead of answering."""


class HttpHandler:
    """Calls one HTTP endpoint. Everything except `last_error` is used in the event loop of `setup`."""

    def __init__(self, port: int, path: str, *, batch: bool, timeout_s: float, value_format: str, clock: Clock) -> None:
        self.url = f"http://{HOST}:{port}{path}"
        self._port = port
        self._batch = batch
        self._timeout_s = timeout_s
        self._content_type = CONTENT_TYPES[value_format]
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._probing: asyncio.Task[None] | None = None
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
        if self._probing is None:
            self._probing = asyncio.create_task(self._probe())

    async def teardown(self, context: HandlerContext) -> None:
        if self._probing is not None:
            self._probing.cancel()
        if self._session is not None:
            await self._session.close()

    async def one(self, record: Record) -> list[Produce]:
        """POST one record. Returns its outputs, or raises the error with which the record fails."""
        body = record.value if record.value is not None else b""
        headers, answer = await self._post(body, _headers(record) | {"Content-Type": self._content_type})
        if headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
            return []
        document = _json(answer)
        return _outputs(document.get("outputs")) if isinstance(document, dict) else []

    async def many(self, records: Sequence[Record]) -> list[list[Produce] | Exception] | None:
        """POST a batch. Returns a result per record; None for an empty response. Raises if the whole request failed."""
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
        """POST until the handler answers. Returns the headers and body of a 2xx response; raises the error of any other
        response."""
        assert self._session is not None, "call setup first"
        broken = 0
        while True:
            # The wait for the handler may last for hours; in that time, another worker may handle this and later
            # records.
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
                self._answered_well = False  # another program may listen on this port later
                await asyncio.sleep(UNREACHABLE_PAUSE_S)
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
                # This may also be a race: the handler closed an idle connection just when the connection was used
                # again.
                broken += 1
                if broken >= BROKEN_MAX:
                    raise HandlerBroken(
                        f"{self.url} broke {broken} connections without an answer: {error!r}"
                    ) from error
                await asyncio.sleep(UNREACHABLE_PAUSE_S)
            except aiohttp.ClientResponseError as error:
                if self._answered_well:
                    raise
                self._report(f"does not answer HTTP (with headers of at most {HEADER_BYTES_MAX >> 10} KiB)")
                raise NotHttp(
                    f"{self.url} does not answer HTTP"
                ) from error  # without the response, which may hold data
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise TimedOut(f"{self.url} did not answer within {self._timeout_s:g} s") from error
            begin_next_call()

    def _judge(self, status: int, retry_after: str | None, body: bytes) -> None:
        """Raise the error for a status other than 2xx."""
        try:
            _raise_for_status(status, retry_after, body)
        except HttpStatus as error:
            if status in ENDPOINT_STATUSES and not self._answered_well:
                error.endpoint = True
                words = str(error).partition(":")[0]  # without the body, which may hold a record's data
                self._report(f"answers {words}", "; to refuse a record, the handler should answer 422")
            raise
        self._answered_well = True

    def _report(self, seen: str, hint: str = "") -> None:
        self.last_error = HandlerMisconfigured(
            f"{self.url} {seen}, and has answered no record with 2xx yet: correct `handler.http` or the handler's "
            f"container{hint}"
        )

    async def _probe(self) -> None:
        """Until `teardown`, detect restarts of the handler while there are no records to send."""
        while True:
            await asyncio.sleep(PROBE_INTERVAL_S)
            try:
                _, writer = await asyncio.open_connection(HOST, self._port)
                writer.close()
            except ConnectionRefusedError:
                self._answered_well = False
                continue
            except OSError:  # for example, the backlog of a busy handler is full
                continue
            if isinstance(self.last_error, HandlerUnreachable):
                self.last_error = None  # otherwise the error would be kept until the next call

    def _unreachable(self) -> HandlerUnreachable:
        return HandlerUnreachable(f"nothing listens on port {self._port} of the pod; check the handler's container")


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    return True


def _raise_for_status(status: int, retry_after: str | None, body: bytes) -> None:
    """Raise HttpStatus for a status other than 2xx, or RetryAfter for 429 and 503 with a valid header Retry-After."""
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
    """Return the delay in seconds that the header Retry-After requests (RFC 9110: seconds or a date); None if it is
    absent or invalid."""
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
    """Return the outputs or the error of one entry of a response's `results`."""
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
