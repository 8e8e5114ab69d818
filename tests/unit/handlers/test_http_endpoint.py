"""The HTTP form's endpoint: what does not speak HTTP, and containers that are replaced while nobody calls them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fleet_consumer.clock import SystemClock
from fleet_consumer.handlers.http import HandlerMisconfigured, HandlerUnreachable, HttpHandler
from fleet_consumer.handlers.loading import Handler, HandlerContext
from fleet_consumer.record import Record
from fleet_consumer.retry.failure import Failure, classify, is_endpoints
from tests.support.waiting import eventually_async
from tests.unit.handlers.test_http import free_port

CONTEXT = HandlerContext(namespace="default", name="shop", group_id="shop", revision="r", worker="shop-0")
WELL = b"HTTP/1.1 204 No Content\r\n\r\n"
NO_LOGIN = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"


@asynccontextmanager
async def answering(port: int, *answers: bytes) -> AsyncIterator[list[bytes]]:
    """A server that writes these bytes for request after request, and then nothing but 204. An empty answer breaks
    the connection. Yields what it sees: an empty entry for each connection, and the head of each request."""
    left, seen = list(answers), list[bytes]()
    writers = set[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        seen.append(b"")
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(1)
                seen.append(head)
                answer = left.pop(0) if left else WELL
                writer.write(answer)
                await writer.drain()
                if not answer.startswith(b"HTTP/1.1"):
                    break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield seen
    finally:
        server.close()
        for _ in range(2):
            await asyncio.sleep(0.02)  # a connection that was accepted just now begins to be served
            for writer in writers:
                writer.transport.abort()
        await server.wait_closed()


def made_for(port: int) -> HttpHandler:
    return HttpHandler(port, "/records", batch=False, timeout_s=5, value_format="Bytes", clock=SystemClock())


@asynccontextmanager
async def calling(port: int) -> AsyncIterator[Handler]:
    handler = made_for(port).handler()
    await handler.setup(CONTEXT)
    try:
        yield handler
    finally:
        await handler.teardown(CONTEXT)


async def error_of(handler: Handler) -> Exception | None:
    try:
        await handler.call(Record("orders", 3, 7, 5, b"k", b"v"))
    except Exception as error:
        return error
    return None


NO_HTTP = {
    "TLS": b"\x15\x03\x01\x00\x02\x02\x46",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "redis": b"-ERR unknown command 'POST'\r\n",
    "gRPC": b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00",
    "headers without end": b"HTTP/1.1 200 OK\r\nX-Trace: " + b"a" * (1 << 20) + b"\r\n\r\n",
}


@pytest.mark.parametrize("answer", NO_HTTP.values(), ids=NO_HTTP)
async def test_answer_that_is_no_http_is_the_deployments_until_a_record_was_answered_well(answer: bytes) -> None:
    port = free_port()
    async with answering(port, answer, answer, WELL, answer), calling(port) as handler:
        for _ in range(2):
            error = await error_of(handler)
            assert error is not None
            assert is_endpoints(error)
            reported = handler.last_error()
            assert isinstance(reported, HandlerMisconfigured)
            assert "does not answer HTTP" in str(reported)
        assert await error_of(handler) is None
        assert handler.last_error() is None
        error = await error_of(handler)
        assert error is not None
        assert not is_endpoints(error)
        verdict = classify(error)
        assert isinstance(verdict, Failure)
        assert verdict.reason.value == "exhausted"
        assert handler.last_error() is None


async def test_answer_with_large_headers_is_taken() -> None:
    answer = b"HTTP/1.1 204 No Content\r\nX-Trace: " + b"a" * 60_000 + b"\r\n\r\n"
    port = free_port()
    async with answering(port, answer) as seen, calling(port) as handler:
        assert await error_of(handler) is None
    assert len(list(filter(None, seen))) == 1


async def test_handler_that_was_replaced_while_nobody_called_it_has_to_answer_well_again() -> None:
    port = free_port()
    http = made_for(port)
    handler = http.handler()

    async def is_seen_to_be_away() -> bool:
        return not http._answered_well

    async with answering(port):
        await handler.setup(CONTEXT)
        assert await error_of(handler) is None
        assert http._answered_well
    # A container takes longer to start again than the next probe is away.
    await eventually_async(is_seen_to_be_away, timeout_s=20, what="a probe of the port")
    async with answering(port, NO_LOGIN, WELL, NO_LOGIN):
        error = await error_of(handler)
        assert error is not None
        assert is_endpoints(error)
        assert isinstance(handler.last_error(), HandlerMisconfigured)
        assert await error_of(handler) is None
        error = await error_of(handler)
        assert error is not None
        assert not is_endpoints(error)
    await handler.teardown(CONTEXT)


async def test_status_is_the_records_after_a_broken_connection_too() -> None:
    """Handlers close idle connections just as they are used again: a partition would stand for a record's 404."""
    port = free_port()
    async with answering(port, WELL, b"", NO_LOGIN), calling(port) as handler:
        assert await error_of(handler) is None
        error = await error_of(handler)
        assert error is not None
        assert not is_endpoints(error)


async def test_status_is_the_records_though_each_answer_ends_its_connection() -> None:
    """A handler without keep-alive is no other handler at each connection."""
    ended = b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    well = WELL.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    port = free_port()
    async with answering(port, well, ended) as seen, calling(port) as handler:
        assert await error_of(handler) is None
        before = len(seen)

        async def was_probed() -> bool:
            return len(seen) >= before + 2

        await eventually_async(was_probed, timeout_s=20, what="two probes of the port")
        error = await error_of(handler)
        assert error is not None
        assert not is_endpoints(error)


async def test_handler_that_is_back_is_not_missed_any_more_though_no_call_waits_for_it() -> None:
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        async with answering(port):
            handler = await stack.enter_async_context(calling(port))
        waiting = asyncio.create_task(error_of(handler))

        async def is_missed() -> bool:
            return isinstance(handler.last_error(), HandlerUnreachable)

        async def is_well() -> bool:
            return handler.last_error() is None

        await eventually_async(is_missed, timeout_s=20, what="the handler to be missed")
        waiting.cancel()
        async with answering(port):
            await eventually_async(is_well, timeout_s=20, what="the handler to be found again")


async def test_looks_at_the_port_end_with_teardown() -> None:
    port, before = free_port(), asyncio.all_tasks()
    async with answering(port):
        async with calling(port):
            pass

        async def have_ended() -> bool:
            return not any("_probe" in repr(task.get_coro()) for task in asyncio.all_tasks() - before)

        await eventually_async(have_ended, timeout_s=20, what="the probes to end")
