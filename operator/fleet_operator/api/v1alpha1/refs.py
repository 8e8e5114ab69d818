"""References between objects: the objects and Kafka groups that the body of a custom resource names."""

from __future__ import annotations

from typing import Any

from fleet_consumer.contract import naming

Ref = tuple[str, str]
"""Namespace and name."""


def cluster_of(group: dict[str, Any]) -> Ref:
    return group["metadata"]["namespace"], group["spec"]["clusterRef"]["name"]


def policy_of(group: dict[str, Any]) -> Ref | None:
    """The RetryPolicy of a ConsumerGroup; None without `spec.retry`."""
    retry = group["spec"].get("retry")
    return (group["metadata"]["namespace"], retry["policyRef"]["name"]) if retry else None


def source_of(group: dict[str, Any]) -> Ref | None:
    """The ConfigMap with a ConsumerGroup's handler source; None where the image has it."""
    name = ((group["spec"]["handler"].get("python") or {}).get("configMapRef") or {}).get("name")
    return (group["metadata"]["namespace"], name) if name else None


def group_of(run: dict[str, Any]) -> Ref:
    return run["metadata"]["namespace"], run["spec"]["groupRef"]["name"]


def default_group_id(namespace: str, name: str) -> str:
    """The Kafka group of a ConsumerGroup without `spec.groupId`. Neither part has dots, so no two objects of a
    Kubernetes cluster have the same."""
    return f"{namespace}.{name}"


def group_id_of(group: dict[str, Any]) -> str:
    metadata = group["metadata"]
    return str(group["spec"].get("groupId") or default_group_id(metadata["namespace"], metadata["name"]))


def main_group_of(group_id: str) -> str:
    """The Kafka group whose retry workers would form this group; the group itself if its id is no retry group's."""
    return group_id.removesuffix(naming.retry_group("")) or group_id
