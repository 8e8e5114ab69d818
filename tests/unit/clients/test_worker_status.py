"""The operator's reader of worker pages, on a page that a worker wrote."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from fleet_consumer.handlers.executor import Work
from fleet_consumer.record import Record
from fleet_consumer.worker.breaker.pacing import BreakerSnapshot
from fleet_consumer.worker.member import WorkerState, member_document
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import REPLICAS_MAX
from fleet_operator.clients.worker_status import ANSWER_BYTES_MAX, WorkerStatusClient, parse_member
from fleet_operator.planning.observation import Gap, WorkerRejoin
from fleet_operator.planning.status.consumergroup import STUCK_MAX
from fleet_operator.planning.work import RecordInHand, WorkObservation

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
    assert seen.breaker == (state or "Closed")


def test_share_of_failures_alone_is_no_change() -> None:
    document = json.loads(told("Open"))
    document["breaker"]["failurePercent"] = 80.0
    assert parse_member("orders-0", json.dumps(document).encode()) == parse_member("orders-0", told("Open"))


def test_reasons_of_failures_are_read_in_steps() -> None:
    worker = WorkerState("a1b2c3d4e5", 300.0, "shop.orders.0a1b2c3d-0")
    worker.stats.error_classes.update({("exhausted", "shop.Refused"): 1000, ("breaker", ""): 1})
    seen = parse_member("orders-0", json.dumps(member_document(worker)).encode())
    assert seen is not None
    assert seen.failed == {("Exhausted", "shop.Refused"): 512, ("Breaker", ""): 1}


def test_work_of_a_worker_is_read() -> None:
    worker = WorkerState("a1b2c3d4e5", 300.0, "shop.orders.0a1b2c3d-0")
    worker.stats.done, worker.work = 4711, lambda: Work(12.25, slots=4)
    worker.in_hand = ((Record("orders", 3, 17, 0, None, None), SINCE),)
    seen = parse_member("orders-0", json.dumps(member_document(worker)).encode())
    assert seen is not None
    in_hand = (RecordInHand("orders", 3, 17, SINCE),)
    assert seen.work == WorkObservation(busy_seconds=12.25, records=4711, slots=4, in_hand=in_hand)


def test_worker_of_an_earlier_image_reports_no_work() -> None:
    document = json.loads(told(None))
    del document["work"]
    seen = parse_member("orders-0", json.dumps(document).encode())
    assert seen is not None
    assert seen.work is None


def test_work_alone_is_no_change() -> None:
    document = json.loads(told("Open"))
    document["work"] |= {"busySeconds": 80.0, "records": 9, "inHand": [in_hand()]}
    assert parse_member("orders-0", json.dumps(document).encode()) == parse_member("orders-0", told("Open"))


def in_hand(**changes: Any) -> dict[str, Any]:
    return {"topic": "orders", "partition": 0, "offset": 7, "since": SINCE} | changes


WORK: dict[str, Any] = {"busySeconds": 1.5, "records": 3, "slots": 2, "inHand": [in_hand()]}


@pytest.mark.parametrize(
    "changes",
    [
        {"busySeconds": -0.1},
        {"busySeconds": 10**400},
        {"busySeconds": "nan"},
        {"busySeconds": None},
        {"records": -1},
        {"records": 2**63},
        {"slots": 0},
        {"slots": 1025},
        {"inHand": {"a": 1}},
        {"inHand": [in_hand(topic="\u00e9")]},
        {"inHand": [in_hand(partition=-1)]},
        {"inHand": [in_hand(offset=-1)]},
        {"inHand": [in_hand(since=-1.0)]},
        {"inHand": [in_hand(since=None)]},
    ],
    ids=str,
)
def test_work_that_cannot_be_is_refused_like_any_other_foreign_page(changes: dict[str, Any]) -> None:
    assert parse_member("orders-0", json.dumps({"work": WORK}).encode()) is not None
    assert parse_member("orders-0", json.dumps({"work": WORK | changes}).encode()) is None


def test_first_hundred_records_in_hand_are_read() -> None:
    entries = [in_hand(topic="t" * 300, partition=number) for number in range(1000)]
    seen = parse_member("orders-0", json.dumps({"work": WORK | {"inHand": entries}}).encode())
    assert seen is not None
    assert seen.work is not None
    assert [each.partition for each in seen.work.in_hand] == list(range(100))
    assert len(seen.work.in_hand[0].topic) == 249


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
        b'{"memberId": {"a": 1}}',
        b'{"state": ["a"]}',
        b'{"stuck": [{"topic": "\xc3\xa9", "partition": 0, "offset": 1}]}',
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


HUGE = "9" * 400
"""Too large for a float."""


@pytest.mark.parametrize(
    "page",
    [
        f'{{"ended": {{"since": {HUGE}}}}}',
        f'{{"stuck": [{{"topic": "t", "partition": 0, "offset": 1, "since": -{HUGE}}}]}}',
        f'{{"skipped": [{{"topic": "t", "partition": 0, "offset": 1, "at": {HUGE}}}]}}',
    ],
    ids=lambda page: page.replace(HUGE, "HUGE"),
)
def test_number_that_no_float_holds_is_refused_like_any_other_foreign_page(page: str) -> None:
    assert parse_member("orders-0", page.encode()) is None


WIDE = "\U0001f600"
"""One such character makes all others of its text take four bytes."""
PLACE = {"partition": 2**30, "offset": 2**60, "first": 2**60, "next": 2**61, "since": 1.5}
SHOWN = {"reason": "R" * 125 + WIDE, "message": "m" * 500 + WIDE}
LONG_TEXTS = ("memberId", "instanceId", "assignor", "state", "revision")
OTHERS: dict[str, Any] = {
    "memberId": "x" * 600 + WIDE,
    "error": {"reason": "x" * 200 + WIDE, "message": WIDE * 2000},
    "ended": {"reason": "x" * 200 + WIDE, "message": WIDE * 2000},
    "failed": [{"reason": f"{n:0127}{WIDE}", "errorClass": f"{n:0127}{WIDE}", "records": 9} for n in range(100)],
    "rejoins": [{"before": 2**30, "generation": 2**30, "reason": WIDE * 300, "own": True}] * 100,
    "expired": [{**PLACE, "topic": f"{n:0249}"} for n in range(400)],
    "skipped": [{**PLACE, "topic": f"{n:0249}", "lastOffset": 2**62} for n in range(200)],
    "work": WORK | {"inHand": [{**PLACE, "topic": f"{n:0249}"} for n in range(200)]},
}
HOSTILE: dict[str, dict[str, Any]] = {
    "everything": OTHERS | {"stuck": [{**PLACE, "topic": f"{n:0249}", "message": "é" * 9} for n in range(1200)]},
    "many stuck partitions": {"stuck": [{**PLACE, "topic": "", "partition": n} for n in range(7000)]},
    "stuck partitions with strings": {
        "stuck": [{**PLACE, **SHOWN, "topic": f"{n:0249}", "partition": n} for n in range(900)]
    },
    "gaps": {"expired": [{**PLACE, "topic": f"{n:0249}"} for n in range(2000)]},
    "records in hand": {"work": WORK | {"inHand": [{**PLACE, "topic": f"{n:0249}"} for n in range(2000)]}},
    "skips": {"skipped": [{**PLACE, "topic": f"{n:0249}", "lastOffset": 2**62} for n in range(2000)]},
    "kinds of failures": {
        "failed": [{"reason": "r", "errorClass": f"{n:0127}{WIDE}", "records": 9} for n in range(5000)]
    },
    **{name: {name: "x" * 1_000_000 + WIDE} for name in LONG_TEXTS},
    "error": {"error": {"reason": "x" * 400_000 + WIDE, "message": "x" * 400_000 + WIDE}},
    "ended": {"ended": {"reason": "x" * 400_000 + WIDE, "message": "x" * 400_000 + WIDE}},
    "breaker": {"breaker": {"state": "x" * 1_000_000 + WIDE}},
}


@pytest.mark.parametrize("shape", HOSTILE)
def test_little_of_a_hostile_page_is_kept(shape: str) -> None:
    """A tenant may have hundreds of such pods, and the operator 512 MiB."""
    body = json.dumps(HOSTILE[shape], ensure_ascii=False).encode()
    assert ANSWER_BYTES_MAX // 2 < len(body) < ANSWER_BYTES_MAX
    parse_member("orders-0", body)  # so that only the report itself counts below
    tracemalloc.start()
    try:
        kept = parse_member("orders-0", body)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept is not None
    assert size < 768 * 1024, f"{size} bytes"


def stuck_at(partition: int, since: int, reason: str = "TopicNotFound") -> dict[str, Any]:
    told = {"reason": reason, "message": f"topic orders-out-{partition} does not exist"}
    return {"topic": "orders", "partition": partition, "offset": 7, "since": since, **told}


def test_oldest_stuck_partitions_keep_their_texts_and_the_others_what_decides() -> None:
    """Thousands of partitions wait for outputs that are missing; the status shows the oldest of them."""
    document = {"stuck": [stuck_at(partition, since=5000 - partition) for partition in range(2500)]}
    found = parse_member("orders-0", json.dumps(document).encode())
    assert found is not None
    shown, others = found.stuck[:STUCK_MAX], found.stuck[STUCK_MAX:]
    assert [(each.partition, each.message) for each in shown] == [
        (number, f"topic orders-out-{number} does not exist") for number in range(2499, 2499 - STUCK_MAX, -1)
    ]
    assert len({(each.topic, each.partition) for each in others}) == REPLICAS_MAX, "each counts against shrinking"
    assert {each.message for each in others} == {""}


def test_error_of_the_deployment_is_named_however_many_partitions_are_stuck_for_longer() -> None:
    document = {"stuck": [stuck_at(n, since=n) for n in range(2500)]}
    document["stuck"] += [stuck_at(2500 + n, since=2500 + n, reason=conditions.OUTPUT_NOT_LISTED) for n in range(9)]
    found = parse_member("orders-0", json.dumps(document).encode())
    assert found is not None
    assert [(each.partition, each.message) for each in found.stuck if each.reason == conditions.OUTPUT_NOT_LISTED] == [
        (2500, "topic orders-out-2500 does not exist")
    ]


def test_partition_that_is_stuck_for_several_reasons_hides_no_other() -> None:
    document = {"stuck": [stuck_at(n // 3, since=0) for n in range(3 * (REPLICAS_MAX + STUCK_MAX))]}
    found = parse_member("orders-0", json.dumps(document).encode())
    assert found is not None
    assert len({each.partition for each in found.stuck}) >= REPLICAS_MAX


def test_report_of_five_thousand_partitions_with_an_open_breaker_is_within_the_bound() -> None:
    """Workers of earlier images list each of them."""
    topic, numbers = "shop.team-billing.orders-enriched.v2.production", range(5000)
    offsets = {topic: {str(number): 123_456_789_012 for number in numbers}}
    document = json.loads(told("Open")) | {
        "assignment": {topic: list(numbers)},
        "positions": offsets,
        "committed": offsets,
        "paused": [{"topic": topic, "partition": number, "reasons": ["breaker"]} for number in numbers],
    }
    body = json.dumps(document).encode()
    assert len(body) <= ANSWER_BYTES_MAX
    found = parse_member("orders-0", body)
    assert found is not None
    assert found.breaker_open


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
