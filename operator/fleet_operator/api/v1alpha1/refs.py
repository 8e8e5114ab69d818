"""Reads references to other objects, and Kafka group ids, from the body of a custom resource."""

from typing import Any

from fleet_consumer.contract import naming

Ref = tuple[str, str]
"""Namespace and name of an object."""


def cluster_of(group: dict[str, Any]) -> Ref:
    return group["metadata"]["namespace"], group["spec"]["clusterRef"]["name"]


def policy_of(group: dict[str, Any]) -> Ref | None:
    retry = group["spec"].get("retry")
    return (group["metadata"]["namespace"], retry["policyRef"]["name"]) if retry else None


def source_of(group: dict[str, Any]) -> Ref | None:
    """The ConfigMap with the source of a ConsumerGroup's handler; None if the spec names no such ConfigMap."""
    name = ((group["spec"]["handler"].get("python") or {}).get("configMapRef") or {}).get("name")
    return (group["metadata"]["namespace"], name) if name else None


def group_of(run: dict[str, Any]) -> Ref:
    return run["metadata"]["namespace"], run["spec"]["groupRef"]["name"]


def default_group_id(namespace: str, name: str) -> str:
    """The default Kafka group id. It is unique in a Kubernetes cluster, because neither part contains a dot."""
    return f"{namespace}.{name}"


def group_id_of(group: dict[str, Any]) -> str:
    metadata = group["metadata"]
    return str(group["spec"].get("groupId") or default_group_id(metadata["namespace"], metadata["name"]))


def main_group_of(group_id: str) -> str:
    """Convert the group id of retry workers to that of the main workers. Any other group id is returned unchanged."""
    return group_id.removesuffix(naming.retry_group("")) or group_id
