"""The retry role of a local run: a second process beside the main one, as it is a pod of its own in a cluster.

A process and not a thread, because a handler is promised one call at a time, and `setup` once, in its process. The two
share a folder: settings and policies on the way in, counts on the way out. The retry process lives as long as its
standard input is open: that ends when the main process wants it to, and just as well when that is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final

from fleet_consumer.contract.pod import EXIT_SETTINGS, POLICIES_FILE, WORKER_FILE
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.worker_config import load_config
from fleet_consumer.worker.config.role import Role
from fleet_consumer.worker.lifecycle.signals import end_before_work
from fleet_consumer.worker.local.waiting import Waiting
from fleet_consumer.worker.member import WorkerState, current_error
from fleet_consumer.worker.process import run_worker
from fleet_consumer.worker.session import CLOSE_TIMEOUT_S
from fleet_consumer.worker.stats import Stats

COUNTS_FILE: Final = "counts.json"

REPORT_S: Final = 0.5
"""How often the retry process says how far it has come."""
KILL_GRACE_S: Final = 10.0
"""Beyond the drain time and the leaving, after which the retry process's own watchdog has ended it anyway."""
SIGNALLED: Final = 128
"""A process that was ended by a signal counts as this much more than the signal, as in a shell."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of deliveries in the retry process; `error` is what is in its way."""

    done: int = 0
    failed: int = 0
    dropped: int = 0
    retried: int = 0
    error: str = ""


class RetryProcess:
    """The main process's hold on it, as a context manager: it runs inside, and is asked to end at the end.

    `folder` holds the settings, whose drain time is `drain_s`. When it ends unasked, the main worker is drained too.
    """

    def __init__(self, folder: Path, drain_s: float, waiting: Waiting) -> None:
        self._folder = folder
        self._patience_s = drain_s + CLOSE_TIMEOUT_S + KILL_GRACE_S
        self._waiting = waiting
        self._process: subprocess.Popen[bytes] | None = None
        self._expected = False
        self._code: int | None = None

    def __enter__(self) -> RetryProcess:
        # -P, so that no file of the folder we happen to be in stands in for a library; the handler's own folder comes
        # from the settings. A process group of its own: Ctrl-C is for the main process, which stops it in order.
        command = [sys.executable, "-P", "-m", "fleet_consumer.worker.local.retries", str(self._folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)
        self._waiting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def counts(self) -> Counts:
        """What it last said of itself."""
        try:
            return Counts(**json.loads((self._folder / COUNTS_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return Counts()

    @property
    def waiting(self) -> int | None:
        """How many records wait; None while that is not known."""
        return self._waiting.count

    def look(self) -> None:
        """On any thread but the main one: see whether it still runs."""
        assert self._process is not None, "it was started"
        code = self._process.poll()
        if code is not None and not self._expected:
            self._expected = True
            told = f"the retry worker has ended with exit code {_exit_code(code)}, so this one stops as well"
            print(f"fleet-consumer: RetryWorkerEnded: {told}", file=sys.stderr)
            end_main_thread()

    def stop(self) -> int:
        """Ask it to end and wait; its exit code. Idempotent. One that does not end in time is killed."""
        process = self._process
        assert process is not None, "it was started"
        assert process.stdin is not None, "it is a pipe"
        if self._code is None:
            self._expected = True
            # A word and not only the end: a handler may have forked, and forks hold the pipe open.
            with contextlib.suppress(OSError):
                process.stdin.write(b"\n")
                process.stdin.close()
            try:
                code = process.wait(self._patience_s)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            self._code = _exit_code(code)
            self._waiting.close()
        return self._code


def _exit_code(code: int) -> int:
    return code if code >= 0 else SIGNALLED - code


def end_main_thread() -> None:
    """As if SIGTERM had been sent to this process: its worker drains. Any thread."""
    ident = threading.main_thread().ident
    assert ident is not None, "the main thread runs"
    signal.pthread_kill(ident, signal.SIGTERM)


def prepare(folder: Path, settings: Mapping[str, Any], policies: Mapping[str, Any]) -> dict[str, Any]:
    """Write what the retry process needs; the settings that both processes go by."""
    policy_file = folder / POLICIES_FILE
    policy_file.write_text(json.dumps(policies))
    complete = {**settings, "retry": {"policyFile": str(policy_file)}}
    (folder / WORKER_FILE).write_text(json.dumps(complete))
    return complete


class RetryReport:
    """In the retry process: tells the main one how far it has come."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / COUNTS_FILE
        self._due_at = float("-inf")
        self._stats = Stats()
        self._state: WorkerState | None = None

    def watch(self, stats: Stats, state: WorkerState) -> None:
        """What to tell of."""
        self._stats, self._state = stats, state

    def look(self, now: float) -> None:
        """Called several times a second."""
        if now >= self._due_at:
            self._due_at = now + REPORT_S
            self.write()

    def write(self) -> None:
        """In one step, so that nobody reads half of it. A folder that is gone is nobody's loss: so is its reader."""
        stats, error = self._stats, None if self._state is None else current_error(self._state)
        told = "" if error is None else str(error)
        counts = Counts(stats.done, stats.failed, stats.dropped, stats.retried, told)
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_text(json.dumps(asdict(counts)))
            fresh.replace(self._path)
        except OSError:
            return


class Lifeline:
    """In the retry process: ends it in order when its standard input ends or says anything."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.cut = False
        """Whether it just ended: the main process is gone, and will look at nothing any more."""

    def hold(self) -> None:
        """Returns at once."""
        threading.Thread(target=self._wait, name="lifeline", daemon=True).start()

    def _wait(self) -> None:
        self.cut = not self._stream.read(1)
        end_main_thread()


def main(arguments: list[str]) -> int:
    """The retry process; returns its exit code."""
    folder = Path(arguments[0])
    signal.signal(signal.SIGTERM, end_before_work)
    lifeline, report = Lifeline(sys.stdin.buffer), RetryReport(folder)
    lifeline.hold()
    try:
        return run_worker(load_config(str(folder / WORKER_FILE)), os.environ, role=Role.RETRY, local=report)
    except SettingsInvalid as refused:
        print(f"fleet-consumer: {refused.reason}: {refused}", file=sys.stderr)
        return EXIT_SETTINGS
    finally:
        report.write()
        if lifeline.cut:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
