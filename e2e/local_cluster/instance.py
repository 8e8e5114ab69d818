"""A cluster's name and paths, the only differences between several clusters of one machine."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from e2e.local_cluster.cache import fleet_home
from e2e.local_cluster.errors import ClusterError

__all__ = ["CHECKOUT", "Instance", "existing_instances", "select_instance"]

CHECKOUT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,46}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Instance:
    """A cluster's name and directory; everything else it owns is named after these two."""

    name: str
    directory: Path

    @property
    def digest(self) -> str:
        """Eight hex digits of the directory: short enough for the name of a network link, which has 15 characters."""
        return hashlib.sha256(str(self.directory).encode()).hexdigest()[:8]

    @property
    def link(self) -> str:
        """The host's end of the link into the cluster."""
        return f"fleet-{self.digest}"

    @property
    def cgroup(self) -> str:
        """The control group that holds the pods, in every hierarchy."""
        return f"fleet-{self.digest}"

    @property
    def lock(self) -> Path:
        """The lock of every command that changes the cluster."""
        return self.directory.parent / f".{self.name}.lock"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.directory / "admin.conf"

    @property
    def logs(self) -> Path:
        """The folder of logs, one file per component."""
        return self.directory / "logs"

    @property
    def settings_file(self) -> Path:
        """The settings that the node was started with."""
        return self.directory / "node.json"

    @property
    def state_file(self) -> Path:
        """The state of the components, reported by the first process inside."""
        return self.directory / "state.json"

    @property
    def network_file(self) -> Path:
        """The pair of addresses that is reserved for this cluster."""
        return self.directory / "network.json"


def select_instance(name: str | None = None) -> Instance:
    """The instance of ``name``, else of ``FLEET_CLUSTER``, else of this checkout.

    Two clones of the repository get two clusters. Raises ClusterError (``BadName``).
    """
    chosen = name or os.environ.get("FLEET_CLUSTER")
    if not chosen:
        stem = re.sub(r"[^a-z0-9]+", "-", CHECKOUT.name.lower()).strip("-")[:24] or "clone"
        chosen = f"{stem}-{hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:6]}"
    if not NAME.fullmatch(chosen):
        raise ClusterError(
            "BadName",
            f"{chosen!r} cannot name a cluster: use at most 48 of a-z, 0-9, '-', '.', a letter or digit first and last",
        )
    return Instance(chosen, _instances_folder() / chosen)


def existing_instances() -> list[Instance]:
    """Every instance of this ``FLEET_HOME`` that has a directory, running or not."""
    folder = _instances_folder()
    if not folder.is_dir():
        return []
    return [Instance(each.name, each) for each in sorted(folder.iterdir()) if each.is_dir()]


def _instances_folder() -> Path:
    return fleet_home() / "instances"
