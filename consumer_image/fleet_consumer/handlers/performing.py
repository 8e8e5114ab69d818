"""One handler call, from records to results, for every kind of handler: single or batch, synchronous or asynchronous.

This code runs in the handler's thread, because reading a result may run application code (a generator, a lazy
sequence). If the worker has ended the call or no longer wants it, an error is raised. Any other error becomes the
result of its record.
"""

import asyncio
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fleet_consumer.handlers.call import CURRENT_CALL, begin_next_call, check_wanted, end_forked_child
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Produce, Record
from fleet_consumer.retry.failure import OutputNotListed, OutputRefused, TimedOut, Undecodable, is_endpoints

Decoder = Callable[[bytes], Any]


def decoder(field: str, format_name: str) -> Decoder | None:
    """Return the decoder of a record's `field` ("key" or "value") for the format String or Json. Returns None for
    Bytes, so that the default format costs nothing.

    The decoder raises Undecodable, and is not called for null. JSON follows RFC 8259: UTF-8, without NaN and
    infinities.
    """
    if format_name == "Bytes":
        return None
    return _text(field) if format_name == "String" else _json(field)


def checker(field: str, format_name: str) -> Decoder | None:
    """Return a decoder for handlers with `takes_bytes`. It raises Undecodable for invalid bytes, and returns valid
    bytes unchanged."""
    decode = decoder(field, format_name)
    if decode is None:
        return None

    def check(raw: bytes) -> bytes:
        decode(raw)
        return raw

    return check


def _text(field: str) -> Decoder:
    def decode(raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Undecodable(field, "String (UTF-8)", f"{error.reason} at byte {error.start}") from error

    return decode


def _json(field: str) -> Decoder:
    def refuse_constant(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON value")

    standard = json.JSONDecoder(parse_constant=refuse_constant)
    parse, scan = standard.decode, standard.scan_once  # type: ignore[attr-defined]  # every decoder has it

    def decode(raw: bytes) -> Any:
        try:
            text = raw.decode("utf-8")
            try:
                value, end = scan(text, 0)
            except StopIteration:
                end = -1  # the text begins with white space, or has no value
            # `parse` would also search for white space before and after the value, which takes a quarter of its time.
            return value if end == len(text) else parse(text)
        except json.JSONDecodeError as error:
            raise Undecodable(field, "Json", f"{error.msg} at character {error.pos}") from error
        except UnicodeDecodeError as error:
            raise Undecodable(field, "Json", f"not UTF-8 at byte {error.start}") from error
        except (ValueError, RecursionError) as error:
            # RecursionError: the value is nested too deeply. ValueError: NaN, or an integer with more digits than
            # Python converts.
            raise Undecodable(field, "Json", str(error)) from error

    return decode


class Result(NamedTuple):
    """The outcome of one record: outputs to write, or an error."""

    produces: tuple[Produce, ...] = ()
    error: BaseException | None = None


class Outputs:
    """Converts a handler's result into records for `topics` (`handler.outputs`).

    The whole result is checked before any record is sent, so a partly invalid result writes nothing. If `topics` is
    None, only the caller checks the topics. For such a caller, an output to an unlisted topic is a configuration error,
    not an error of the record.
    """

    __slots__ = ("_topics",)

    def __init__(self, topics: Sequence[str] | None = None) -> None:
        self._topics = None if topics is None else frozenset(topics)

    def records_in(self, answer: object) -> tuple[Produce, ...]:
        """Return the records in a handler's result: None, one Produce, or any iterable of Produce. Raises OutputRefused
        for any other result and for unlisted topics. Also raises a generator's own errors."""
        if answer is None:
            return ()
        if type(answer) is Produce:
            # Fast path for the common case; it takes a quarter of the time of the code below. A function call per field
            # would double this time.
            topics, key, value = self._topics, answer.key, answer.value
            if (
                (topics is None or answer.topic in topics)
                and not answer.headers
                and ((type(value) is str and value.isascii()) or value is None or type(value) is bytes)
                and ((type(key) is str and key.isascii()) or key is None or type(key) is bytes)
            ):
                return (answer,)
        if isinstance(answer, Produce):
            return (self._checked(answer),)
        if isinstance(answer, str | bytes | bytearray | Mapping) or not isinstance(answer, Iterable):
            _close(answer)
            raise OutputRefused(f"the handler returned {_kind(answer)}; return None, a Produce, or several of them")
        return tuple(self._checked(item) for item in answer)

    def _checked(self, item: object) -> Produce:
        if not isinstance(item, Produce):
            raise OutputRefused(f"the handler returned {_kind(item)} among its outputs; each must be a Produce")
        if self._topics is not None and item.topic not in self._topics:
            raise OutputNotListed(not_listed(item.topic, self._topics))
        for field in ("key", "value"):
            given = getattr(item, field)
            if not isinstance(given, bytes | str | None):
                raise OutputRefused(f"the {field} of an output is {_kind(given)}; use bytes, str or None")
            if isinstance(given, str):
                _check_text(given, f"the {field} of an output")
        for header in item.headers:
            if not _is_header(header):
                raise OutputRefused("each header of an output must be a pair of a str and bytes (or None)")
            _check_text(header[0], "the name of an output's header")
        return item


class Performer:
    """Calls one handler with a record, or a list of records if `batch`; `call` may be a coroutine function.

    `timeout_s` (seconds) ends asynchronous calls only; None means that the handler enforces its own timeout.
    Thread-safe.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        *,
        batch: bool,
        decode_key: Decoder | None,
        decode_value: Decoder | None,
        outputs: Outputs,
        timeout_s: float | None,
    ) -> None:
        self._call = call
        self._batch = batch
        self._decode_key = decode_key
        self._decode_value = decode_value
        self._outputs = outputs
        self._timeout_s = timeout_s
        self._pid = os.getpid()

    def perform(self, records: Sequence[Record]) -> list[Result]:
        """Call a synchronous handler, and return one result for each record."""
        if not self._batch:
            return [self._decode(record) or self._alone(record) for record in records]
        kept, results, fit = self._prepare(records)
        found: list[Result] = []
        if fit:
            try:
                found = self._spread(self._call(list(fit)), len(fit))
            except BaseException as error:  # catches even SystemExit, which must not end the handler's thread
                end_forked_child(self._pid, error)
                if len(fit) == 1 or is_endpoints(error):
                    found = [Result(error=error)] * len(fit)
                else:
                    found = [self._again(record) for record in kept]
        return _filled(results, found)

    async def perform_async(self, records: Sequence[Record]) -> list[Result]:
        """Call an asynchronous handler. Raises CancelledError only if `HandlerCall.ended`."""
        if not self._batch:
            return [self._decode(record) or await self._alone_async(record) for record in records]
        kept, results, fit = self._prepare(records)
        found: list[Result] = []
        if fit:
            try:
                found = self._spread(await self._in_time(list(fit)), len(fit))
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                end_forked_child(self._pid, error)
                if len(fit) == 1 or is_endpoints(error):
                    found = [Result(error=error)] * len(fit)
                else:
                    found = [await self._again_async(each) for each in kept]
        return _filled(results, found)

    def _prepare(self, records: Sequence[Record]) -> tuple[list[Record], list[Result | None], list[Record]]:
        """Decode a batch. Returns three lists:

        - the decodable records, kept for a second call (`as_read` restores their bytes);
        - for each record of the batch, an error result, or None if the record was decoded;
        - the decoded records, for the handler.
        """
        # The bytes of a record that wraps a librdkafka message can be read again. Other records are copied before
        # decoding.
        copies = {place: as_read(each) for place, each in enumerate(records) if getattr(each, "_message", None) is None}
        results = [self._decode(record) for record in records]
        fit = [record for record, result in zip(records, results, strict=True) if result is None]
        if not copies:
            return fit, results, fit
        kept = [copies.get(place, each) for place, each in enumerate(records) if results[place] is None]
        return kept, results, fit

    def _again(self, kept: Record) -> Result:
        check_wanted()
        record = as_read(kept)
        begin_next_call([record])
        return self._decode(record) or self._alone([record])

    async def _again_async(self, kept: Record) -> Result:
        check_wanted()
        record = as_read(kept)
        begin_next_call([record])
        return self._decode(record) or await self._alone_async([record])

    def _alone(self, argument: Any) -> Result:
        try:
            return self._one(self._call(argument))
        except BaseException as error:
            end_forked_child(self._pid, error)
            return Result(error=error)

    async def _alone_async(self, argument: Any) -> Result:
        try:
            return self._one(await self._in_time(argument))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            end_forked_child(self._pid, error)
            return Result(error=error)

    async def _in_time(self, argument: Any) -> Any:
        """Await the handler's result. Raises TimedOut only if the timeout ended the call.

        The handler runs in our task. Like older libraries, it may call the task's `cancel()` without a later
        `uncancel()`. `asyncio.timeout` would then treat its own cancellation as a cancellation by the handler. So the
        task's cancellation count is ignored here: the timeout and `HandlerCall.ended` show what ended the call. The
        count is restored afterwards.
        """
        task = asyncio.current_task()
        assert task is not None, "a handler runs in a task"
        before = task.cancelling()
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                return await self._call(argument)
        except TimeoutError as error:
            if limit.expired():
                raise self._timed_out() from error
            raise
        except asyncio.CancelledError as error:
            if _ended():
                raise
            if limit.expired():
                raise self._timed_out() from error
            raise HandlerCancelled("the handler raised CancelledError although its call was not cancelled") from error
        finally:
            if task.cancelling() > before and not _ended():
                await _uncancel(task, before)

    def _timed_out(self) -> TimedOut:
        return TimedOut(f"the handler did not answer within {self._timeout_s:g} s")

    def _one(self, answer: object) -> Result:
        if self._batch:
            return self._spread(answer, 1)[0]
        return Result(self._outputs.records_in(answer))

    def _spread(self, answer: object, count: int) -> list[Result]:
        """Return the results of a batch handler. Raises OutputRefused unless there is one result for each record."""
        if answer is None:
            return [Result()] * count
        if isinstance(answer, str | bytes | Produce | dict) or not isinstance(answer, Iterable):
            raise OutputRefused(
                f"the batch handler returned a value of type {type(answer).__name__}; "
                "return None, or a list with one result for each record"
            )
        parts = list(answer)
        if len(parts) != count:
            raise OutputRefused(
                f"the batch handler returned {len(parts)} results for {count} records; return one for each, in order"
            )
        return [self._part(part) for part in parts]

    def _part(self, part: object) -> Result:
        if isinstance(part, BaseException):
            return Result(error=part)
        try:
            return Result(self._outputs.records_in(part))
        except BaseException as error:
            end_forked_child(self._pid, error)
            return Result(error=error)

    def _decode(self, record: Record) -> Result | None:
        """Decode key and value in place. Returns an error result if decoding fails, otherwise None."""
        if self._decode_key is None and self._decode_value is None:
            return None
        try:
            key, value = record.key, record.value
            if self._decode_key is not None and key is not None:
                key = self._decode_key(key)
            if self._decode_value is not None and value is not None:
                value = self._decode_value(value)
        except Exception as error:
            return Result(error=error)
        record.key, record.value = key, value
        return None


def not_listed(topic: str, listed: Collection[str]) -> str:
    names = ", ".join(sorted(listed)) or "none are"
    return (
        f"topic {topic!r} is not among the listed outputs ({names}); add it to `handler.outputs` (--output in a local "
        "run), or correct the handler"
    )


class HandlerCancelled(Exception):
    """An asynchronous handler raised CancelledError although its call was not cancelled."""


def _is_header(header: object) -> bool:
    return (
        isinstance(header, tuple | list)
        and len(header) == 2
        and isinstance(header[0], str)
        and isinstance(header[1], bytes | None)
    )


def _check_text(text: str, name: str) -> None:
    """Raise OutputRefused for a lone surrogate, which JSON with a truncated escape can contain. In a key or value, a
    lone surrogate makes librdkafka's binding raise an error; in a header's name, it crashes the process."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OutputRefused(f"{name} cannot be written as UTF-8: {error.reason} at character {error.start}") from error


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def _close(answer: Any) -> None:
    """Close a coroutine that nobody awaits, to avoid Python's warning."""
    close = getattr(answer, "close", None)
    if hasattr(answer, "__await__") and callable(close):
        close()


def _ended() -> bool:
    call = CURRENT_CALL.get()
    return call is not None and call.ended


async def _uncancel(task: asyncio.Task[Any], count: int) -> None:
    """Undo the task's cancellations above `count`, including a cancellation that is due at the next await."""
    while task.cancelling() > count:
        task.uncancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        if _ended():
            raise


def _filled(results: list[Result | None], found: Sequence[Result]) -> list[Result]:
    rest = iter(found)
    return [result if result is not None else next(rest) for result in results]
