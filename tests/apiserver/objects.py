"""The objects that the operator tests apply, with the changes of each test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

API_VERSION = "consumerfleet.io/v1alpha1"
HANDLER_SOURCE = "def handle(record):\n    return None\n"


def namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def handler_source(in_namespace: str, name: str = "handler", *, source: str = HANDLER_SOURCE) -> dict[str, Any]:
    labels = {"consumerfleet.io/handler": "true"}
    metadata = {"name": name, "namespace": in_namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"handler.py": source}}


def secret(in_namespace: str, name: str, *, password: str, labelled: bool = True) -> dict[str, Any]:
    labels = {"consumerfleet.io/credentials": "true"} if labelled else {}
    metadata = {"name": name, "namespace": in_namespace, "labels": labels}
    data = {"username": "alice", "password": password}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}


def cluster(in_namespace: str, bootstrap: str, *, name: str = "main", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": in_namespace}
    wanted = {"bootstrapServers": [bootstrap], **spec}
    return {"apiVersion": API_VERSION, "kind": "KafkaCluster", "metadata": metadata, "spec": wanted}


def sasl(secret_name: str) -> dict[str, Any]:
    return {"mechanism": "PLAIN", "secretRef": {"name": secret_name}, "allowWithoutTls": True}


def group(
    in_namespace: str,
    *,
    name: str = "flights",
    group_id: str | None = None,
    callable_: str = "handler:handle",
    handler: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A ConsumerGroup of topic `flights`; its group id has the namespace in it, because all tests share one Kafka."""
    python = {"callable": callable_, "configMapRef": {"name": "handler"}}
    wanted = {
        "clusterRef": {"name": "main"},
        **({"groupId": group_id} if group_id is not None else {}),
        "topics": ["flights"],
        "handler": {"python": python, **(handler or {})},
        "consumer": {"classic": {"assignors": ["range"]}},
        **spec,
    }
    metadata = {"name": name, "namespace": in_namespace}
    return {"apiVersion": API_VERSION, "kind": "ConsumerGroup", "metadata": metadata, "spec": wanted}


def policy(in_namespace: str, *sequence: str, name: str = "standard", **spec: Any) -> dict[str, Any]:
    """A RetryPolicy with these delays and without a budget, as no worker here reports a breaker; without delays, `spec`
    generates them."""
    spec = {"budget": {"action": "None"}, **spec}
    metadata = {"name": name, "namespace": in_namespace}
    wanted = {"sequence": list(sequence), **spec} if sequence else spec
    return {"apiVersion": API_VERSION, "kind": "RetryPolicy", "metadata": metadata, "spec": wanted}


def retry(name: str = "standard", **worker: Any) -> dict[str, Any]:
    """`spec.retry` of a ConsumerGroup."""
    return {"policyRef": {"name": name}, "worker": worker}
