"""The parts of a cluster and their health, as ``status`` shows them."""

import json
import time
from dataclasses import dataclass

from e2e.local_cluster.access import ClusterAccess, condition_holds
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.instance import Instance
from e2e.local_cluster.namespace import find_first_process
from e2e.local_cluster.network import link_exists
from e2e.local_cluster.node_state import NodeState

__all__ = ["Part", "cluster_parts"]


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the status."""

    name: str
    healthy: bool
    detail: str


def cluster_parts(instance: Instance) -> list[Part]:
    """Everything that makes up the instance's cluster, from the outside in."""
    pid = find_first_process(instance)
    parts = [
        Part("namespaces", pid is not None, f"process {pid}" if pid else "not running"),
        Part("link", link_exists(instance), instance.link),
    ]
    if pid is None:
        return parts
    return [*parts, *_components(instance), *api_parts(ClusterAccess(instance.kubeconfig))]


def api_parts(access: ClusterAccess) -> list[Part]:
    """The API's parts: itself, nodes, pods."""
    try:
        nodes = json.loads(access.kubectl("get", "nodes", "-o", "json", "--request-timeout=5s"))["items"]
        pods = json.loads(access.kubectl("get", "pods", "-A", "-o", "json", "--request-timeout=5s"))["items"]
    except ClusterError as error:
        return [Part("api", False, error.message)]
    parts = [Part("api", True, f"KUBECONFIG={access.kubeconfig}")]
    for node in nodes:
        ready = condition_holds(node, "Ready")
        parts.append(Part(f"node {node['metadata']['name']}", ready, "Ready" if ready else "NotReady"))
    for pod in pods:
        phase = str(pod["status"]["phase"])
        ready = phase == "Succeeded" or condition_holds(pod, "Ready")
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        parts.append(Part(f"pod {name}", ready, phase if ready else f"{phase}, not ready"))
    return parts


def _components(instance: Instance) -> list[Part]:
    state = NodeState.read(instance.state_file)
    parts = []
    for name, component in (state.components if state else {}).items():
        if component.exit_status is None:
            parts.append(Part(name, True, f"running for {_age(component.started_at)}"))
        else:
            log = instance.logs / f"{name}.log"
            parts.append(Part(name, False, f"ended with status {component.exit_status}, see {log}"))
    return parts


def _age(since: float) -> str:
    minutes, seconds = divmod(int(time.time() - since), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
