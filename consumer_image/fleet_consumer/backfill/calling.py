"""Callers for every kind of handler (synchronous, batch, threads, event loop, HTTP), used in the handler's process.

`Caller.handle` handles a list of records in order until it must stop, and returns an answer for each handled record.
The worker's consume loop is not used, because a Backfill has no commits and no poll interval.
"""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final

from fleet_consumer.backfill.call_slots import CallSlots
from fleet_consumer.clock import Clock
from fleet_consumer.contract.worker_config import WorkerConfig
from fleet_consumer.handlers.call import CURRENT_CALL, HandlerCall, end_forked_child
from fleet_consumer.handlers.configured import make_executor, make_performer
from fleet_consumer.handlers.executor import Executor
from fleet_consumer.handlers.key_order import KeyOrder
from fleet_consumer.handlers.loading import Handler
from fleet_consumer.handlers.performing import Outputs, Result, decoder
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Produce, Record

Answer = tuple[Produce, ...] | BaseException
"""The outputs of a record, or its error."""
Ends = Callable[[BaseException], bool]
"""Returns True for an error after which the task must end, so that no later record is handled."""

SINGLE_AT_ONCE: Final = 500
"""Maximum number of single records handled between two checks of the rate limit."""
CLOCK_EVERY: Final = 8
"""Number of single records between two reads of the clock. One read costs one percent of a 15 µs handler call."""
ROUNDS: Final = 32
"""List length for `handle`, as a multiple of the number of concurrent calls. At the end of a list, free slots idle
until the last call returns, so short lists waste time."""


class Caller(ABC):
    """Calls a handler. `at_once` is the maximum length of a list for `handle`; if `mixed`, the list may contain records
    from several partitions."""

    at_once = SINGLE_AT_ONCE
    mixed = False

    @abstractmethod
    def handle(self, records: list[Record], deadline: float, ends: Ends) -> list[Answer]:
        """Handle these records; records with the same key are handled in order. The handler may modify the records.

        Handling stops once `deadline` (monotonic seconds) has passed, or an error `ends` the task. Returns one answer
        for each record up to that point, in order and without a gap.
        """

    def call(self, hook: Callable[..., Any], *arguments: Any) -> None:
        """Run `hook`, the handler's `setup` or `teardown`, and wait for it. Raises the hook's errors."""
        hook(*arguments)

    def close(self) -> None:  # noqa: B027  # most have no threads
        """Stop the threads."""


def make_caller(config: WorkerConfig, handler: Handler, call_slots: CallSlots, clock: Clock) -> Caller:
    """Return a caller for this handler, and start the caller's threads."""
    settings, batch = config.handler, config.consumer.max_poll_records if handler.batch else 0
    outputs = Outputs(settings.outputs)
    if batch and settings.concurrency == 1 and not handler.asynchronous:
        return Batches(make_performer(settings, handler, outputs).perform, batch, call_slots)
    executor = make_executor(settings, handler, clock, outputs)
    if executor is None:
        decoders = decoder("key", settings.decode.key), decoder("value", settings.decode.value)
        return OneByOne(handler, decoders, outputs, call_slots, clock)
    executor.start()
    return Concurrent(executor, batch, call_slots, clock)


class OneByOne(Caller):
    """Calls a synchronous handler with single records, on the thread that calls `handle`."""

    def __init__(
        self, handler: Handler, decoders: tuple[Any, Any], outputs: Outputs, call_slots: CallSlots, clock: Clock
    ) -> None:
        self._call = handler.call
        self._decode_key, self._decode_value = decoders
        self._outputs = outputs
        self._call_slots = call_slots
        self._now = clock.monotonic
        self._pid = os.getpid()
        # Not empty only in a child process that the handler has forked. The child must not handle the remaining
        # records.
        self._forked: list[bool] = []
        os.register_at_fork(after_in_child=lambda: self._forked.append(True))

    def handle(self, records: list[Record], deadline: float, ends: Ends) -> list[Answer]:
        # The hot loop: local names save attribute lookups, and the clock is read once per CLOCK_EVERY records.
        call, now, outputs_of, forked = self._call, self._now, self._outputs.records_in, self._forked
        offset = CallSlots.OFFSET
        decode_key, decode_value = self._decode_key, self._decode_value
        in_hand = HandlerCall([records[0]], threading.get_ident())
        held, cells = in_hand.records, self._call_slots.cells
        self._call_slots.hold(held)
        token = CURRENT_CALL.set(in_hand)
        answers: list[Answer] = []
        try:
            for first in range(0, len(records), CLOCK_EVERY):
                for record in records[first : first + CLOCK_EVERY]:
                    held[0] = record
                    cells[offset] = record.offset
                    try:
                        if decode_value is not None and (value := record.value) is not None:
                            record.value = decode_value(value)
                        if decode_key is not None and (key := record.key) is not None:
                            record.key = decode_key(key)
                        answer = call(record)
                        answers.append(() if answer is None else outputs_of(answer))
                    except BaseException as error:
                        end_forked_child(self._pid, error)
                        answers.append(error)
                        if ends(error):
                            break
                    if forked:
                        # The child must exit without releasing the slot, because the parent process still uses this
                        # slot.
                        end_forked_child(self._pid)
                else:
                    if now() < deadline:
                        continue
                break
        finally:
            CURRENT_CALL.reset(token)
            self._call_slots.release()
        return answers


class Batches(Caller):
    """Calls a synchronous batch handler once for each list, on the thread that calls `handle`."""

    def __init__(
        self, perform: Callable[[Sequence[Record]], list[Result]], at_once: int, call_slots: CallSlots
    ) -> None:
        self._perform = perform
        self.at_once = at_once
        self._call_slots = call_slots
        self._pid = os.getpid()

    def handle(self, records: list[Record], deadline: float, ends: Ends) -> list[Answer]:
        token = CURRENT_CALL.set(HandlerCall(records, threading.get_ident()))
        self._call_slots.hold(records)
        try:
            results = self._perform(records)
            end_forked_child(self._pid)
            return [_answer(each) for each in results]
        finally:
            CURRENT_CALL.reset(token)
            self._call_slots.release()


def _answer(result: Result) -> Answer:
    return result.produces if result.error is None else result.error


@dataclass(slots=True, eq=False)
class _Piece:
    """One call. `place` is the index of its first record in the list for `handle`; `back` receives the results."""

    place: int
    records: list[Record]
    back: "SimpleQueue[tuple[_Piece, Sequence[Result]]]"
    slot: int = 0
    unwanted: bool = field(default=False, init=False)

    def done(self, results: Sequence[Result], seconds: float) -> None:
        self.back.put((self, results))


class Concurrent(Caller):
    """Calls a handler concurrently through the worker's executors. Records with the same key are never handled
    concurrently, nor are two batches of one partition. `batch` is the maximum length of a batch, or 0 for single
    records."""

    mixed = True

    def __init__(self, executor: Executor, batch: int, call_slots: CallSlots, clock: Clock) -> None:
        self._executor = executor
        self._batch = batch
        self._call_slots = call_slots
        self._now = clock.monotonic
        self.at_once = max(SINGLE_AT_ONCE, ROUNDS * executor.size * max(1, batch // ROUNDS))

    def handle(self, records: list[Record], deadline: float, ends: Ends) -> list[Answer]:
        order: KeyOrder[Any, _Piece] = KeyOrder()
        back: SimpleQueue[tuple[_Piece, Sequence[Result]]] = SimpleQueue()
        for key, piece in self._pieces(records, back):
            order.add(key, piece)
        answers: list[Answer | None] = [None] * len(records)
        keys: dict[_Piece, Any] = {}
        slots = list(range(self._executor.size))
        begun, over = -1, False
        while True:
            while slots and (given := order.next()) is not None:
                key, piece = given
                keys[piece], piece.slot = key, slots.pop()
                begun = max(begun, piece.place)
                self._call_slots.hold(piece.records, piece.slot)
                self._executor.give(piece)
            if not keys:
                break
            piece, results = back.get()
            self._call_slots.release(piece.slot)
            slots.append(piece.slot)
            order.done(keys.pop(piece))
            answers[piece.place : piece.place + len(results)] = map(_answer, results)
            failed = any(each.error is not None and ends(each.error) for each in results)
            if not over and (failed or self._now() >= deadline):
                # A waiting call still runs if its records precede those of a started call. Otherwise the answers would
                # have a gap, and the next try would repeat the calls after the gap.
                over = True
                order.discard(lambda waiting, last=begun: waiting.place > last)  # type: ignore[misc]
        first_open = answers.index(None) if None in answers else len(answers)
        return answers[:first_open]  # type: ignore[return-value]  # none of them is None

    def _pieces(self, records: list[Record], back: Any) -> list[tuple[Any, _Piece]]:
        if not self._batch:
            return [
                (None if (key := as_read(each).key) is None else (each.partition, key), _Piece(place, [each], back))
                for place, each in enumerate(records)
            ]
        pieces: list[tuple[Any, _Piece]] = []
        for place, each in enumerate(records):
            last = pieces[-1] if pieces else None
            if last is None or last[0] != each.partition or len(last[1].records) >= self._batch:
                pieces.append((each.partition, _Piece(place, [each], back)))
            else:
                last[1].records.append(each)
        return pieces

    def call(self, hook: Callable[..., Any], *arguments: Any) -> None:
        self._executor.call(hook, *arguments)

    def close(self) -> None:
        self._executor.close()
