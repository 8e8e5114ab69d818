"""Processes in a fleet's tools pod that answer commands one by one: waits ask them several times a second."""

from __future__ import annotations

import atexit
import base64
import json
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from e2e.cluster import CommandFailed

__all__ = ["Tools"]


class Tools:
    """One process per asking thread; `command` starts it, and restarts it after its end."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._here = threading.local()

    def ask(self, arguments: Sequence[str], stdin: bytes, timeout_s: float) -> dict[str, Any]:
        """The answer to one command. Raises CommandFailed, also if there is no answer in time."""
        request = {"arguments": list(arguments), "stdin": base64.b64encode(stdin).decode()}
        line = self._exchange(json.dumps(request).encode(), timeout_s)
        whole = line.endswith(b"\n")  # a process that is killed may leave half a line
        missing = {"error": f"no answer within {timeout_s} s, or pod ended"}
        found: dict[str, Any] = json.loads(line) if whole else missing
        if "error" in found:
            raise CommandFailed([*self._command, *arguments], found["error"])
        answer: dict[str, Any] = found["answer"]
        return answer

    def _exchange(self, request: bytes, timeout_s: float) -> bytes:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        try:
            process.stdin.write(request + b"\n")
            process.stdin.flush()
            return process.stdout.readline()
        except BrokenPipeError:
            return b""
        finally:
            timer.cancel()
            timer.join()

    def _running(self) -> subprocess.Popen[bytes]:
        found: subprocess.Popen[bytes] | None = getattr(self._here, "process", None)
        if found is None or found.poll() is not None:
            found = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._here.process = found
            atexit.register(_end, found)
        return found


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
