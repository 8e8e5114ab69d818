"""The HTTP form against a real server: what is sent, what answers mean, and who is waited for."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from fleet_consumer.clock import SystemClock
from fleet_consumer.handlers.http import HandlerMisconfigured, HandlerUnreachable, HttpHandler, _seconds, listens
from fleet_consumer.handlers.loading import HandlerContext
from fleet_consumer.handlers.performing import Outputs, Performer, Result, checker
from fleet_consumer.record import Produce, Record, RetryAfter
from fleet_consumer.retry.failure import Failure, HttpStatus, classify, is_endpoints
from tests.support.waiting import eventually_async

CONTEXT = HandlerContext(namespace="default", name="shop", group_id="shop", revision="r", worker="shop-0")
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def record(offset: int = 7, **changes: Any) -> Record:
    fields: dict[str, Any] = {
        "topic": "orders",
        "partition": 3,
        "offset": offset,
        "timestamp": 5,
        "key": b"k\xff",
        "value": b"\x00v",
        "headers": [("trace", b"t\xfe"), ("none", None)],
    }
    return Record(**(fields | changes))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def serving(answer: Answer, port: int = 0) -> AsyncIterator[int]:
    application = web.Application(client_max_size=1 << 30)
    application.router.add_post("/records", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await asyncio.sleep(0.02)  # a probe's connection that was accepted just now is served, and so closed
        await runner.cleanup()


@asynccontextmanager
async def calling(
    port: int, *, batch: bool = False, timeout_s: float = 5, value_format: str = "Bytes"
) -> AsyncIterator[Callable[[list[Record]], Awaitable[list[Result]]]]:
    http = HttpHandler(
        port, "/records", batch=batch, timeout_s=timeout_s, value_format=value_format, clock=SystemClock()
    )
    handler = http.handler()
    await handler.setup(CONTEXT)
    performer = Performer(
        handler.call,
        batch=handler.batch,
        decode_key=None,
        decode_value=checker("value", value_format),
        outputs=Outputs(("out",)),
        timeout_s=None,
    )
    try:
        yield performer.perform_async
    finally:
        await handler.teardown(CONTEXT)


def kind(result: Result) -> str:
    if result.error is None:
        return str(len(result.produces))
    if isinstance(result.error, RetryAfter):
        return "retry after"
    verdict = classify(result.error)
    return f"{verdict.reason.value} {verdict.error_class}" if isinstance(verdict, Failure) else "drop"


async def test_record_is_sent_complete() -> None:
    seen: list[tuple[dict[str, str], bytes]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((dict(request.headers), await request.read()))
        return web.Response()

    async with serving(answer) as port, calling(port) as call:
        await call([record()])
        await call([record(key=None, value=None, headers=[], attempt=2, first_failed_at=99)])
    headers, body = seen[0]
    assert body == b"\x00v"
    assert headers["Content-Type"] == "application/octet-stream"
    assert (headers["X-Kafka-Topic"], headers["X-Kafka-Partition"], headers["X-Kafka-Offset"]) == ("orders", "3", "7")
    assert (headers["X-Kafka-Timestamp"], headers["X-Kafka-Attempt"]) == ("5", "0")
    assert base64.b64decode(headers["X-Kafka-Key"]) == b"k\xff"
    assert json.loads(headers["X-Kafka-Headers"]) == [["trace", base64.b64encode(b"t\xfe").decode()], ["none", None]]
    headers, body = seen[1]
    assert (body, headers["X-Kafka-Tombstone"], headers["X-Kafka-First-Failed-At"]) == (b"", "true", "99")
    assert not {"X-Kafka-Key", "X-Kafka-Headers"} & headers.keys()


@pytest.mark.parametrize(
    ("status", "headers", "becomes"),
    [
        (200, {}, "0"),
        (204, {}, "0"),
        (301, {"Location": "/elsewhere"}, "fatal HttpStatus"),
        (400, {}, "fatal HttpStatus"),
        (404, {}, "fatal HttpStatus"),
        (429, {}, "exhausted HttpStatus"),
        (429, {"Retry-After": "7"}, "retry after"),
        (503, {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"}, "retry after"),
        (503, {"Retry-After": "soon"}, "exhausted HttpStatus"),
        (500, {"Retry-After": "7"}, "exhausted HttpStatus"),
        (599, {}, "exhausted HttpStatus"),
    ],
)
async def test_status_decides(status: int, headers: dict[str, str], becomes: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, headers=headers, text=None if status == 204 else "the cause")

    async with serving(answer) as port, calling(port) as call:
        (result,) = await call([record()])
    assert kind(result) == becomes
    if "HttpStatus" in becomes:
        assert str(result.error).startswith(f"{status} ")
        assert str(result.error).endswith("the cause")


@pytest.mark.parametrize(
    ("status", "endpoints"),
    [
        *((status, True) for status in (301, 308, 401, 403, 404, 405, 407, 415, 426, 501)),
        *((status, False) for status in (400, 409, 413, 422, 429, 500)),
    ],
)
async def test_status_of_a_wrong_deployment_is_the_records_only_after_a_good_answer(
    status: int, endpoints: bool
) -> None:
    answers = [status, status, 204, status]

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=answers.pop(0))

    port, found = free_port(), []
    http = HttpHandler(port, "/records", batch=False, timeout_s=5, value_format="Bytes", clock=SystemClock())
    handler = http.handler()
    async with serving(answer, port):
        await handler.setup(CONTEXT)
        for number in range(4):
            try:
                await handler.call(record())
            except Exception as error:
                found.append(is_endpoints(error))
            reported = handler.last_error()
            assert isinstance(reported, HandlerMisconfigured) is (endpoints and number < 2)
            assert reported is None or f"/records answers {status} " in str(reported)
        await handler.teardown(CONTEXT)
    assert found == [endpoints, endpoints, False]


async def test_endpoint_that_comes_up_again_has_to_answer_well_again() -> None:
    """The handler's container was replaced while the worker went on."""
    answers = [204, 404]

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=answers.pop(0))

    port = free_port()
    http = HttpHandler(port, "/records", batch=False, timeout_s=5, value_format="Bytes", clock=SystemClock())
    handler = http.handler()
    async with serving(answer, port):
        await handler.setup(CONTEXT)
        await handler.call(record())
    waiting = asyncio.create_task(handler.call(record()))

    async def is_missed() -> bool:
        return isinstance(handler.last_error(), HandlerUnreachable)

    await eventually_async(is_missed, timeout_s=20, what="the handler to be missed")
    async with serving(answer, port):
        with pytest.raises(HttpStatus) as caught:
            await asyncio.wait_for(waiting, 20)
    assert caught.value.endpoint
    await handler.teardown(CONTEXT)


async def test_batch_that_meets_a_wrong_deployment_is_not_tried_record_by_record() -> None:
    calls = []

    async def answer(_: web.Request) -> web.Response:
        calls.append(1)
        return web.Response(status=401)

    async with serving(answer) as port, calling(port, batch=True) as call:
        results = await call([record(n) for n in range(3)])
    assert [each.error is not None and is_endpoints(each.error) for each in results] == [True] * 3
    assert len(calls) == 1


def test_retry_after_is_seconds_or_a_date() -> None:
    assert _seconds("7") == 7
    assert _seconds("Fri, 31 Dec 1999 23:59:59 GMT") == 0
    assert (_seconds("soon"), _seconds("-1"), _seconds("9" * 400), _seconds(None)) == (None, None, None, None)


async def test_outputs_come_back_as_json() -> None:
    output = {"topic": "out", "key": base64.b64encode(b"k").decode(), "value": None, "headers": [["h", "aGk="]]}

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"outputs": [output]})

    async with serving(answer) as port, calling(port) as call:
        (result,) = await call([record()])
    assert result.produces == (Produce("out", None, b"k", [("h", b"hi")]),)


UNUSABLE = {
    "outputs are no list": '{"outputs": 5}',
    "no topic": '{"outputs": [{}]}',
    "no base64": '{"outputs": [{"topic": "out", "value": "*"}]}',
    "no JSON": "{",
    "no object": '{"outputs": [5]}',
    "not a listed topic": '{"outputs": [{"topic": "elsewhere"}]}',
    "headers are no pairs": '{"outputs": [{"topic": "out", "headers": [["a"]]}]}',
    "nested without end": "[" * 100_000,
}


@pytest.mark.parametrize("body", UNUSABLE.values(), ids=UNUSABLE)
async def test_answer_that_cannot_be_written_fails_its_record(body: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body, content_type="application/json")

    async with serving(answer) as port, calling(port) as call:
        (result,) = await call([record()])
    assert kind(result).startswith("fatal")


async def test_other_bodies_mean_nothing() -> None:
    async def answer(request: web.Request) -> web.Response:
        json_body = (await request.read()) == b"json"
        return web.json_response({"ok": True}) if json_body else web.Response(text='{"outputs": 5}')

    async with serving(answer) as port, calling(port) as call:
        assert [kind(each) for each in await call([record(value=b"json")])] == ["0"]
        assert [kind(each) for each in await call([record(value=b"text")])] == ["0"]


async def test_batch_has_a_status_and_outputs_for_each_record() -> None:
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((await request.json())["records"])
        return web.json_response(
            {
                "results": [
                    {"status": 200, "outputs": [{"topic": "out", "value": "eA=="}]},
                    {"status": 422, "error": "no"},
                    {"status": 503, "retryAfter": 5},
                    {"status": 500},
                    {"outputs": []},
                ]
            }
        )

    async with serving(answer) as port, calling(port, batch=True) as call:
        results = await call([record(n) for n in range(5)])
    assert [kind(each) for each in results] == [
        "1",
        "fatal HttpStatus",
        "retry after",
        "exhausted HttpStatus",
        "fatal fleet_consumer.retry.failure.OutputRefused",
    ]
    assert isinstance(results[2].error, RetryAfter)
    assert base64.b64decode(seen[0][0]["value"]) == b"\x00v"
    assert [each["offset"] for each in seen[0]] == [0, 1, 2, 3, 4]


async def test_refused_batch_falls_back_to_single_records() -> None:
    async def answer(request: web.Request) -> web.Response:
        records = (await request.json())["records"]
        if any(each["offset"] == 1 for each in records):
            return web.Response(status=500 if len(records) > 1 else 400)
        return web.Response()

    async with serving(answer) as port, calling(port, batch=True) as call:
        results = await call([record(n) for n in range(3)])
    assert [kind(each) for each in results] == ["0", "fatal HttpStatus", "0"]


async def test_undecodable_value_is_never_sent_and_others_as_they_were() -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.content_type, await request.read()))
        return web.Response()

    async with serving(answer) as port, calling(port, value_format="Json") as call:
        (bad,) = await call([record(value=b"no json")])
        (good,) = await call([record(value=b'{"a":  1}')])
    assert kind(bad).startswith("undecodable")
    assert kind(good) == "0"
    assert seen == [("application/json", b'{"a":  1}')]


async def test_time_out_ends_the_request() -> None:
    async def answer(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async with serving(answer) as port, calling(port, timeout_s=0.1) as call:
        (result,) = await call([record()])
    assert kind(result) == "timeout Timeout"


async def test_handler_that_is_down_is_waited_for_and_fails_nothing() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response()

    port = free_port()
    http = HttpHandler(port, "/records", batch=False, timeout_s=0.2, value_format="Bytes", clock=SystemClock())
    handler = http.handler()
    async with serving(answer, port):
        await handler.setup(CONTEXT)
    waiting = asyncio.create_task(handler.call(record()))

    async def is_missed() -> bool:
        return isinstance(handler.last_error(), HandlerUnreachable)

    await eventually_async(is_missed, timeout_s=20, what="the handler to be missed")
    assert not waiting.done()
    async with serving(answer, port):
        assert await asyncio.wait_for(waiting, 20) == []
    assert handler.last_error() is None
    await handler.teardown(CONTEXT)


async def test_record_that_breaks_its_handler_fails_after_a_few_attempts() -> None:
    attempts = []

    async def answer(request: web.Request) -> web.Response:
        attempts.append(1)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with serving(answer) as port, calling(port) as call:
        (result,) = await call([record()])
    assert kind(result) == "exhausted fleet_consumer.handlers.http.HandlerBroken"
    assert len(attempts) == 3


async def test_closed_port_is_not_listening() -> None:
    assert not await listens(free_port())
