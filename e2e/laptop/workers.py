"""The local workers of a run: `fleet-consumer run --local`, each in a session of its own.

Ctrl-C in a terminal therefore reaches only the run, which ends the workers in order. If the run is killed, the kernel
ends the workers, and their retry processes end because their standard input closes.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from e2e.laptop.shell import Failed, shown
from e2e.local_cluster.daemons import Daemon
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.waiting import wait_until

STOP_S: Final = 60.0
"""Limit of a clean stop: both processes of a worker may take 20 seconds for their records in progress."""


def ended(process: Daemon) -> bool:
    return not process.running


class Workers:
    """Processes of one command. Logs and temporary files are in `folder`."""

    def __init__(self, folder: Path, command: Sequence[str], count: int) -> None:
        self._command = command
        environment = {**os.environ, "TMPDIR": str(folder)}
        environment.pop("POD_NAME", None)
        self._daemons = [
            # setsid keeps the process id: a child of this process does not lead its process group.
            Daemon(f"worker {number}", ["setsid", *command], log=folder / f"worker-{number}.log", env=environment)
            for number in range(1, count + 1)
        ]
        self._groups: list[int] = []
        self._ended: set[str] = set()

    def start(self) -> None:
        """Start all, and print their command and process ids."""
        for each in self._daemons:
            print(f"\n$ {shown(self._command)} > {each.log} 2>&1 &", flush=True)
            each.start()
            self._groups.append(each.pid)
            print(f"{each.name}: process {each.pid}", flush=True)

    def check(self) -> None:
        """Report workers that have ended. Raises Failed if none is left."""
        for each in self._daemons:
            if not each.running and each.name not in self._ended:
                self._ended.add(each.name)
                print(f"{each.name} has ended; its partitions go to the others within a minute", flush=True)
        if len(self._ended) == len(self._daemons):
            raise Failed(f"every worker has ended; the end of the first log:\n{self._daemons[0].log_tail()}")

    def stop(self) -> None:
        """End each as Ctrl-C does: records in progress are finished and committed. Prints the counts of each."""
        running = [each for each in self._daemons if each.running]
        print(f"\n$ kill -INT {' '.join(str(each.pid) for each in running)}", flush=True)
        for each in running:
            each.signal(signal.SIGINT)
        for each in running:
            try:
                wait_until(partial(ended, each), what=f"the end of {each.name}", timeout_s=STOP_S)
            except ClusterError as error:
                raise Failed(f"{error}\n{each.log_tail()}") from error
            print(f"{each.name}: {each.log.read_text(errors='replace').splitlines()[-1]}", flush=True)

    def kill(self) -> None:
        """End all processes at once, with the retry processes, which may have survived their worker."""
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for each in self._daemons:
            each.kill()
