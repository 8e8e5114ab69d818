"""Client of one running cluster for the demo and the end-to-end suites: `kubectl` and `helm`.

The cluster is the embedded one, or the one that FLEET_KUBECONFIG names. This module only needs its kubeconfig.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from e2e.direct import Direct, direct
from e2e.local_cluster.waiting import pause

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
POLL_SECONDS = 0.2
PATIENCE_S = 300.0
"""Timeout of waits without a promised limit: the cluster, its pods and the tests share a machine."""


class CommandFailed(Exception):
    """`kubectl` or `helm` failed; `stderr` holds its output."""

    def __init__(self, command: Sequence[str], stderr: str) -> None:
        super().__init__(f"`{' '.join(command)}`: {stderr.strip()[-2000:]}")
        self.stderr = stderr


class WaitedTooLong(Exception):
    """A condition did not become true in time; the message has what was last seen."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Commands on one cluster. `kubectl` and `helm` are paths of programs, `kubeconfig` that of a file."""

    kubectl_path: Path
    helm_path: Path
    kubeconfig: Path

    def _run(self, command: Sequence[str], stdin: bytes | None, timeout_s: float) -> str:
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=timeout_s, check=False)
        if done.returncode != 0:
            raise CommandFailed(command, done.stderr.decode(errors="replace"))
        return done.stdout.decode(errors="replace")

    def kubectl_command(self, *arguments: str) -> list[str]:
        return [str(self.kubectl_path), "--kubeconfig", str(self.kubeconfig), *arguments]

    def kubectl(self, *arguments: str, stdin: str | bytes | None = None, timeout_s: float = PATIENCE_S) -> str:
        """Standard output of `kubectl`. Raises CommandFailed, subprocess.TimeoutExpired."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        return self._run(self.kubectl_command(*arguments), given, timeout_s)

    def kubectl_json(self, *arguments: str, stdin: str | bytes | None = None, timeout_s: float = PATIENCE_S) -> Any:
        """The JSON that `kubectl`, or the program of its `exec`, writes. Raises as `kubectl` does.

        A stream that is cut, for example on a busy node, may end with success but no output: also CommandFailed.
        """
        text = self.kubectl(*arguments, stdin=stdin, timeout_s=timeout_s)
        try:
            return json.loads(text)
        except ValueError as error:
            command = self.kubectl_command(*arguments)
            raise CommandFailed(command, f"it ended well, but its output is not JSON: {error}: {text!r}") from error

    def helm(self, *arguments: str, timeout_s: float = PATIENCE_S + 30) -> str:
        """Standard output of `helm`. Raises CommandFailed, subprocess.TimeoutExpired."""
        return self._run([str(self.helm_path), "--kubeconfig", str(self.kubeconfig), *arguments], None, timeout_s)

    def apply(self, manifests: str | Sequence[dict[str, Any]], *, namespace: str) -> None:
        """Apply YAML text, or objects."""
        text = (
            manifests
            if isinstance(manifests, str)
            else json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        )
        self.kubectl("apply", "--namespace", namespace, "--server-side", "--filename", "-", stdin=text)

    def get(self, kind: str, name: str, *, namespace: str) -> dict[str, Any] | None:
        """The object, or None if it does not exist."""
        try:
            return self._direct().get(kind, name, namespace=namespace)
        except LookupError:  # kubectl knows every kind and login, and reports an unreachable server
            pass
        try:
            found: dict[str, Any] = self.kubectl_json("get", kind, name, "--namespace", namespace, "--output", "json")
        except CommandFailed as failure:
            if "(NotFound)" in failure.stderr:
                return None
            raise
        return found

    def list(self, kind: str, *, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """All objects of a kind in a namespace."""
        try:
            return self._direct().list(kind, namespace=namespace, selector=selector)
        except LookupError:
            pass
        arguments = ["get", kind, "--namespace", namespace, "--output", "json"]
        found = self.kubectl_json(*arguments, *(["--selector", selector] if selector else []))
        items: list[dict[str, Any]] = found["items"]
        return items

    def _direct(self) -> Direct:
        """Raises LookupError if the kubeconfig is not one with a client certificate."""
        try:
            found = direct(self.kubeconfig, self.kubeconfig.stat().st_mtime_ns)
        except OSError as error:
            raise LookupError(str(error)) from error
        if found is None:
            raise LookupError(f"{self.kubeconfig} has no client certificate")
        return found

    def ensure_namespace(self, name: str) -> None:
        self.kubectl(
            "apply",
            "--filename",
            "-",
            stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        )


def eventually(probe: Callable[[], T | None], *, timeout_s: float, what: str, poll_s: float = POLL_SECONDS) -> T:
    """Return `probe`'s first truthy result. Raises WaitedTooLong with what was awaited and last seen."""
    deadline = time.monotonic() + timeout_s
    while True:
        last: object
        try:
            seen = probe()
        except (CommandFailed, AssertionError) as failure:
            last = failure
        else:
            if seen:
                return seen
            last = seen
        if time.monotonic() >= deadline:
            raise WaitedTooLong(f"not within {timeout_s} s: {what}; last seen: {last!r}")
        pause(poll_s)


def conditions(found: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The conditions of an object by type; empty before its first status."""
    return {entry["type"]: entry for entry in ((found or {}).get("status") or {}).get("conditions", ())}
