"""One handler call, whatever its kind: a result for each record, and nothing raises out of it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from fleet_consumer.handlers.call import CURRENT_CALL, HandlerCall
from fleet_consumer.handlers.performing import Outputs, Performer, Result, checker, decoder
from fleet_consumer.record import Fatal, Produce, Record, RetryAfter, Skip
from fleet_consumer.retry.failure import Failure, OutputRefused, classify


def record(offset: int, value: bytes | None = b"{}") -> Record:
    return Record("t", 0, offset, 5, b"k", value)


def performer(call: Any, *, batch: bool = False, value_format: str = "Bytes", timeout_s: float | None = 5) -> Performer:
    return Performer(
        call,
        batch=batch,
        decode_key=None,
        decode_value=decoder("value", value_format),
        outputs=Outputs(("out",)),
        timeout_s=timeout_s,
    )


def kinds(results: list[Result]) -> list[str]:
    """Each result in a word: how many outputs, or what becomes of the record."""
    words = []
    for result in results:
        verdict = classify(result.error) if result.error is not None else None
        words.append(
            verdict.reason.value
            if isinstance(verdict, Failure)
            else str(len(result.produces))
            if verdict is None
            else "drop"
        )
    return words


def test_single_record_becomes_outputs_or_an_error() -> None:
    assert kinds(performer(lambda r: None).perform([record(0)])) == ["0"]
    assert kinds(performer(lambda r: Produce("out", r.value)).perform([record(0)])) == ["1"]
    assert kinds(performer(lambda r: 1 / 0).perform([record(0)])) == ["exhausted"]
    assert kinds(performer(lambda r: Produce("elsewhere", b"")).perform([record(0)])) == ["fatal"]

    def ends(_: Record) -> None:
        raise SystemExit(3)

    assert kinds(performer(ends).perform([record(0)])) == ["exhausted"]


def test_batch_has_a_result_for_each_record() -> None:
    answer = [
        None,
        Produce("out", b"x"),
        [Produce("out", b"x")] * 2,
        Fatal("no"),
        Skip("no"),
        RetryAfter(3),
        KeyError(),
    ]
    records = [record(n) for n in range(len(answer))]
    assert kinds(performer(lambda rs: answer, batch=True).perform(records)) == [
        *("0", "1", "2", "fatal", "drop", "exhausted", "exhausted")
    ]
    assert kinds(performer(lambda rs: None, batch=True).perform(records)) == ["0"] * 7
    assert kinds(performer(lambda rs: (each for each in answer), batch=True).perform(records))[3] == "fatal"


@pytest.mark.parametrize(("answer", "named"), [({"total": 3}, "dict"), (bytearray(b"x"), "bytearray")])
def test_result_that_only_looks_like_several_outputs_is_named(answer: object, named: str) -> None:
    with pytest.raises(OutputRefused, match=f"the handler returned a value of type {named}; return None"):
        Outputs(["out"]).records_in(answer)


def test_bad_part_of_a_batch_is_its_own_records_failure() -> None:
    answer = [Produce("elsewhere", b"x"), None, 5]
    assert kinds(performer(lambda rs: answer, batch=True).perform([record(n) for n in range(3)])) == [
        *("fatal", "0", "fatal")
    ]


@pytest.mark.parametrize("wrong", [[None], Produce("out", b"x"), 5, {"a": 1}, "text"])
def test_batch_answer_of_the_wrong_shape_falls_back_to_single_records(wrong: object) -> None:
    calls = []

    def handle_batch(records: list[Record]) -> object:
        calls.append(len(records))
        return wrong if len(records) > 1 else [Produce("out", b"x")]

    assert kinds(performer(handle_batch, batch=True).perform([record(n) for n in range(3)])) == ["1"] * 3
    assert calls == [3, 1, 1, 1]


def test_batch_that_raises_falls_back_and_only_the_culprit_fails() -> None:
    def handle_batch(records: list[Record]) -> None:
        if any(each.offset == 1 for each in records):
            raise ValueError("spoilt")

    call = HandlerCall([record(0)], 1)
    CURRENT_CALL.set(call)
    results = performer(handle_batch, batch=True).perform([record(n) for n in range(3)])
    CURRENT_CALL.set(None)
    assert kinds(results) == ["0", "exhausted", "0"]
    assert [each.offset for each in call.records] == [2], "each single call is a call of its own to the watchdog"


def test_undecodable_records_never_reach_a_batch() -> None:
    seen: list[Any] = []
    records = [record(0), record(1, b"no json"), record(2, None), record(3, b'{"a": 1}')]
    results = performer(lambda rs: seen.extend(r.value for r in rs), batch=True, value_format="Json").perform(records)
    assert kinds(results) == ["0", "undecodable", "0", "0"]
    assert seen == [{}, None, {"a": 1}]


def test_batch_of_undecodable_records_only_is_no_call() -> None:
    assert kinds(performer(lambda rs: 1 / 0, batch=True, value_format="Json").perform([record(0, b"x")])) == [
        "undecodable"
    ]


async def test_asynchronous_call_is_cancelled_and_reported_at_its_time_out() -> None:
    ended = []

    async def handle(_: Record) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    (result,) = await performer(handle, timeout_s=0.05).perform_async([record(0)])
    assert result.error is not None
    verdict = classify(result.error)
    assert isinstance(verdict, Failure)
    assert (verdict.reason.value, verdict.error_class) == ("timeout", "Timeout")
    assert ended == [True]


async def test_time_out_of_the_handlers_own_is_an_ordinary_error() -> None:
    async def handle(_: Record) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    assert kinds(await performer(handle).perform_async([record(0)])) == ["exhausted"]


async def test_handler_that_raises_cancelled_error_on_its_own_only_fails_its_record() -> None:
    async def handle(_: Record) -> None:
        raise asyncio.CancelledError

    assert kinds(await performer(handle).perform_async([record(0)])) == ["exhausted"]


async def test_cancelling_from_outside_ends_the_call_without_a_result() -> None:
    async def handle(_: Record) -> None:
        await asyncio.Event().wait()

    call = HandlerCall([record(0)], 0)
    CURRENT_CALL.set(call)
    task = asyncio.create_task(performer(handle).perform_async([record(0)]))
    await asyncio.sleep(0)
    call.ended = True
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leaves_a_cancellation_behind() -> None:
    """As libraries did that cancelled their caller for a time-out of their own, before tasks counted."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def test_call_times_out_also_when_a_cancellation_was_left_behind() -> None:
    async def handle(_: Record) -> None:
        await leaves_a_cancellation_behind()
        await asyncio.Event().wait()

    task = asyncio.current_task()
    assert task is not None
    assert kinds(await performer(handle, timeout_s=0.05).perform_async([record(0)])) == ["timeout"]
    assert task.cancelling() == 0


async def test_handler_that_cancels_itself_has_failed() -> None:
    async def handle(_: Record) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    assert kinds(await performer(handle).perform_async([record(0)])) == ["exhausted"]


async def test_cancellation_that_one_record_left_behind_does_not_meet_the_next() -> None:
    async def handle_batch(records: list[Record]) -> None:
        if len(records) > 1:
            raise ConnectionError("down")
        await asyncio.sleep(0)
        if records[0].offset == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()  # and ends before it comes into effect

    results = await performer(handle_batch, batch=True).perform_async([record(n) for n in range(3)])
    assert kinds(results) == ["0", "0", "0"]


async def test_asynchronous_batch_falls_back_when_it_takes_too_long() -> None:
    async def handle_batch(records: list[Record]) -> None:
        if any(each.offset == 1 for each in records):
            await asyncio.Event().wait()

    results = await performer(handle_batch, batch=True, timeout_s=0.05).perform_async([record(n) for n in range(3)])
    assert kinds(results) == ["0", "timeout", "0"]


def test_undecodable_record_is_refused_with_its_bytes_kept() -> None:
    check = checker("value", "Json")
    assert check is not None
    assert check(b'{"a":  1}') == b'{"a":  1}'
    assert checker("value", "Bytes") is None
