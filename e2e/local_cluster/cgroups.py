"""The control group of a cluster's pods, outside everything else that runs on the machine.

A kubelet removes unknown pod groups, so two kubelets must not share a root. In the old layout (version 1)
every controller has its own tree and a new ``cpuset`` group has no processors until it is given some; in the unified
layout (version 2) controllers have to be passed on by the parent.
"""

from pathlib import Path

from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.waiting import wait_until

__all__ = ["create_cgroup", "existing_cgroups", "remove_cgroup"]

MOUNT = Path("/sys/fs/cgroup")
NEEDED_CONTROLLERS = ("cpu", "cpuset", "hugetlb", "memory", "pids")
# A group has the same share of processors as a single process outside of groups: without a higher weight all pods
# together would get as much as one test process.
WEIGHTS = {"cpu.weight": "400", "cpu.shares": "4096"}


def create_cgroup(name: str) -> None:
    """Create the group in every hierarchy. Raises ClusterError (``CgroupUnusable``)."""
    for root in _hierarchies():
        group = root / name
        try:
            if _is_unified(root):
                _pass_controllers_on(root)
            group.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):
                own = group / setting
                if not _is_unified(root) and own.exists() and not own.read_text().strip():
                    own.write_text((root / setting).read_text())
            for setting, weight in WEIGHTS.items():
                if (group / setting).exists():
                    (group / setting).write_text(weight)
        except OSError as error:
            raise ClusterError(
                "CgroupUnusable",
                f"cannot set up the control group {group}: {error.strerror}; the cluster needs to be root with "
                "writable control groups (in a container: --privileged --cgroupns=host)",
            ) from error


def remove_cgroup(name: str) -> None:
    """Remove the group and all below it, in every hierarchy; its processes must be gone."""

    def gone() -> bool:
        for group in existing_cgroups(name):
            # Children before parents. A group may be busy for a moment after its last process has died.
            for folder in sorted((each for each in group.rglob("*") if each.is_dir()), reverse=True):
                _try_rmdir(folder)
            _try_rmdir(group)
        return not existing_cgroups(name)

    wait_until(gone, what=f"the control groups {name} to become empty", timeout_s=20.0, interval_s=0.1)


def existing_cgroups(name: str) -> list[Path]:
    """The folders of the group that exist, one for each hierarchy."""
    return [root / name for root in _hierarchies() if (root / name).is_dir()]


def _hierarchies() -> list[Path]:
    if (MOUNT / "cgroup.controllers").exists():
        return [MOUNT]
    # `cpu` and `cpuacct` are often two names (links) of one hierarchy.
    roots = {each.resolve() for each in MOUNT.iterdir() if (each / "cgroup.procs").exists()}
    return sorted(roots)


def _is_unified(root: Path) -> bool:
    return (root / "cgroup.controllers").exists()


def _pass_controllers_on(root: Path) -> None:
    available = (root / "cgroup.controllers").read_text().split()
    passed_on = (root / "cgroup.subtree_control").read_text().split()
    for controller in NEEDED_CONTROLLERS:
        if controller in available and controller not in passed_on:
            (root / "cgroup.subtree_control").write_text(f"+{controller}")


def _try_rmdir(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # Busy or already gone; the caller checks again.
