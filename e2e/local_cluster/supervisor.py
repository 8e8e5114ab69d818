"""The components of a node as child processes of the first process inside.

Nothing is restarted here: in a test cluster that would hide a fault. An ended component is recorded in the state file,
and the next ``up`` starts the node again and reports the reason.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from e2e.local_cluster.control_plane import GO_SETTINGS
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.node_state import ComponentState, NodeState, Phase

__all__ = ["Supervisor"]


class Supervisor:
    """Starts components, keeps the state file up to date, and reaps all processes of the namespace."""

    def __init__(self, *, logs: Path, state_file: Path) -> None:
        self._logs = logs
        self._state_file = state_file
        self._phase: Phase = "starting"
        self._error: str | None = None
        self._started_at = time.time()
        self._components: dict[str, ComponentState] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)
        self._publish()

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a component; what it prints is appended to its own log."""
        with (self._logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **GO_SETTINGS},
            )
        self._processes[name] = process
        self._components[name] = ComponentState(pid=process.pid, started_at=time.time())
        self._publish()

    def check(self) -> None:
        """Raise ClusterError (``ComponentExited``) if a component has ended; for use before ``watch``."""
        for name, process in self._processes.items():
            status = process.poll()
            if status is not None:
                self._record_exit(process.pid, status)
                log = self._logs / f"{name}.log"
                last = "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-15:])
                raise ClusterError(
                    "ComponentExited",
                    f"{name} ended with status {status} while the node started\n{last}\nits log: {log}",
                )

    def fail(self, error: str) -> None:
        """Record that the node could not be started."""
        self._phase, self._error = "failed", error
        self._publish()

    def watch(self) -> None:
        """Record that the node is up, then reap until SIGTERM."""
        self._phase = "running"
        self._publish()
        # The first process of a namespace receives only signals that it handles.
        signal.signal(signal.SIGTERM, _leave)
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                signal.pause()  # Every component has ended; stay, so that the namespace can still be entered.
                continue
            self._record_exit(pid, os.waitstatus_to_exitcode(status))

    def _record_exit(self, pid: int, status: int) -> None:
        for component in self._components.values():
            if component.pid == pid and component.exit_status is None:
                component.exit_status = status
                component.ended_at = time.time()
                self._publish()

    def _publish(self) -> None:
        state = NodeState(self._phase, self._started_at, self._error, self._components)
        partial = self._state_file.with_name(f".{self._state_file.name}.partial")
        partial.write_text(json.dumps(state.to_json(), indent=2) + "\n")
        partial.rename(self._state_file)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
