"""The retry worker of a local run: a second process, in place of the separate pods of a cluster.

A thread would not do, because a handler may rely on one call at a time and on one `setup` per process. A shared folder
contains the settings, the policies, and the counts that the retry process writes. The retry process runs until its
standard input closes: when the main process stops it, or when the main process dies.
"""

import contextlib
import json
import logging
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

from fleet_consumer.consumer.consumer import Consumer, ConsumerSettings
from fleet_consumer.contract.naming import retry_group
from fleet_consumer.contract.pod import EXIT_SETTINGS, POLICIES_FILE, WORKER_FILE
from fleet_consumer.contract.section import SettingsInvalid
from fleet_consumer.contract.worker_config import load_config
from fleet_consumer.group.errors import ConsumerError
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import TopicPartition
from fleet_consumer.worker.config.role import Role
from fleet_consumer.worker.lifecycle.termination import bound_exit, end_before_work
from fleet_consumer.worker.member import WorkerState, current_error
from fleet_consumer.worker.printed import outlive_readers
from fleet_consumer.worker.process import run_worker
from fleet_consumer.worker.session import CLOSE_TIMEOUT_S

LOG = logging.getLogger("fleet_consumer.worker")

COUNTS_FILE: Final = "counts.json"

REPORT_S: Final = 0.5
"""Seconds between two writes of the retry process's counts."""
KILL_GRACE_S: Final = 10.0
"""Seconds after the drain and close timeouts in which the retry process's own watchdog should end the process."""
SIGNALLED: Final = 128
"""The exit code of a process that was ended by a signal is this number plus the signal's number, as in a shell."""

COUNT_S: Final = 2.0
"""Seconds between two counts of the waiting records."""
ANSWER_S: Final = 10.0
"""Timeout of a request in seconds. After a timeout, the count is unknown."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of the retry process's deliveries by outcome, and its current error (empty without an error)."""

    done: int = 0
    failed: int = 0
    dropped: int = 0
    retried: int = 0
    error: str = ""


class Waiting:
    """Counts the records that wait in a group's retry and redrive topics, including those of earlier runs.

    After `start`, a thread computes the number from committed offsets and end offsets. `flow` maps the topics to their
    partition counts.
    """

    def __init__(self, connection: ConnectionSettings, group_id: str, flow: Mapping[str, int]) -> None:
        self._settings = ConsumerSettings(
            connection=connection, group_id=retry_group(group_id), retry_authentication=True
        )
        self._partitions = [TopicPartition(topic, number) for topic, count in flow.items() for number in range(count)]
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waiting-count", daemon=True)
        self.count: int | None = None
        """The last result; None while unknown."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, within the timeout of its current request, and count a last time."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self.count = self.ask()

    def ask(self) -> int | None:
        """Return the current number; None if the brokers do not respond in time."""
        with Consumer(self._settings) as consumer:
            return self._ask(consumer)

    def _run(self) -> None:
        with Consumer(self._settings) as consumer:
            while not self._closed.is_set():
                try:
                    self.count = self._ask(consumer)
                except Exception:  # if the thread ended, the count would be outdated
                    self.count = None
                    LOG.exception("unexpected error while counting waiting records; retrying")
                self._closed.wait(COUNT_S)

    def _ask(self, consumer: Consumer) -> int | None:
        try:
            committed = consumer.committed(None, ANSWER_S)
            starts = consumer.beginning_offsets(self._partitions, ANSWER_S)
            ends = consumer.end_offsets(self._partitions, ANSWER_S)
        except ConsumerError:
            return None
        done = {part: entry.offset for part, entry in committed.items() if entry is not None}
        return sum(max(0, ends[part] - max(done.get(part, 0), starts[part])) for part in self._partitions)


class RetryProcess:
    """Context manager in the main process that starts and stops the retry process.

    `folder` contains the settings; `drain_s` is their drain timeout in seconds. If the retry process ends early, the
    main worker stops as well.
    """

    def __init__(self, folder: Path, drain_s: float, waiting: Waiting) -> None:
        self._folder = folder
        self._patience_s = drain_s + CLOSE_TIMEOUT_S + KILL_GRACE_S
        self.waiting = waiting
        self._process: subprocess.Popen[bytes] | None = None
        self._expected = False
        self._code: int | None = None

    def __enter__(self) -> "RetryProcess":
        # -P keeps the current folder off the import path, because the settings contain the handler's folder. The retry
        # process is in a separate process group, so it does not get Ctrl-C. The main process stops it cleanly instead.
        command = [sys.executable, "-P", "-m", "fleet_consumer.worker.local.retries", str(self._folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)
        self.waiting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def counts(self) -> Counts:
        """The last counts that the retry process wrote; all 0 before the first."""
        try:
            return Counts(**json.loads((self._folder / COUNTS_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return Counts()

    def check_running(self) -> None:
        """Stop the main worker if the retry process has ended unexpectedly. Must not be called on the main thread."""
        assert self._process is not None, "it was started"
        code = self._process.poll()
        if code is not None and not self._expected:
            self._expected = True
            end_main_thread()
            message = f"the retry worker has ended with exit code {_exit_code(code)}, so the main worker stops as well"
            print(f"fleet-consumer: RetryWorkerEnded: {message}", file=sys.stderr)

    def stop(self) -> int:
        """Stop the retry process and return its exit code. After a timeout, SIGKILL is used. Idempotent."""
        process = self._process
        assert process is not None, "it was started"
        assert process.stdin is not None, "it is a pipe"
        if self._code is None:
            self._expected = True
            # Also send a byte, because processes that a handler forked may keep the pipe open after this close.
            with contextlib.suppress(OSError):
                process.stdin.write(b"\n")
                process.stdin.close()
            try:
                code = process.wait(self._patience_s)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            self._code = _exit_code(code)
            self.waiting.close()
        return self._code


def _exit_code(code: int) -> int:
    return code if code >= 0 else SIGNALLED - code


def end_main_thread() -> None:
    """Send SIGTERM to the main thread, whose worker then stops cleanly. Any thread."""
    ident = threading.main_thread().ident
    assert ident is not None, "the main thread runs"
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(ident, signal.SIGTERM)
    else:  # Windows: the main thread handles the signal at its next step
        signal.raise_signal(signal.SIGTERM)


def prepare(folder: Path, settings: Mapping[str, Any], policies: Mapping[str, Any]) -> dict[str, Any]:
    """Write the files of the retry process to `folder`, and return the settings for both processes."""
    policy_file = folder / POLICIES_FILE
    policy_file.write_text(json.dumps(policies))
    complete = {**settings, "retry": {"policyFile": str(policy_file)}}
    (folder / WORKER_FILE).write_text(json.dumps(complete))
    return complete


class RetryReport:
    """Writes the retry process's counts for the main process."""

    def __init__(self, folder: Path, lifeline: "Lifeline") -> None:
        self._path = folder / COUNTS_FILE
        self._lifeline = lifeline
        self._due_at = float("-inf")
        self._state: WorkerState | None = None

    def watch(self, state: WorkerState) -> None:
        self._state = state

    def tick(self, now: float) -> None:
        """Write the counts if due, and check the main process. Called several times a second."""
        self._lifeline.check_parent()
        if now >= self._due_at:
            self._due_at = now + REPORT_S
            self.write()

    def write(self) -> None:
        """Replace the file of counts atomically. Errors are ignored, because without the folder no process reads it."""
        counts = Counts()
        if self._state is not None:
            stats, error = self._state.stats, current_error(self._state)
            counts = Counts(stats.done, stats.failed, stats.dropped, stats.retried, "" if error is None else str(error))
        fresh = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps(asdict(counts)))
            fresh.replace(self._path)


class Lifeline:
    """Stops the retry process cleanly when its standard input closes or delivers a byte, or when its parent exits."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._parent = os.getppid()
        self.cut = False
        """True if the main process has ended, so no process reads the counts any longer."""

    def hold(self) -> None:
        """Start a thread that watches standard input."""
        threading.Thread(target=self._wait, name="lifeline", daemon=True).start()

    def check_parent(self) -> None:
        """Stop if the main process has ended. Its forked children may keep the pipe open after its end."""
        if not self.cut and os.getppid() != self._parent:
            self.cut = True
            end_main_thread()

    def _wait(self) -> None:
        try:
            self.cut = not self._stream.read(1)
        finally:  # if the input cannot be read, it counts as closed
            end_main_thread()


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    signal.signal(signal.SIGTERM, end_before_work)
    outlive_readers()
    lifeline = Lifeline(sys.stdin.buffer)
    report = RetryReport(folder, lifeline)
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
    code = main(sys.argv[1:])
    bound_exit(code)
    raise SystemExit(code)
