"""Small dialogues with brokers, written as generators so that retries read from top to bottom.

A flow yields what it needs next (`AskAll`, `Pause`) and gets the answers back; `FlowRunner` drives any number of them
from the heartbeat thread without ever blocking it. A flow's return value or exception ends its ticket.
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
    """Brokers by role."""

    ANY = auto()
    COORDINATOR = auto()


class BrokerUnknown(NetError):
    """A request for a broker whose address no Metadata answer has given."""

    reason = "BrokerUnknown"
    retriable = True


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; `where` is a role or a node id."""

    where: Where | int
    request: Request[Any]


@dataclass(frozen=True, slots=True)
class AskAll:
    """Send all at once; the flow gets a list with each one's response or NetError, in order."""

    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Go on after this many seconds; the flow gets an empty list."""

    seconds: float


@dataclass(frozen=True, slots=True)
class DoubtCoordinator:
    """The coordinator said that it is none; goes on at once with an empty list."""


Step = AskAll | Pause | DoubtCoordinator
Flow = Generator[Step, list[Any], T]


class Ticket(Generic[T]):
    """What a thread holds of something that another thread does for it: wait, or look at `done`."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._cancelled = False
        self.result: T | None = None
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether there is a result or an error."""
        return self._ended.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._cancelled

    def cancel(self) -> None:
        """Nobody waits for this any more. Whoever works on it stops when it notices."""
        self._cancelled = True

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came."""
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

    `send(ask, on_answer)` must put a request on its way and call `on_answer` with response or NetError later, or
    return False when its target is not known now. A role is tried again at the next `advance`: somebody is looking for
    the coordinator. Nobody looks for a node id, so its request is answered with BrokerUnknown, and the flow decides.
    """

    def __init__(
        self, send: Callable[[Ask, Callable[[Any], None]], bool], doubt_coordinator: Callable[[], None]
    ) -> None:
        self._send = send
        self._doubt_coordinator = doubt_coordinator
        self._flows: list[_Running] = []
        self._unsent: list[tuple[_Running, int]] = []

    def start(self, flow: Flow[T], ticket: Ticket[T], on_end: Callable[[], None], now: float) -> None:
        """Begin a flow; `on_end` is called on this thread once the ticket has ended."""
        running = _Running(flow, ticket, on_end)
        self._flows.append(running)
        self._step(running, now, first=True)

    def advance(self, now: float) -> None:
        """Resume what has waited long enough or has all its answers, and send what could not be sent before."""
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
        """When something is due by time alone."""
        ready = any(running.answers is not None and running.missing == 0 for running in self._flows)
        times = [running.resume_at for running in self._flows if running.resume_at is not None]
        return now if ready else min(times, default=float("inf"))

    def abandon(self, error: Exception) -> None:
        """End all flows."""
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
            # An answer to questions of an earlier step finds another list and changes nothing.
            if answers is not None and running.answers is answers:
                answers[index] = answer
                running.missing -= 1

        ask = running.asks[index]
        if self._send(ask, on_answer):
            return
        if isinstance(ask.where, Where):
            self._unsent.append((running, index))
        else:
            on_answer(BrokerUnknown(f"broker {ask.where}: its address is not known"))

    def _end(self, running: _Running, result: Any, error: Exception | None) -> None:
        self._flows.remove(running)
        running.flow.close()
        running.ticket.end(result, error)
        running.on_end()
