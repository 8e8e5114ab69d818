"""The namespaces of a cluster, seen from outside: creating, finding, entering and ending them.

They exist as long as their first process, which is ours (see ``inside``). The process table is the only record of it:
a file with its id could be outdated, lost in a crash, or name an unrelated process that got the same id later.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from e2e.local_cluster.commands import run
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.instance import CHECKOUT, Instance
from e2e.local_cluster.waiting import wait_until

__all__ = ["end_namespace", "enter_command", "find_first_process", "start_namespace"]

INSIDE_MODULE = "e2e.local_cluster.inside"
PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def start_namespace(instance: Instance) -> int:
    """Start the first process in new namespaces and return its id on this side of them. It waits for its link."""
    home = instance.directory / "home"
    home.mkdir(parents=True, exist_ok=True)
    instance.logs.mkdir(parents=True, exist_ok=True)
    # Nothing of the caller's environment is passed: no proxies, no kubeconfig, no virtual environment.
    env = {"PATH": PROGRAM_PATH, "HOME": str(home), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    env["PYTHONPATH"] = str(CHECKOUT)
    # `setsid --fork` detaches from the caller: its terminal, its session, and its duty to wait for a child.
    detached = ["setsid", "--fork", "sh", "-c", 'exec "$@" >>"$0" 2>&1 </dev/null', str(instance.logs / "inside.log")]
    private = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    run([*detached, *private, *_inside_command(instance)], cwd=Path("/"), env=env)
    wait_until(
        lambda: find_first_process(instance) is not None,
        what=f"the first process of cluster {instance.name} (its log: {instance.logs / 'inside.log'})",
        timeout_s=15.0,
        interval_s=0.02,
    )
    pid = find_first_process(instance)
    assert pid is not None
    return pid


def find_first_process(instance: Instance) -> int | None:
    """The id of the instance's first process on this side, or None when the cluster does not run."""
    for pid in _processes_of(instance):
        try:
            status = Path("/proc", str(pid), "status").read_text()
        except OSError:
            continue
        for line in status.splitlines():
            # "NSpid: 4711 1": 4711 to us, and the first process of a namespace below ours.
            if line.startswith("NSpid:") and len(line.split()) > 2 and line.split()[-1] == "1":
                return pid
    return None


def end_namespace(instance: Instance) -> None:
    """Kill the first process, and with it every process, mount and link inside; wait until all are gone."""

    def gone() -> bool:
        left = list(_processes_of(instance))
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not left

    # The kernel lets the first process finish only after all others of its namespace.
    wait_until(gone, what=f"the processes of cluster {instance.name} to end", timeout_s=30.0, interval_s=0.05)


def enter_command(instance: Instance, command: Sequence[str | Path], *, network: bool = True) -> list[str]:
    """The words that run ``command`` inside. Paths in it must be absolute. Raises ClusterError (``NotRunning``)."""
    pid = find_first_process(instance)
    if pid is None:
        raise ClusterError("NotRunning", f"cluster {instance.name} does not run; start it with `up`")
    namespaces = ["--mount", "--pid", *(["--net"] if network else [])]
    return ["nsenter", f"--target={pid}", *namespaces, "--", *(str(word) for word in command)]


def _inside_command(instance: Instance) -> list[str]:
    return [sys.executable, "-m", INSIDE_MODULE, str(instance.directory)]


def _processes_of(instance: Instance) -> Iterator[int]:
    """The first process, its parent `unshare`, and processes about to become one: all end with the same three words."""
    wanted = [word.encode() for word in _inside_command(instance)[1:]]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue  # It has just ended.
        if words[-len(wanted) :] == wanted:
            yield int(entry.name)
