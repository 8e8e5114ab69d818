"""An HPA on the scale subresource of a group; its metric is the operator's lag gauge.

A small adapter connects them: an API server for `external.metrics.k8s.io` with one metric. In production that is
Prometheus' adapter, or KEDA.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from e2e.install import OPERATOR_NAMESPACE, OPERATOR_SELECTOR, Installation
from e2e.local_cluster.pki import Authority

METRIC: Final = "consumer-group-lag"
API_SERVICE: Final = "v1beta1.external.metrics.k8s.io"
PROGRAM: Final = Path(__file__).parent / "adapter.py"
LAG_PER_WORKER: Final = "100"


@contextmanager
def adapter_objects(installation: Installation, name: str) -> Iterator[list[dict[str, Any]]]:
    """The adapter with its certificate, and the HPA of a group of this name in a namespace of this name. The API is
    the cluster's only one of its kind, and is removed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        authority.ensure()
        certificate, key = authority.issue("adapter", "adapter", names=[f"DNS:adapter.{name}.svc"])
        pair = {"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes()}
        bundle = base64.b64encode(authority.root_certificate.read_bytes()).decode()
    try:
        pages = _operator_pages(installation)
        yield [*_adapter(installation.consumer_image, name, pair, bundle, pages), _autoscaler(name)]
    finally:
        installation.cluster.kubectl("delete", "apiservice", API_SERVICE, "--ignore-not-found")
        installation.cluster.kubectl("delete", "clusterrole,clusterrolebinding", METRIC, "--ignore-not-found")


def _operator_pages(installation: Installation) -> list[str]:
    """The metrics pages of all replicas: any of them may be the leader, and only the leader has series of groups."""
    pods = installation.cluster.list("pods", namespace=OPERATOR_NAMESPACE, selector=OPERATOR_SELECTOR)
    return [f"http://{pod['status']['podIP']}:8080/metrics" for pod in pods]


def _adapter(image: str, name: str, pair: dict[str, bytes], bundle: str, pages: list[str]) -> list[dict[str, Any]]:
    labels = {"app": "adapter"}
    words = ["python", "/program/adapter.py", "--namespace", name, "--group", name, "--metrics", *pages]
    mounts = [{"name": each, "mountPath": f"/{each}"} for each in ("program", "certificate")]
    container = {"name": "adapter", "image": image, "imagePullPolicy": "IfNotPresent", "command": words}
    volumes = [
        {"name": "program", "configMap": {"name": "adapter"}},
        {"name": "certificate", "secret": {"secretName": "adapter"}},
    ]
    spec = {"containers": [{**container, "volumeMounts": mounts}], "volumes": volumes}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": METRIC}
    rule = {"apiGroups": ["external.metrics.k8s.io"], "resources": ["*"], "verbs": ["get", "list"]}
    reader = {"kind": "ServiceAccount", "name": "horizontal-pod-autoscaler", "namespace": "kube-system"}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": METRIC}}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "adapter"}}
        | {"data": {"adapter.py": PROGRAM.read_text()}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "adapter"}, "type": "kubernetes.io/tls"}
        | {"data": {file: base64.b64encode(content).decode() for file, content in pair.items()}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "adapter", "labels": labels}, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "adapter"}}
        | {"spec": {"selector": labels, "ports": [{"port": 443, "targetPort": 8443}]}},
        {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": API_SERVICE}}
        | {
            "spec": {
                "group": "external.metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "service": {"name": "adapter", "namespace": name},
                "caBundle": bundle,
            }
        },
        {**rbac, "kind": "ClusterRole", "rules": [rule]},
        {**rbac, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [reader]},
    ]


def _autoscaler(name: str) -> dict[str, Any]:
    external = {
        "metric": {"name": METRIC},
        "target": {"type": "AverageValue", "averageValue": LAG_PER_WORKER},
    }
    target = {"apiVersion": "consumerfleet.io/v1alpha1", "kind": "ConsumerGroup", "name": name}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": 1,
            "maxReplicas": 6,
            "metrics": [{"type": "External", "external": external}],
        },
    }
