"""Dialogues with brokers as generators, so that retries read from top to bottom.

A flow yields its next step (`AskAll`, `Pause`) and gets the answers back; `FlowRunner` drives any number of flows on
the coordinator thread without blocking it. A flow's return value or exception ends its ticket.
"""

from __future__ import annotations

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
    """A request for a broker whose address no Metadata response has named."""

    reason = "BrokerUnknown"
    retriable = True


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; `where` is a role or a node id."""

    where: Where | int
    request: Request[Any]


@dataclass(frozen=True, slots=True)
class AskAll:
    """Send all at once; the flow gets the list of responses or NetErrors, in order."""

    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait; the flow gets an empty list."""

    seconds: float


@dataclass(frozen=True, slots=True)
class DoubtCoordinator:
    """Report that the coordinator is lost; the flow goes on at once with an empty list."""


Step = AskAll | Pause | DoubtCoordinator
Flow = Generator[Step, list[Any], T]


class Ticket(Generic[T]):
    """Result of work that another thread does: wait for it, or check `done`."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self.cancelled = False
        """The work is not wanted any more."""
        self.result: T | None = None
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def cancel(self) -> None:
        """Cancel the work; its thread stops when it notices."""
        self.cancelled = True

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; False at the timeout."""
        return self._ended.wait(timeout_s)

    def end(self, result: T | None, error: Exception | None = None) -> None:
        """Set the outcome; the first one counts."""
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

    `send(ask, on_answer)` must send a request and call `on_answer` with response or NetError later, or return False
    while its target is unknown. A role is tried again at the next `advance`, because the machine looks for the
    coordinator. A node id is not looked up: its request is answered with BrokerUnknown, and the flow decides.
    """

    def __init__(
        self, send: Callable[[Ask, Callable[[Any], None]], bool], doubt_coordinator: Callable[[], None]
    ) -> None:
        self._send = send
        self._doubt_coordinator = doubt_coordinator
        self._flows: list[_Running] = []
        self._unsent: list[tuple[_Running, int]] = []

    def start(self, flow: Flow[T], ticket: Ticket[T], on_end: Callable[[], None], now: float) -> None:
        """Begin a flow; `on_end` is called on this thread after the ticket has ended."""
        running = _Running(flow, ticket, on_end)
        self._flows.append(running)
        self._step(running, now, first=True)

    def advance(self, now: float) -> None:
        """Resume flows whose pause is over or whose answers are complete; send what could not be sent before."""
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
        """The time of the next resume; infinity without one."""
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
            while isinstance(step, DoubtCoordinator):
                self._doubt_coordinator()
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
            # An answer to an earlier step finds another list and changes nothing.
            if answers is not None and running.answers is answers:
                answers[index] = answer
                running.missing -= 1

        ask = running.asks[index]
        if self._send(ask, on_answer):
            return
        if isinstance(ask.where, Where):
            self._unsent.append((running, index))
        else:
            on_answer(BrokerUnknown(f"broker {ask.where}: its address is unknown; no Metadata response has named it"))

    def _end(self, running: _Running, result: Any, error: Exception | None) -> None:
        self._flows.remove(running)
        running.flow.close()
        running.ticket.end(result, error)
        running.on_end()
