"""Calls of a handler, in the process that is its own: records in, an answer for each of the first of them out.

What a live worker can run, a Backfill can: synchronous handlers, batches, threads, event loops, HTTP. Nothing of a
worker's loop is here, since nothing has to be committed, and no poll to be kept up.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final

from fleet_consumer.backfill.marks import Marks
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
"""True for an error of a record that ends the task: nothing is handled behind it then."""

SINGLE_AT_ONCE: Final = 500
"""Records that are handled one by one between two looks at the rate."""
CLOCK_EVERY: Final = 8
"""Records after which the clock is read: each time costs as much as a hundredth of a handler of 15 µs."""
ROUNDS: Final = 32
"""Records of one list for each call that may be under way at once: at its end the calls wait for the last one."""


class Caller(ABC):
    """A way to call a handler. `at_once` is the longest list that it takes; with `mixed` one may have records of
    several partitions."""

    at_once = SINGLE_AT_ONCE
    mixed = False

    @abstractmethod
    def handle(self, records: list[Record], deadline: float, ends: Ends) -> list[Answer]:
        """Handle these records, which are the handler's own, in the order of their keys at least. The answers of the
        first ones: no call begins after `deadline` (monotonic seconds), nor after an error that `ends`."""

    def call(self, hook: Callable[..., Any], *arguments: Any) -> None:
        """Run `setup` or `teardown` and wait; raises what it raises."""
        hook(*arguments)

    def close(self) -> None:  # noqa: B027  # most have no threads
        """End its threads."""


def make_caller(config: WorkerConfig, handler: Handler, marks: Marks, clock: Clock) -> Caller:
    """The caller for this handler and its settings, with its threads started."""
    settings, batch = config.handler, config.consumer.max_poll_records if handler.batch else 0
    outputs = Outputs(settings.outputs)
    if batch and settings.concurrency == 1 and not handler.asynchronous:
        return Batches(make_performer(settings, handler, outputs).perform, batch, marks)
    executor = make_executor(settings, handler, clock, outputs)
    if executor is None:
        decoders = decoder("key", settings.decode.key), decoder("value", settings.decode.value)
        return OneByOne(handler, decoders, outputs, marks, clock)
    executor.start()
    return Concurrent(executor, batch, marks, clock)


class OneByOne(Caller):
    """A synchronous handler of single records, on this thread."""

    def __init__(
        self, handler: Handler, decoders: tuple[Any, Any], outputs: Outputs, marks: Marks, clock: Clock
    ) -> None:
        self._call = handler.call
        self._decode_key, self._decode_value = decoders
        self._outputs = outputs
        self._marks = marks
        self._now = clock.monotonic
        self._pid = os.getpid()
        # Filled in a child that the handler forks, which would handle the rest of the list once more.
        self._forked: list[bool] = []
        os.register_at_fork(after_in_child=lambda: self._forked.append(True))

    def handle(self, records: list[Record], deadline: float, ends: Ends) -> list[Answer]:
        # The hot loop: names are looked up once, and the clock is read after every few records.
        call, now, outputs_of, forked, offset = self._call, self._now, self._outputs.of, self._forked, Marks.OFFSET
        decode_key, decode_value = self._decode_key, self._decode_value
        in_hand = HandlerCall([records[0]], threading.get_ident())
        held, cells = in_hand.records, self._marks.cells
        self._marks.hold(held)
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
                        # Before the mark is released: it is the parent's, too.
                        end_forked_child(self._pid)
                else:
                    if now() < deadline:
                        continue
                break
        finally:
            CURRENT_CALL.reset(token)
            self._marks.release()
        return answers


class Batches(Caller):
    """A synchronous handler of batches, on this thread: each list is one call."""

    def __init__(self, perform: Callable[[Sequence[Record]], list[Result]], at_once: int, marks: Marks) -> None:
        self._perform = perform
        self.at_once = at_once
        self._marks = marks
        self._pid = os.getpid()

    def handle(self, records: list[Record], deadline: float, ends: Ends) -> list[Answer]:
        token = CURRENT_CALL.set(HandlerCall(records, threading.get_ident()))
        self._marks.hold(records)
        try:
            results = self._perform(records)
            end_forked_child(self._pid)
            return [_answer(each) for each in results]
        finally:
            CURRENT_CALL.reset(token)
            self._marks.release()


def _answer(result: Result) -> Answer:
    return result.produces if result.error is None else result.error


@dataclass(slots=True, eq=False)
class _Piece:
    """Records of one call: those from `place` on in the list."""

    place: int
    records: list[Record]
    back: SimpleQueue[tuple[_Piece, Sequence[Result]]]
    slot: int = 0
    unwanted: bool = field(default=False, init=False)

    def done(self, results: Sequence[Result], seconds: float) -> None:
        self.back.put((self, results))


class Concurrent(Caller):
    """A handler of which several calls are under way at once, in the worker's own executors. One record of each key, or
    one batch of each partition, is in hand at a time."""

    mixed = True

    def __init__(self, executor: Executor, batch: int, marks: Marks, clock: Clock) -> None:
        """`batch` is the longest batch, 0 for single records."""
        self._executor = executor
        self._batch = batch
        self._marks = marks
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
                self._marks.hold(piece.records, piece.slot)
                self._executor.give(piece)
            if not keys:
                break
            piece, results = back.get()
            self._marks.release(piece.slot)
            slots.append(piece.slot)
            order.done(keys.pop(piece))
            answers[piece.place : piece.place + len(results)] = map(_answer, results)
            failed = any(each.error is not None and ends(each.error) for each in results)
            if not over and (failed or self._now() >= deadline):
                # What lies before a record that has begun is handled still, or that would be handled twice.
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
