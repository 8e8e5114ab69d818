"""Members that record what they hand out and the results of their commits, as threads and as processes.

`ownership.History` reads the rows. Nothing is committed before it is recorded: a killed process may have handed out
more than its history shows, but cannot have committed more.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet_consumer import Consumer, ConsumerSettings, TopicPartition
from fleet_consumer.group import errors
from fleet_consumer.group.membership import Membership, OffsetAndMetadata
from fleet_consumer.net import ConnectionSettings
from tests.support.ownership import History

__all__ = [
    "Ledger",
    "MemberProcess",
    "MemberThread",
    "RecordedProcess",
    "RecordingMember",
    "member_settings",
    "rows_to",
    "run_until_stopped",
]

Row = list[Any]
ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.2
COMMIT_EVERY_S = 0.2
REVOKE_PATIENCE_S = 10.0
END_PATIENCE_S = 60.0
"""Twice the longest time for which a member stops: its callback's commit, its close."""
_lives = itertools.count(1)


def member_settings(bootstrap: str, group: str, **changes: Any) -> ConsumerSettings:
    """Settings with short times, so that tests are quick; `bootstrap` may list several brokers."""
    connection = ConnectionSettings(
        bootstrap_servers=tuple(bootstrap.split(",")),
        client_id="recorded",
        request_timeout_ms=3_000,
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=500,
    )
    short = ConsumerSettings(
        connection=connection,
        group_id=group,
        assignors=("range",),
        session_timeout_ms=4_000,
        heartbeat_interval_ms=300,
        max_poll_interval_ms=60_000,
        metadata_max_age_ms=2_000,
    )
    return replace(short, **changes)


class Ledger:
    """Converts a member's events into rows for `write`; records handed out are joined to ranges until `flush`."""

    def __init__(self, write: Callable[[Row], None]) -> None:
        self._write = write
        # Ranges not yet written down: partition to [generation, first, last, from, to].
        self._pending: dict[int, list[Any]] = {}
        self._numbers = itertools.count()

    def handed(self, partition: int, generation: int, first: int, last: int) -> None:
        """Record that these records were just handed out."""
        now = time.monotonic()
        pending = self._pending.get(partition)
        if pending is not None and pending[0] == generation and pending[2] + 1 == first:
            pending[2], pending[4] = last, now
            return
        if pending is not None:
            self._write(["h", partition, *pending])
        self._pending[partition] = [generation, first, last, now, now]

    def flush(self) -> None:
        """Write every range."""
        for partition, pending in self._pending.items():
            self._write(["h", partition, *pending])
        self._pending = {}

    def asked(self, generation: int, offsets: Mapping[int, int]) -> int:
        """Record a commit about to be requested; returns its number for `answered`."""
        self.flush()
        number = next(self._numbers)
        self._write(["c", number, generation, offsets, time.monotonic()])
        return number

    def answered(self, number: int, error: str | None) -> None:
        """Record the result of a commit."""
        self._write(["k", number, time.monotonic(), error])

    def called(self, kind: str, partitions: Sequence[int], generation: int) -> None:
        """Record partitions assigned ("a"), revoked ("r") or lost ("l")."""
        self.flush()
        self._write([kind, list(partitions), generation, time.monotonic()])

    def raised(self, error: str) -> None:
        """Record an error of the consumer."""
        self._write(["x", error])


class RecordingMember:
    """A consumer that polls on the thread that calls `run`, commits now and then, and hands rows to `write`."""

    def __init__(
        self,
        settings: ConsumerSettings,
        topics: Sequence[str],
        write: Callable[[Row], None],
        *,
        commit_every_s: float = COMMIT_EVERY_S,
    ) -> None:
        self.consumer = Consumer(settings)
        self._topics = topics
        self._ledger = Ledger(write)
        self._commit_every_s = commit_every_s
        self._stop = threading.Event()
        self._leave = "default"
        self._done: dict[TopicPartition, OffsetAndMetadata] = {}

    def stop(self, leave: str = "default") -> None:
        """Make `run` end; may be called on any thread and in a signal handler."""
        self._leave = leave
        self._stop.set()
        self.consumer.wakeup()

    def run(self) -> None:
        """Poll until `stop`, or until the consumer has permanently failed; then close it."""
        try:
            self.consumer.subscribe(
                self._topics, on_assigned=self._assigned, on_revoked=self._revoked, on_lost=self._lost
            )
            committed_at = time.monotonic()
            while not self._stop.is_set():
                self._poll()
                if time.monotonic() - committed_at >= self._commit_every_s:
                    committed_at = time.monotonic()
                    self._commit()
        except errors.FatalConsumerError as error:
            self._ledger.raised(f"{error.reason}: {error}")
        finally:
            self.consumer.close(10, self._leave)
            self._ledger.flush()

    def _poll(self) -> None:
        try:
            records = self.consumer.poll(POLL_S)
        except errors.FatalConsumerError:
            raise
        except errors.ConsumerError as error:
            # A consumer continues after these errors; the next poll shows more.
            self._ledger.raised(f"{error.reason}: {error}")
            return
        generation = self.consumer.membership().generation
        for run in records.runs:
            self._ledger.handed(
                run.topic_partition.partition, generation, run.records[0].offset, run.records[-1].offset
            )
            self._done[run.topic_partition] = OffsetAndMetadata(run.next_offset, run.records[-1].leader_epoch)

    def _asked(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> int:
        generation = self.consumer.membership().generation
        return self._ledger.asked(generation, {part.partition: what.offset for part, what in offsets.items()})

    def _commit(self) -> None:
        if self._done:
            done = dict(self._done)
            number = self._asked(done)
            self.consumer.commit_async(done, lambda _offsets, error: self._answered(number, done, error))

    def _answered(self, number: int, offsets: Mapping[TopicPartition, OffsetAndMetadata], error: Any) -> None:
        failure = None if error is None else f"{getattr(error, 'reason', type(error).__name__)}: {error}"
        self._ledger.answered(number, failure)
        if error is None:
            for part, what in offsets.items():
                # Commit again what was refused, or handed out since.
                if self._done.get(part) == what:
                    del self._done[part]

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._called("a", partitions)

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        going = {part: self._done[part] for part in partitions if part in self._done}
        if going:
            number = self._asked(going)
            try:
                self.consumer.commit(going, REVOKE_PATIENCE_S)
            except errors.ConsumerError as error:
                self._answered(number, going, error)
            else:
                self._answered(number, going, None)
        self._forget(partitions)
        self._called("r", partitions)

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._forget(partitions)
        self._called("l", partitions)

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        for part in partitions:
            self._done.pop(part, None)

    def _called(self, kind: str, partitions: Sequence[TopicPartition]) -> None:
        self._ledger.called(kind, [part.partition for part in partitions], self.consumer.membership().generation)


class MemberThread:
    """A recording member on a thread of this process."""

    def __init__(self, settings: ConsumerSettings, topic: str) -> None:
        self.name = f"thread-{next(_lives)}"
        self._history = History(self.name)
        self._lock = threading.Lock()
        self._member = RecordingMember(settings, [topic], self._take)
        self._thread = threading.Thread(target=self._member.run, name=self.name, daemon=True)
        self._thread.start()

    def _take(self, row: Row) -> None:
        with self._lock:
            self._history.add(row)

    @property
    def membership(self) -> Membership:
        """The consumer's membership."""
        return self._member.consumer.membership()

    @property
    def alive(self) -> bool:
        """True while it polls."""
        return self._thread.is_alive()

    @property
    def state_text(self) -> str:
        """Its reading positions, backlog and membership, for the message of a failed test."""
        positions = self._member.consumer._engine.positions
        if positions is None:
            return "not subscribed"
        fetch = positions._fetch
        reads = {
            part.partition: buffer and (buffer.position, fetch._next.get(part), buffer.paused, buffer.current)
            for part, buffer in positions._buffers.items()
        }
        ahead = f"{fetch.read_ahead.waiting} records wait, {len(fetch._commands)} commands"
        return f"alive {self.alive}, positions {reads}, {ahead}, last error {fetch.last_error}, {self.membership}"

    def history(self) -> History:
        """The rows so far; keeps growing."""
        with self._lock:
            return self._history

    def stop(self, leave: str = "default") -> None:
        """Close the consumer and wait for the end."""
        self._member.stop(leave)
        self._thread.join(END_PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} did not end"


@dataclass(frozen=True, slots=True)
class _Reading:
    """The read position in a history file."""

    history: History
    offset: int


class RecordedProcess:
    """A process that appends rows to the file `log`, and can be killed and stopped.

    `command` returns its command line for the file's path.
    """

    def __init__(self, folder: Path, kind: str, command: Callable[[Path], Sequence[str]]) -> None:
        self.name = f"{kind}-{next(_lives)}"
        self._log = folder / f"{self.name}.jsonl"
        self._log.touch()
        self._reading = _Reading(History(self.name), 0)
        self.stderr = folder / f"{self.name}.err"
        with self.stderr.open("wb") as errors_to:
            self._process = subprocess.Popen(command(self._log), cwd=ROOT, stderr=errors_to)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while the process exists; a stopped one does."""
        return self._process.poll() is None

    def history(self) -> History:
        """The rows so far."""
        with self._log.open("rb") as log:
            log.seek(self._reading.offset)
            fresh = log.read()
        # An incomplete line is read next time.
        whole = fresh[: fresh.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._reading.history.add(json.loads(line))
        self._reading = _Reading(self._reading.history, self._reading.offset + len(whole))
        return self._reading.history

    def rows(self) -> list[Row]:
        """All rows so far, as they were written."""
        with self._log.open("rb") as log:
            return [json.loads(line) for line in log if line.endswith(b"\n")]

    def suspend(self) -> None:
        """SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Have it close its consumer, and wait for the end; a static member remains in its group."""
        if self.alive:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(END_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"{self.name} did not end: {self.stderr.read_text()[-2000:]}") from None


class MemberProcess(RecordedProcess):
    """A recording member of ours in a process of its own; `settings` are changes to `member_settings`, JSON-able.

    With several `members` on threads of the process their rows are mixed, and do not form a history.
    """

    def __init__(
        self, folder: Path, bootstrap: str, group: str, topic: str, *, members: int = 1, **settings: Any
    ) -> None:
        def command(log: Path) -> Sequence[str]:
            words = {"bootstrap": bootstrap, "group": group, "topic": topic, "log": str(log)}
            more = {"settings": settings, "members": members}
            return [sys.executable, "-m", "tests.support.recording", json.dumps({**words, **more})]

        super().__init__(folder, "fleet", command)


def rows_to(log: Path) -> Callable[[Row], None]:
    """Appends rows to a file, unbuffered: a row that was written survives the death of the process."""
    opened = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(row: Row) -> None:
        os.write(opened, json.dumps(row, separators=(",", ":")).encode() + b"\n")

    return write


def _main(words: Mapping[str, Any]) -> int:
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in words["settings"].items()}
    write = rows_to(Path(words["log"]))
    members = [
        RecordingMember(member_settings(words["bootstrap"], words["group"], **settings), [words["topic"]], write)
        for _ in range(words["members"])
    ]

    def run() -> None:
        with ThreadPoolExecutor(len(members)) as pool:
            for done in [pool.submit(member.run) for member in members]:
                done.result()

    def stop() -> None:
        for member in members:
            member.stop()

    run_until_stopped(run, stop)
    return 0


def run_until_stopped(run: Callable[[], None], stop: Callable[[], None]) -> None:
    """Run on this thread; SIGTERM calls `stop` on another one. SIGINT is left to the parent."""
    # Blocked before any thread starts, so that they all inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})

    def wait() -> None:
        signal.sigwait({signal.SIGTERM})
        stop()

    threading.Thread(target=wait, name="signals", daemon=True).start()
    run()


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.argv[1])))
