"""The handler's process as seen by the task: starts the process, sends it requests, and detects hangs and crashes."""

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

from fleet_consumer.backfill.call_slots import CallSlots, InHand
from fleet_consumer.backfill.errors import ADVICE, BackfillFailed
from fleet_consumer.backfill.work import Part, PlayRequest, config_of, log_as
from fleet_consumer.contract.backfill_ledger import RunProblem, SuspectedRecord
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.backfill")

SILENCE_POLL_S: Final = 1.0
"""Interval at which a silent process is checked for hanging calls."""
STACKS_S: Final = 1.0
"""Time for a hanging process to write its threads' stacks before it is killed."""


class Died(Exception):
    """The handler's process died during a handler call; `suspected` are the records of its running calls."""

    def __init__(self, cause: str, suspected: list[SuspectedRecord]) -> None:
        super().__init__(cause)
        self.suspected = suspected


class HandlerProcess:
    """The process of one handler: the group's own or, in a comparison, the candidate (`side`)."""

    def __init__(self, config_text: str, side: str) -> None:
        """Start the process and wait for the handler's `setup`. Raises BackfillFailed."""
        config = config_of(config_text)
        log_as(config)
        worker = config.worker
        self._side = side
        self._closed = False
        self._hang_s = float(min(worker.consumer.max_poll_interval_seconds, config.progress_seconds))
        slots, longest = worker.handler.concurrency, worker.consumer.max_poll_records
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        self._call_slots = CallSlots(self._file.fileno(), slots, longest)
        self._connection, theirs = Pipe()
        end, self._lifeline = os.pipe()
        inherited = (theirs.fileno(), end, self._file.fileno())
        words = [sys.executable, "-m", "fleet_consumer.backfill.process", *map(str, inherited)]
        # The child writes to standard error, because Spark uses the Python worker's standard output for its protocol.
        self._process = subprocess.Popen(words, pass_fds=inherited, stdin=subprocess.DEVNULL, stdout=2)
        theirs.close()
        os.close(end)
        self._connection.send((config_text, side, (slots, longest)))
        try:
            problem: RunProblem | None = self._next("setup of the handler")
        except Died as death:
            raise BackfillFailed(
                "SetupFailed", f"the handler's process {death} before its setup had finished", final=False
            ) from death
        if problem is not None:
            self.close()
            raise BackfillFailed(problem.reason, problem.message, final=problem.final)

    @property
    def usable(self) -> bool:
        return not self._closed and self._process.poll() is None

    def play(self, request: PlayRequest) -> Iterator[Part]:
        """Run a request and yield its parts. If the process dies, raises Died if a handler call was running, otherwise
        BackfillFailed."""
        try:
            self._connection.send(request)
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
                # Spark has ended the task. The process is closed, because its remaining messages would be mistaken for
                # answers to the next request.
                self.close()

    def close(self) -> None:
        """Tell the process to run `teardown` and exit, without waiting. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._connection.close()
        with suppress(OSError):
            os.close(self._lifeline)
        self._file.close()

    def _next(self, what: str) -> Any:
        """Wait for the process's next message. Raises the same errors as `play`, also if a handler call or `setup`
        hangs."""
        seen: dict[int, tuple[InHand, float]] = {}
        began = time.monotonic()
        while True:
            try:
                if self._connection.poll(SILENCE_POLL_S):
                    return self._connection.recv()
            except (EOFError, OSError) as error:
                raise self._death() from error
            now = time.monotonic()
            seen = {
                slot: seen[slot] if slot in seen and seen[slot][0] == held else (held, now)
                for slot, held in self._call_slots.active_calls().items()
            }
            hung = [held for held, since in seen.values() if now - since >= self._hang_s]
            if hung or (what.startswith("setup") and now - began >= self._hang_s):
                raise self._ended(what)

    def _ended(self, what: str) -> Died:
        """End a hanging process: make it write the stacks of its threads, then kill it. Returns the error to raise."""
        cause = f"was killed, because {what} did not return within {self._hang_s:g} s"
        held = list(self._call_slots.active_calls().values())
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(STACKS_S)
        self._process.kill()
        self._process.wait()
        return self._died(cause, held)

    def _death(self) -> Exception:
        code = self._process.wait()
        held = list(self._call_slots.active_calls().values())
        name = signal.Signals(-code).name if -code in set(signal.Signals) else ""
        cause = f"was killed by signal {-code} {name}".strip() if code < 0 else f"ended with exit code {code}"
        died = self._died(cause, held)
        if held:
            return died
        message = f"the handler's process {cause} while no handler call was running; {ADVICE}"
        return BackfillFailed("HandlerProcessDied", message, final=False)

    def _died(self, cause: str, held: list[InHand]) -> Died:
        self.close()
        seen = fields(cause=cause, pid=self._process.pid, inHand="; ".join(map(str, held[:3])))
        LOG.error("the handler's process died", extra=seen)
        places = [(each.partition, offset) for each in held for offset in each.offsets]
        return Died(cause, [SuspectedRecord(partition=p, offset=o, side=self._side, deaths=1) for p, o in places])
