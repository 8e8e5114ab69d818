"""The operator's reader of worker pages, on a page that a worker wrote."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from fleet_consumer.worker.breaker.pacing import BreakerSnapshot
from fleet_consumer.worker.member import WorkerState, member_document
from fleet_operator.clients.worker_status import ANSWER_BYTES_MAX, WorkerStatusClient, parse_member
from fleet_operator.planning.observation import BreakerObservation, Gap, WorkerRejoin

SINCE = 1_700_000_000.0


def told(state: str | None) -> bytes:
    """The page of a worker whose breaker is in this state; None for one that keeps no budget."""
    worker = WorkerState("a1b2c3d4e5", 300.0, "shop.orders.0a1b2c3d-0")
    if state is not None:
        worker.breaker = lambda: BreakerSnapshot(state, SINCE, 66.66)
    return json.dumps(member_document(worker)).encode()


@pytest.mark.parametrize(("state", "is_open"), [("Open", True), ("HalfOpen", True), ("Closed", False), (None, False)])
def test_breaker_of_a_worker_is_parsed_from_its_answer(state: str | None, is_open: bool) -> None:
    seen = parse_member("orders-0", told(state))
    assert seen is not None
    assert seen.breaker_open is is_open
    assert seen.breaker == (None if state is None else BreakerObservation(state=state, since=SINCE))


def test_share_of_failures_alone_is_no_change() -> None:
    seen = parse_member("orders-0", told("Open"))
    assert seen is not None
    assert seen.breaker is not None
    assert seen.breaker.failure_percent == 66.7
    assert replace(seen, breaker=replace(seen.breaker, failure_percent=80.0)) == seen


def test_reasons_of_failures_are_read_in_steps() -> None:
    worker = WorkerState("a1b2c3d4e5", 300.0, "shop.orders.0a1b2c3d-0")
    worker.failed = lambda: {("exhausted", "shop.Refused"): 1000, ("breaker", ""): 1}
    seen = parse_member("orders-0", json.dumps(member_document(worker)).encode())
    assert seen is not None
    assert seen.failed == {("Exhausted", "shop.Refused"): 512, ("Breaker", ""): 1}


def test_worker_of_an_earlier_version_reports_no_reasons() -> None:
    document = json.loads(told("Open"))
    del document["failed"]
    seen = parse_member("orders-0", json.dumps(document).encode())
    assert seen is not None
    assert seen.failed == {}


def test_rejoins_are_read_and_cut() -> None:
    entry = {"before": 3, "generation": 4, "reason": "x" * 600, "own": True}
    seen = parse_member("orders-0", json.dumps({"rejoins": [entry] * 50}).encode())
    assert seen is not None
    assert len(seen.rejoins) == 20
    assert seen.rejoins[-1] == WorkerRejoin(3, 4, "x" * 255, own=True)
    earlier = parse_member("orders-0", b"{}")
    assert earlier is not None
    assert earlier.rejoins == ()
    assert not earlier.revoking
    revoking = parse_member("orders-0", b'{"revoking": true}')
    assert revoking is not None
    assert revoking.revoking


@pytest.mark.parametrize(
    "body",
    [
        b'{"rejoins": {"a": 1}}',
        b'{"rejoins": [{"before": 1}]}',
        b"",
        b"[]",
        b'{"breaker": 7}',
        b'{"breaker": {"since": "x"}}',
        b'{"failed": [{"records": 1}]}',
        b"\xff",
    ],
)
def test_foreign_page_yields_nothing(body: bytes) -> None:
    assert parse_member("orders-0", body) is None


def test_answer_that_no_status_can_hold_yields_nothing() -> None:
    """The page comes from a process that runs an application's code."""
    failed = [{"reason": "exhausted", "errorClass": "E", "records": 10**30}]
    assert parse_member("orders-0", json.dumps({"failed": failed}).encode()) is None
    stuck = [{"topic": "t" * 5000, "partition": 0, "offset": 1, "reason": "Slow"}]
    found = parse_member("orders-0", json.dumps({"stuck": stuck}).encode())
    assert found is not None
    assert len(found.stuck[0].topic) == 249


@contextlib.asynccontextmanager
async def worker_answering(pieces: Sequence[bytes]) -> AsyncIterator[int]:
    """The port of a server whose answer comes in these pieces, each after the one before it was sent."""

    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await answer(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        served.set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % sum(map(len, pieces)))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)  # a round trip

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await served.wait()


async def report_of(pieces: Sequence[bytes]) -> object:
    client = WorkerStatusClient()
    await client.open()
    async with worker_answering(pieces) as port:
        report = await client.member("orders-0", "127.0.0.1", port, "uid-1")
        await client.close()
        return report


def test_gaps_in_retry_topics_are_read() -> None:
    gap = {"topic": "_fleet.g.retry.5s", "partition": 1, "first": 7, "next": 12}
    found = parse_member("orders-0", json.dumps({"expired": [gap]}).encode())
    assert found is not None
    assert found.expired == (Gap("_fleet.g.retry.5s", 1, 7, 12),)
    assert parse_member("orders-0", json.dumps({"expired": [{**gap, "next": 2**70}]}).encode()) is None


async def test_report_that_comes_in_pieces_is_read_to_its_end() -> None:
    page = told("Open") + b" " * 20_000
    assert await report_of([page[:50], page[50:14_480], page[14_480:]]) == parse_member("orders-0", page)


async def test_report_beyond_the_bound_is_dropped() -> None:
    page = told("Open")
    assert await report_of([page, b" " * (ANSWER_BYTES_MAX - len(page))]) is not None
    assert await report_of([page, b" " * (ANSWER_BYTES_MAX - len(page) + 1)]) is None
