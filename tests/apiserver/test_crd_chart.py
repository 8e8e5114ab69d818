"""The chart as Helm installs it, on an API server of its own: objects, rights, upgrade, removal."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.gomodules import HELM, ensure_programs
from fleet_operator.runtime.settings import parse
from tests.support.apiserver import ApiServer
from tests.support.waiting import eventually

CHART = Path(__file__).parents[2] / "charts" / "consumer-fleet"
NAMESPACE = "fleet-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:consumer-fleet"
CRDS = (
    "consumergroups.consumerfleet.io",
    "kafkaclusters.consumerfleet.io",
    "redrives.consumerfleet.io",
    "retrypolicies.consumerfleet.io",
)


@dataclass(frozen=True)
class Helm:
    """Helm against one API server; nothing waits, for no pod ever starts there."""

    program: Path
    api: ApiServer

    def __call__(self, *arguments: str) -> str:
        command = [str(self.program), "--kubeconfig", str(self.api.kubeconfig), "--namespace", NAMESPACE, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *arguments: str) -> str:
        """What Helm complains of."""
        done = subprocess.run([str(self.program), *arguments], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def upgrade(self, *arguments: str) -> str:
        """Install the release, or change it."""
        target = ("upgrade", "--install", "consumer-fleet", str(CHART), "--create-namespace")
        return self(*target, *arguments)


@pytest.fixture(scope="module")
def helm() -> Iterator[Helm]:
    with ApiServer() as api:
        yield Helm(ensure_programs(HELM) / "helm", api)


def may(api: ApiServer, verb: str, resource: str, *, namespace: str = "default") -> bool:
    """Whether the operator's account may do something."""
    kind, _, part = resource.partition("/")
    question = ("auth", "can-i", verb, kind, f"--subresource={part}", "-n", namespace, "--as", ACCOUNT)
    try:
        answer = api.kubectl(*question)
    except ClusterError:  # kubectl ends with an error when the answer is no
        return False
    return "yes" in answer


def objects(api: ApiServer, kinds: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(api.kubectl("get", kinds, "-A", "-l", RELEASE, "-o", "json"))["items"]
    return found


RELEASE = "app.kubernetes.io/instance=consumer-fleet"


def test_chart_passes_lint(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("replicas=two", "replicas"),
        ("operator.logLevel=loud", "logLevel"),
        ("operator.imagee=x", "imagee"),
        ("watch.namespaces[0]=Big", "namespaces"),
    ],
)
def test_wrong_values_are_refused(helm: Helm, wrong: str, named: str) -> None:
    assert named in helm.refused("template", str(CHART), "--set", wrong)


def test_life_of_a_release(helm: Helm) -> None:
    """Installed, changed to serve one namespace, removed; CRDs and what users made with them outlive it."""
    api = helm.api
    notes = helm.upgrade()
    assert "serves the whole cluster" in notes
    for crd in CRDS:
        api.kubectl("wait", "--for=condition=Established", f"crd/{crd}", "--timeout=30s")
    expect_pods(api)
    expect_rights(api)

    api.kubectl("create", "namespace", "shop")
    helm.upgrade("--set", "watch.namespaces={shop}", "--set", "replicas=1")
    assert may(api, "patch", "statefulsets.apps", namespace="shop")
    assert not may(api, "patch", "statefulsets.apps")
    assert not may(api, "get", "secrets")
    (deployment,) = objects(api, "deployments")
    assert "--namespace=shop" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert objects(api, "poddisruptionbudgets") == [], "a budget for one replica would block every drain"

    helm("uninstall", "consumer-fleet")
    assert objects(api, "deployments,services,serviceaccounts,clusterroles,roles,rolebindings") == []
    assert api.kubectl("get", "crd", "-o", "name").split() == [
        f"customresourcedefinition.apiextensions.k8s.io/{crd}" for crd in CRDS
    ]

    helm.upgrade("--set", "crds.keep=false")
    helm("uninstall", "consumer-fleet")
    eventually(lambda: api.kubectl("get", "crd", "-o", "name") == "", timeout_s=30, what="the CRDs to be gone")


def expect_pods(api: ApiServer) -> None:
    """Two replicas, flags that the operator has, and nothing that pod security level "restricted" would refuse."""
    (deployment,) = objects(api, "deployments")
    assert deployment["spec"]["replicas"] == 2
    settings = parse(deployment["spec"]["template"]["spec"]["containers"][0]["args"], {})
    assert (settings.leader_elect, settings.lease_namespace, settings.namespaces) == (True, NAMESPACE, ())
    assert (settings.metrics_port, settings.health_port) == (8080, 8081)
    api.kubectl("create", "namespace", "strict")
    api.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
    api.kubectl("-n", "strict", "create", "serviceaccount", "consumer-fleet")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "operator"},
        "spec": deployment["spec"]["template"]["spec"],
    }
    api.kubectl("-n", "strict", "create", "--dry-run=server", "-f", "-", input=json.dumps(pod))
    assert len(objects(api, "poddisruptionbudgets")) == 1


def expect_rights(api: ApiServer) -> None:
    """What the operator needs, and some of what it must never get."""
    allowed = (
        ("patch", "consumergroups.consumerfleet.io/status"),
        ("patch", "consumergroups.consumerfleet.io"),
        ("patch", "retrypolicies.consumerfleet.io/status"),
        ("watch", "kafkaclusters.consumerfleet.io"),
        ("create", "statefulsets.apps"),
        ("update", "jobs.batch"),
        ("delete", "pods"),
        ("get", "secrets"),
        ("create", "events.events.k8s.io"),
    )
    denied = (
        ("list", "secrets"),
        ("watch", "secrets"),
        ("update", "consumergroups.consumerfleet.io"),
        ("patch", "retrypolicies.consumerfleet.io"),
        ("patch", "redrives.consumerfleet.io"),
        ("create", "pods/exec"),
        ("get", "nodes"),
        ("create", "leases.coordination.k8s.io"),
        ("create", "clusterroles.rbac.authorization.k8s.io"),
    )
    assert [right for right in allowed if not may(api, *right)] == []
    assert [right for right in denied if may(api, *right)] == []
    assert may(api, "update", "leases.coordination.k8s.io", namespace=NAMESPACE)
