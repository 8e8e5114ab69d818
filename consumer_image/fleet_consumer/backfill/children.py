"""A handler's process as its task sees it: started, given orders, watched, and replaced when it is gone."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import Pipe
from typing import IO, Any, Final

from fleet_consumer.backfill.errors import ADVICE, BackfillFailed
from fleet_consumer.backfill.marks import InHand, Marks
from fleet_consumer.backfill.work import Order, Part, config_of, log_as
from fleet_consumer.contract.backfill_ledger import RunProblem, Suspect
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.backfill")

LOOK_S: Final = 1.0
"""The interval at which a silent process is looked at."""
STACKS_S: Final = 1.0
"""Time for a process to write where its threads are, before it is ended."""


class Died(Exception):
    """The process ended while it had records in hand."""

    def __init__(self, cause: str, suspects: list[Suspect]) -> None:
        super().__init__(cause)
        self.suspects = suspects


class HandlerProcess:
    """The process of one side's handler. It lives until `close`, or until it dies, which `play` reports."""

    def __init__(self, config_text: str, side: str) -> None:
        """Start it, and wait until its handler is set up. Raises BackfillFailed."""
        config = config_of(config_text)
        log_as(config)
        worker = config.worker
        self._side = side
        self._closed = False
        self._hang_s = float(min(worker.consumer.max_poll_interval_seconds, config.progress_seconds))
        slots, longest = worker.handler.concurrency, worker.consumer.max_poll_records
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        self._marks = Marks(self._file.fileno(), slots, longest)
        self._connection, theirs = Pipe()
        end, self._lifeline = os.pipe()
        inherited = (theirs.fileno(), end, self._file.fileno())
        words = [sys.executable, "-m", "fleet_consumer.backfill.process", *map(str, inherited)]
        # Its standard output is not Spark's: the Python worker's own is a protocol.
        self._process = subprocess.Popen(words, pass_fds=inherited, stdin=subprocess.DEVNULL, stdout=2)
        theirs.close()
        os.close(end)
        self._connection.send((config_text, side, (slots, longest)))
        try:
            problem: RunProblem | None = self._next("setup of the handler")
        except Died as death:
            raise BackfillFailed(
                "SetupFailed", f"the process of the handler {death} before its setup ended", final=False
            ) from death
        if problem is not None:
            self.close()
            raise BackfillFailed(problem.reason, problem.message, final=problem.final)

    @property
    def usable(self) -> bool:
        """True if it can be given an order."""
        return not self._closed and self._process.poll() is None

    def play(self, order: Order) -> Iterator[Part]:
        """Have an order played; its parts as they are done. Raises Died, or BackfillFailed if no record was in hand."""
        try:
            self._connection.send(order)
        except OSError as error:
            raise self._death() from error
        whole = False
        try:
            while not whole:
                part = self._next("the handler")
                assert isinstance(part, Part)
                whole = part.last
                yield part
        finally:
            if not whole:
                # Spark has ended the task: what the process says from now on is about an order of nobody.
                self.close()

    def close(self) -> None:
        """Let it end: its `teardown` runs, and nobody waits for it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._connection.close()
        with suppress(OSError):
            os.close(self._lifeline)
        self._file.close()

    def _next(self, what: str) -> Any:
        """Its next word. Raises Died if it ends, or if it is silent with the same records for too long."""
        seen: dict[int, tuple[InHand, float]] = {}
        began = time.monotonic()
        while True:
            try:
                if self._connection.poll(LOOK_S):
                    return self._connection.recv()
            except (EOFError, OSError) as error:
                raise self._death() from error
            now = time.monotonic()
            seen = {
                slot: seen[slot] if slot in seen and seen[slot][0] == held else (held, now)
                for slot, held in self._marks.read().items()
            }
            hung = [held for held, since in seen.values() if now - since >= self._hang_s]
            if hung or (what.startswith("setup") and now - began >= self._hang_s):
                raise self._ended(what)

    def _ended(self, what: str) -> Died:
        """End a process that does not come back; it writes first where its threads are."""
        cause = f"was ended, because {what} did not return within {self._hang_s:g} s"
        held = list(self._marks.read().values())
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(STACKS_S)
        self._process.kill()
        self._process.wait()
        return self._died(cause, held)

    def _death(self) -> Exception:
        code = self._process.wait()
        held = list(self._marks.read().values())
        name = signal.Signals(-code).name if -code in set(signal.Signals) else ""
        cause = f"was ended by signal {-code} {name}".strip() if code < 0 else f"ended with exit code {code}"
        died = self._died(cause, held)
        if held:
            return died
        message = f"the handler's process {cause} with no record in hand; {ADVICE}"
        return BackfillFailed("HandlerProcessDied", message, final=False)

    def _died(self, cause: str, held: list[InHand]) -> Died:
        self.close()
        seen = fields(cause=cause, pid=self._process.pid, inHand="; ".join(map(str, held[:3])))
        LOG.error("the handler's process died", extra=seen)
        places = [(each.partition, offset) for each in held for offset in each.offsets]
        return Died(cause, [Suspect(partition=p, offset=o, side=self._side, deaths=1) for p, o in places])
