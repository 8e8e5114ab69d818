"""Sequences of requests to brokers, written as generators, so that code with retries is sequential.

A flow yields a step (such as `AskAll` or `Pause`) and gets the responses as the value of the `yield`. `FlowRunner` runs
any number of flows on the coordinator thread without blocking it. A flow's return value or exception ends its `Ticket`.
"""

import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from fleet_consumer.net import NetError
from fleet_consumer.wire.message import Request

T = TypeVar("T")


class Where(Enum):
    ANY = auto()
    COORDINATOR = auto()


class BrokerUnknown(NetError):
    """The target broker of a request is in no Metadata response."""

    reason = "BrokerUnknown"
    retriable = True


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `where` is its target: any broker, the group's coordinator, or a node id."""

    where: Where | int
    request: Request[Any]


@dataclass(frozen=True, slots=True)
class AskAll:
    """Send all requests concurrently; the flow gets a list of responses or NetErrors, in the order of `asks`."""

    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Resume the flow after `seconds`; it gets an empty list."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SuspectCoordinator:
    """Report that a broker is no longer the coordinator; the flow continues immediately with an empty list."""


Step = AskAll | Pause | SuspectCoordinator
Flow = Generator[Step, list[Any], T]


class Ticket(Generic[T]):
    """A future: the result of work on another thread. Call `wait`, or check `done`."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self.cancelled = False
        self.result: T | None = None
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def cancel(self) -> None:
        """Request cancellation; the working thread stops at its next check."""
        self.cancelled = True

    def wait(self, timeout_s: float) -> bool:
        return self._ended.wait(timeout_s)

    def end(self, result: T | None, error: Exception | None = None) -> None:
        """Set the result or error; later calls have no effect."""
        if not self._ended.is_set():
            self.result, self.error = result, error
            self._ended.set()


@dataclass(slots=True, eq=False)
class _Running:
    flow: Flow[Any]
    ticket: Ticket[Any]
    on_end: Callable[[], None]
    asks: tuple[Ask, ...] = ()
    answers: list[Any] | None = None
    missing: int = 0
    resume_at: float | None = None


class FlowRunner:
    """Runs flows on the thread that calls it.

    `send(ask, on_answer)` must send a request and later call `on_answer` with a response or NetError. It must return
    False if the target's address is unknown. Then a request to the coordinator is retried in the next `advance`,
    because the group machine also looks up the coordinator. A request to an unknown node id gets BrokerUnknown, and the
    flow decides how to continue.
    """

    def __init__(
        self, send: Callable[[Ask, Callable[[Any], None]], bool], suspect_coordinator: Callable[[], None]
    ) -> None:
        self._send = send
        self._suspect_coordinator = suspect_coordinator
        self._flows: list[_Running] = []
        self._unsent: list[tuple[_Running, int]] = []

    def start(self, flow: Flow[T], ticket: Ticket[T], on_end: Callable[[], None], now: float) -> None:
        """Start a flow; `on_end` is called on this thread after the ticket has ended."""
        running = _Running(flow, ticket, on_end)
        self._flows.append(running)
        self._step(running, now, first=True)

    def advance(self, now: float) -> None:
        """Resume flows after their pause or with complete answers; retry requests that could not be sent."""
        for running in list(self._flows):
            if running.ticket.cancelled:
                self._end(running, None, None)
            elif running.resume_at is not None and now >= running.resume_at:
                running.resume_at = None
                self._step(running, now)
            elif running.answers is not None and running.missing == 0:
                self._step(running, now)
        unsent, self._unsent = self._unsent, []
        for running, index in unsent:
            if running in self._flows:
                self._try_send(running, index)

    def next_deadline(self, now: float) -> float:
        ready = any(running.answers is not None and running.missing == 0 for running in self._flows)
        times = [running.resume_at for running in self._flows if running.resume_at is not None]
        return now if ready else min(times, default=float("inf"))

    def abandon(self, error: Exception) -> None:
        for running in list(self._flows):
            self._end(running, None, error)

    def _step(self, running: _Running, now: float, *, first: bool = False) -> None:
        answers, running.answers = running.answers or [], None
        try:
            step = next(running.flow) if first else running.flow.send(answers)
            while isinstance(step, SuspectCoordinator):
                self._suspect_coordinator()
                step = running.flow.send([])
        except StopIteration as end:
            self._end(running, end.value, None)
            return
        except Exception as error:
            self._end(running, None, error)
            return
        if isinstance(step, Pause):
            running.resume_at = now + step.seconds
            return
        running.asks = step.asks
        running.answers = [None] * len(step.asks)
        running.missing = len(step.asks)
        for index in range(len(step.asks)):
            self._try_send(running, index)

    def _try_send(self, running: _Running, index: int) -> None:
        answers = running.answers

        def on_answer(answer: Any) -> None:
            # A late answer to an earlier step is ignored, because each step has its own list.
            if answers is not None and running.answers is answers:
                answers[index] = answer
                running.missing -= 1

        ask = running.asks[index]
        if self._send(ask, on_answer):
            return
        if isinstance(ask.where, Where):
            self._unsent.append((running, index))
        else:
            on_answer(BrokerUnknown(f"broker {ask.where}: its address is unknown; no Metadata response has listed it"))

    def _end(self, running: _Running, result: Any, error: Exception | None) -> None:
        self._flows.remove(running)
        running.flow.close()
        running.ticket.end(result, error)
        running.on_end()
