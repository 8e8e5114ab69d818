"""The two files passed between the host's side and the inside of a node: its settings and its state."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

__all__ = ["ComponentState", "NodeSettings", "NodeState", "Phase"]

Phase = Literal["starting", "running", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The settings of the inside. A node that runs with other settings must be restarted."""

    etcd_programs: str
    kubernetes_programs: str
    cni_programs: str
    pause_archive: str
    pause_image: str
    host_address: str
    node_address: str
    cgroup: str

    def write(self, file: Path) -> None:
        """Write the settings to the place from which the inside reads them."""
        file.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """The settings in ``file``; None if there are none, or only of another version of this program."""
        try:
            return cls(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError):
            return None


@dataclass(slots=True)
class ComponentState:
    """One component. The process id is the one inside the namespace; times are epoch seconds."""

    pid: int
    started_at: float
    exit_status: int | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as its first process reports it."""

    phase: Phase
    started_at: float
    error: str | None
    components: Mapping[str, ComponentState]

    @property
    def ended(self) -> list[str]:
        """Names of the components that are no longer running."""
        return [name for name, component in self.components.items() if component.exit_status is not None]

    def to_json(self) -> dict[str, Any]:
        """The content of the state file."""
        return {
            "phase": self.phase,
            "startedAt": self.started_at,
            "error": self.error,
            "components": {name: asdict(component) for name, component in self.components.items()},
        }

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """The state in ``file``; None if there is none. The file is replaced atomically, so it is always complete."""
        try:
            content = json.loads(file.read_text())
        except OSError:
            return None
        components = {name: ComponentState(**each) for name, each in content["components"].items()}
        return cls(content["phase"], content["startedAt"], content["error"], components)
