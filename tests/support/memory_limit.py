"""A process under a memory limit of the kernel, like a container's: above it the kernel kills."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.local_cluster.cgroups import create_cgroup, existing_cgroups, remove_cgroup

LIMITS = ("memory.max", "memory.limit_in_bytes")
"""The file that holds the limit, in the unified layout of control groups and in the old one."""
COUNTS = ("memory.events", "memory.oom_control")
"""The files that count the processes killed for memory, in the same order."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A control group with a limit, without swap: that would only delay the kill, and pods have none by default."""

    group: Path

    def command(self, program: str) -> tuple[str, ...]:
        """The command that starts `program` inside of the limit; arguments follow it."""
        return ("sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.group), program)

    @property
    def kills(self) -> int:
        """The number of processes that the kernel killed here for lack of memory."""
        counts = next(path for name in COUNTS if (path := self.group / name).exists())
        lines = (line.split() for line in counts.read_text().splitlines())
        return next(int(count) for name, count in lines if name == "oom_kill")


@contextmanager
def memory_limit(name: str, limit_bytes: int) -> Iterator[MemoryLimit]:
    """A control group of this name for the block; its processes must have ended by then. Needs root."""
    create_cgroup(name)
    try:
        limits = [path for group in existing_cgroups(name) for each in LIMITS if (path := group / each).exists()]
        (limit,) = limits
        limit.write_text(str(limit_bytes))
        yield MemoryLimit(limit.parent)
    finally:
        remove_cgroup(name)
