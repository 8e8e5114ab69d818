"""Access to the API of the embedded cluster, or of the one that ``FLEET_KUBECONFIG`` names."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from e2e.local_cluster.commands import run
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.gomodules import HELM, KUBERNETES, ensure_programs
from e2e.local_cluster.waiting import wait_until

__all__ = ["ClusterAccess", "await_definitions", "condition_holds", "foreign_kubeconfig"]

MANIFESTS = Path(__file__).parent / "manifests"


def foreign_kubeconfig() -> Path | None:
    """The kubeconfig in ``FLEET_KUBECONFIG``, or None. ``KUBECONFIG`` is ignored: it may name production.

    Raises ClusterError (``ClusterUnreachable``) when the file does not exist.
    """
    named = os.environ.get("FLEET_KUBECONFIG")
    if not named:
        return None
    path = Path(named).expanduser().absolute()
    if not path.is_file():
        raise ClusterError("ClusterUnreachable", f"FLEET_KUBECONFIG names {path}, which is not a file")
    return path


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """kubectl and helm with one kubeconfig, in this package's versions."""

    kubeconfig: Path

    def kubectl_command(self) -> list[str]:
        """The words that start kubectl."""
        return [str(ensure_programs(KUBERNETES) / "kubectl"), "--kubeconfig", str(self.kubeconfig)]

    def helm_command(self) -> list[str]:
        """The words that start helm."""
        return [str(ensure_programs(HELM) / "helm"), "--kubeconfig", str(self.kubeconfig)]

    def kubectl(self, *args: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """Run kubectl and return what it prints; raises ClusterError (``KubectlFailed``)."""
        return run([*self.kubectl_command(), *args], reason="KubectlFailed", stdin=stdin, timeout_s=timeout_s)

    def apply(self, manifest: str, variables: Mapping[str, str]) -> None:
        """Apply a manifest of this package with its ``${VARIABLES}`` filled in."""
        text = Template((MANIFESTS / manifest).read_text()).substitute(variables)
        owner = ["--server-side", "--force-conflicts", "--field-manager=local-cluster"]
        self.kubectl("apply", *owner, "-f", "-", stdin=text)


def await_definitions(kubectl: Callable[..., str], *objects: str, timeout_s: float) -> None:
    """Wait until CustomResourceDefinitions, named or given as ``--filename=``, are established.

    ``kubectl wait`` fails for one so new that its conditions are null. Raises ClusterError.
    """

    def established() -> bool:
        found = json.loads(kubectl("get", *objects, "--output=json"))
        return all(condition_holds(each, "Established") for each in found.get("items", [found]))

    wait_until(established, what=f"{', '.join(objects)} to be established", timeout_s=timeout_s, interval_s=0.3)


def condition_holds(thing: Mapping[str, object], kind: str, *, since: str = "") -> bool:
    """True if an object's condition ``kind`` is True and was reported at ``since`` (RFC 3339, UTC) or later."""
    status = thing.get("status")
    conditions = (status.get("conditions") or []) if isinstance(status, Mapping) else []
    return any(
        each["type"] == kind and each["status"] == "True" and str(each.get("lastHeartbeatTime", "")) >= since
        for each in conditions
    )
