"""The members of the soak: processes, the faults done to them, and their size."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.growth import Sample
from tests.support.ownership import History
from tests.support.recording import MemberProcess

__all__ = ["Fleet"]

ANCHORS = 2
"""Members without faults: they live through everything, so that growth can be judged by them."""
INSTANCES = ("static-1", "static-2")


@dataclass(slots=True)
class _Live:
    process: MemberProcess
    instance_id: str | None = None
    anchor: bool = False
    wakes_at: float | None = None
    samples: list[Sample] = field(default_factory=list)


class Fleet:
    """Starts, ends and watches members; it makes no choices."""

    def __init__(self, folder: Path, bootstrap: str, group: str, topic: str, **settings: Any) -> None:
        self._folder, self._bootstrap, self._group, self._topic = folder, bootstrap, group, topic
        self._settings = settings
        self._live: dict[str, _Live] = {}
        self._gone: list[MemberProcess] = []
        self._leaving: dict[str, Future[None]] = {}
        self._pool = ThreadPoolExecutor(4)
        self.done: Counter[str] = Counter()
        self.findings: list[str] = []
        self.anchors = [self.join(None, anchor=True) for _ in range(ANCHORS)]

    @property
    def awake(self) -> tuple[str, ...]:
        """Running members that may be harmed."""
        return tuple(name for name, live in self._live.items() if not live.anchor and live.wakes_at is None)

    @property
    def asleep(self) -> tuple[str, ...]:
        """Members that are stopped."""
        return tuple(name for name, live in self._live.items() if live.wakes_at is not None)

    @property
    def vacant(self) -> tuple[str, ...]:
        """Instance ids without a process; one that is closing still has its own."""
        taken = {live.instance_id for live in self._live.values()} | set(self._leaving)
        return tuple(name for name in INSTANCES if name not in taken)

    @property
    def processes(self) -> list[MemberProcess]:
        """The running processes."""
        return [live.process for live in self._live.values()]

    def join(self, instance_id: str | None, *, anchor: bool = False) -> str:
        """Start a member; returns its name."""
        static: dict[str, Any] = {} if instance_id is None else {"group_instance_id": instance_id}
        process = MemberProcess(self._folder, self._bootstrap, self._group, self._topic, **self._settings, **static)
        self._live[process.name] = _Live(process, instance_id, anchor)
        self.done["join"] += 1
        return process.name

    def leave(self, name: str) -> None:
        """Ask a member to close, and do not wait for it."""
        live = self._live.pop(name)
        self._gone.append(live.process)
        self._leaving[live.instance_id or name] = self._pool.submit(live.process.stop)
        self.done["leave"] += 1

    def kill(self, name: str) -> None:
        """SIGKILL."""
        live = self._live.pop(name)
        live.process.kill()
        self._gone.append(live.process)
        self.done["kill"] += 1

    def sleep(self, name: str, seconds: float) -> None:
        """SIGSTOP; `tick` wakes it."""
        self._live[name].process.suspend()
        self._live[name].wakes_at = time.monotonic() + seconds
        self.done["sleep"] += 1

    def wake_all(self) -> None:
        """Resume all sleepers (SIGCONT)."""
        for live in self._live.values():
            if live.wakes_at is not None:
                live.wakes_at = None
                live.process.wake()

    def tick(self) -> None:
        """Resume the members that are due, and note those that ended unexpectedly."""
        now = time.monotonic()
        for name, live in list(self._live.items()):
            if live.wakes_at is not None and live.wakes_at <= now:
                live.wakes_at = None
                live.process.wake()
            if not live.process.alive:
                del self._live[name]
                self._gone.append(live.process)
                errors = live.process.history().errors[-1:] or [live.process.stderr.read_text()[-500:]]
                self.findings.append(f"{name} ended unasked: {errors[0]}")
        for name, future in list(self._leaving.items()):
            if future.done():
                del self._leaving[name]
                error = future.exception()
                if error is not None:
                    self.findings.append(str(error))

    def sample(self, at: float) -> None:
        """Sample the size of every running member."""
        for live in self._live.values():
            folder = Path(f"/proc/{live.process.pid}")
            found = re.search(r"^VmRSS:\s+(\d+)", (folder / "status").read_text(), flags=re.MULTILINE)
            if found is not None:
                names = thread_names(folder / "task")
                library = sum(name.startswith("rdk:") for name in names)
                live.samples.append(Sample(at, int(found[1]) / 1024, len(names) - library, library))

    def samples(self, name: str) -> list[Sample]:
        """The samples of a running member."""
        return self._live[name].samples if name in self._live else []

    def histories(self) -> list[History]:
        """The histories of all members, the ended ones included."""
        return [process.history() for process in [*self._gone, *self.processes]]

    def stop(self) -> None:
        """Close all running members, in order, and wait for those that are closing."""
        self.wake_all()
        for name in list(self._live):
            self.leave(name)
        while self._leaving:
            next(iter(self._leaving.values())).exception()
            self.tick()

    def close(self) -> None:
        """End whatever is left at once."""
        for process in [*self._gone, *self.processes]:
            if process.alive:
                process.kill()
        self._pool.shutdown()


def thread_names(tasks: Path) -> list[str]:
    """The names of a process's threads, without those that end meanwhile."""
    names = []
    for task in tasks.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names.append((task / "comm").read_text())
    return names
