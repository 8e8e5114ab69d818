"""Members that write down what they hand out and what becomes of their commits, as threads and as processes.

What is written is what `ownership.History` reads. Nothing is committed that is not written down before: a process
that is killed can have handed out more than its history tells, but never have committed more.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet_consumer import Consumer, ConsumerSettings, TopicPartition
from fleet_consumer.group import errors
from fleet_consumer.group.membership import Membership, OffsetAndMetadata
from fleet_consumer.net import ConnectionSettings
from tests.support.ownership import History

__all__ = ["MemberProcess", "MemberThread", "RecordingMember", "member_settings"]

Row = list[Any]
ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.2
COMMIT_EVERY_S = 0.2
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
        self._write = write
        self._commit_every_s = commit_every_s
        self._stop = threading.Event()
        self._leave = "default"
        # Ranges handed out and not yet written down: partition to [generation, first, last, from, to].
        self._pending: dict[int, list[Any]] = {}
        self._done: dict[TopicPartition, OffsetAndMetadata] = {}
        self._numbers = itertools.count()

    def stop(self, leave: str = "default") -> None:
        """Make `run` end; any thread, also a signal handler."""
        self._leave = leave
        self._stop.set()
        self.consumer.wakeup()

    def run(self) -> None:
        """Poll until `stop`, or until the consumer is finished for good; then close it."""
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
            self._write(["x", f"{error.reason}: {error}"])
        finally:
            self.consumer.close(10, self._leave)
            self._flush()

    def _poll(self) -> None:
        try:
            records = self.consumer.poll(POLL_S)
        except errors.FatalConsumerError:
            raise
        except errors.ConsumerError as error:
            # A consumer goes on after these; the next poll tells more.
            self._write(["x", f"{error.reason}: {error}"])
            return
        now, generation = time.monotonic(), self.consumer.membership().generation
        for run in records.runs:
            self._handed(run.topic_partition.partition, generation, run.records[0].offset, run.records[-1].offset, now)
            self._done[run.topic_partition] = OffsetAndMetadata(run.next_offset, run.records[-1].leader_epoch)

    def _handed(self, partition: int, generation: int, first: int, last: int, now: float) -> None:
        pending = self._pending.get(partition)
        if pending is not None and pending[0] == generation and pending[2] + 1 == first:
            pending[2], pending[4] = last, now
            return
        if pending is not None:
            self._write(["h", partition, *pending])
        self._pending[partition] = [generation, first, last, now, now]

    def _flush(self) -> None:
        for partition, pending in self._pending.items():
            self._write(["h", partition, *pending])
        self._pending = {}

    def _note_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> int:
        self._flush()
        number, generation = next(self._numbers), self.consumer.membership().generation
        plain = {part.partition: what.offset for part, what in offsets.items()}
        self._write(["c", number, generation, plain, time.monotonic()])
        return number

    def _commit(self) -> None:
        if self._done:
            done, self._done = self._done, {}
            number = self._note_commit(done)
            self.consumer.commit_async(done, lambda _offsets, error: self._answered(number, error))

    def _answered(self, number: int, error: Exception | None) -> None:
        told = None if error is None else f"{getattr(error, 'reason', type(error).__name__)}: {error}"
        self._write(["k", number, time.monotonic(), told])

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._flush()
        self._called("a", partitions)

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        going = {part: self._done.pop(part) for part in partitions if part in self._done}
        if going:
            number = self._note_commit(going)
            try:
                self.consumer.commit(going, 3.0)
            except errors.ConsumerError as error:
                self._answered(number, error)
            else:
                self._answered(number, None)
        self._flush()
        self._called("r", partitions)

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        for part in partitions:
            self._done.pop(part, None)
        self._flush()
        self._called("l", partitions)

    def _called(self, kind: str, partitions: Sequence[TopicPartition]) -> None:
        numbers = [part.partition for part in partitions]
        self._write([kind, numbers, self.consumer.membership().generation, time.monotonic()])


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
        """What the consumer says of its membership."""
        return self._member.consumer.membership()

    @property
    def alive(self) -> bool:
        """Whether it still polls."""
        return self._thread.is_alive()

    def history(self) -> History:
        """What it wrote down so far; goes on growing."""
        with self._lock:
            return self._history

    def stop(self, leave: str = "default") -> None:
        """Close the consumer and wait for the end."""
        self._member.stop(leave)
        self._thread.join(30)
        assert not self._thread.is_alive(), f"{self.name} did not end"


@dataclass(frozen=True, slots=True)
class _Reading:
    """How far a history file has been read."""

    history: History
    offset: int


class MemberProcess:
    """A recording member in a process of its own, that can be killed and stopped; `python -m tests.support.recording`.

    `settings` are changes to `member_settings`, as JSON can carry them.
    """

    def __init__(self, folder: Path, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        self.name = f"process-{next(_lives)}"
        self.started_at = time.monotonic()
        self._log = folder / f"{self.name}.jsonl"
        self._log.touch()
        self._reading = _Reading(History(self.name), 0)
        words = {"bootstrap": bootstrap, "group": group, "topic": topic, "log": str(self._log), "settings": settings}
        command = [sys.executable, "-m", "tests.support.recording", json.dumps(words)]
        self.stderr = folder / f"{self.name}.err"
        with self.stderr.open("wb") as errors_to:
            self._process = subprocess.Popen(command, cwd=ROOT, stderr=errors_to)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process exists; a stopped one does."""
        return self._process.poll() is None

    def history(self) -> History:
        """What it wrote down so far."""
        with self._log.open("rb") as log:
            log.seek(self._reading.offset)
            fresh = log.read()
        # A line that is only half there is read next time.
        whole = fresh[: fresh.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._reading.history.add(json.loads(line))
        self._reading = _Reading(self._reading.history, self._reading.offset + len(whole))
        return self._reading.history

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
        """Ask it to close its consumer, and wait for the end; a static member remains in its group."""
        if self.alive:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"{self.name} did not end: {self.stderr.read_text()[-2000:]}") from None


def _main(words: Mapping[str, Any]) -> int:
    log = os.open(words["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(row: Row) -> None:
        # Unbuffered: a row that was written survives the death of the process.
        os.write(log, json.dumps(row, separators=(",", ":")).encode() + b"\n")

    # Blocked before any thread starts, so that they all inherit it. SIGINT too: whoever started us ends us.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in words["settings"].items()}
    member = RecordingMember(
        member_settings(words["bootstrap"], words["group"], **settings),
        [words["topic"]],
        write,
    )
    threading.Thread(target=_stop_when_told, args=(member,), daemon=True).start()
    member.run()
    return 0


def _stop_when_told(member: RecordingMember) -> None:
    signal.sigwait({signal.SIGTERM})
    member.stop()


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.argv[1])))
