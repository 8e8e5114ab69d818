"""Servers for a test, which end with it even if the test's process is killed."""

import fcntl
import queue
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from e2e.local_cluster.errors import ClusterError

__all__ = ["Daemon", "free_ports"]

# Below the kernel's range of ports for outgoing connections (32768 and up): no connection gets a server's port during
# its restart.
PORT_RANGE = range(20000, 32000)
PORT_TURN = Path(tempfile.gettempdir()) / "fleet-test-ports"

_Spawn = Callable[[], "subprocess.Popen[bytes]"]
_requests: queue.SimpleQueue[tuple[_Spawn, Future["subprocess.Popen[bytes]"]]] = queue.SimpleQueue()


def _spawner() -> None:
    while True:
        spawn, answer = _requests.get()
        try:
            answer.set_result(spawn())
        except BaseException as error:
            answer.set_exception(error)


# The kernel sends a "parent died" signal when the *thread* that started the process ends, so one thread that lives as
# long as this process starts all servers. Otherwise a broker that a pool's thread restarted would die with the pool.
threading.Thread(target=_spawner, name="daemon-spawner", daemon=True).start()


def free_ports(count: int, address: str = "127.0.0.1", turn: Path = PORT_TURN) -> list[int]:
    """``count`` different ports on which nothing listens right now.

    All processes of the machine share a counter in the file ``turn``, so a port is reused only after all others: suites
    run concurrently, and a server listens on its port only a moment later.
    """
    held: list[socket.socket] = []
    with turn.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        place = int(text) if text.isdecimal() else random.randrange(len(PORT_RANGE))
        try:
            while len(held) < count:
                candidate = socket.socket()
                place = (place + 1) % len(PORT_RANGE)
                try:
                    candidate.bind((address, PORT_RANGE[place]))
                except OSError:
                    candidate.close()
                else:
                    held.append(candidate)
            file.truncate(0)
            file.write(str(place))
            return [int(each.getsockname()[1]) for each in held]
        finally:
            for each in held:
                each.close()


class Daemon:
    """One server process with its log, killed by the kernel if the process that started it dies first."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        self._command = [*_parent_death_wrapper(), *command]
        self._env = dict(env) if env is not None else None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """True while the process exists (a paused one does)."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id. Raises ClusterError (``NotRunning``)."""
        return self._running_process().pid

    def start(self) -> None:
        """Start the process; what it prints is appended to the log. Does nothing if it runs."""
        if self.running:
            return
        answer: Future[subprocess.Popen[bytes]] = Future()
        _requests.put((self._spawn, answer))
        self._process = answer.result()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. Raises ClusterError (``NotRunning``)."""
        self._running_process().send_signal(number)

    def stop(self, timeout_s: float = 20.0) -> None:
        """Ask the process to end, and kill it after ``timeout_s``. Does nothing if it is not running."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)  # A paused process would not handle the signal.
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process as a crash would, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def check_running(self) -> None:
        """Raise ClusterError (``ComponentExited``) with the end of the log unless the process runs."""
        if self.running:
            return
        status = self._process.returncode if self._process else None
        raise ClusterError("ComponentExited", f"{self.name} is not running (exit status {status})\n{self.log_tail()}")

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of the log, and where the rest is."""
        text = self.log.read_text(errors="replace").splitlines()[-lines:] if self.log.exists() else []
        return "\n".join([*(f"  {line}" for line in text), f"the whole log is in {self.log}"])

    def _spawn(self) -> "subprocess.Popen[bytes]":
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self._env
            )

    def _running_process(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            raise ClusterError("NotRunning", f"{self.name} is not running; start it first")
        return self._process


def _parent_death_wrapper() -> list[str]:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise ClusterError("MissingPrograms", "`setpriv` is not on the PATH; install util-linux 2.33 or later")
    return [setpriv, "--pdeathsig", "KILL", "--"]
