"""The chart as Helm installs it, on its own API server: objects, rights, upgrade, removal."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.local_cluster.access import await_definitions
from e2e.local_cluster.errors import ClusterError
from e2e.local_cluster.gomodules import HELM, ensure_programs
from fleet_operator.runtime.settings import parse
from tests.apiserver.client import Client
from tests.apiserver.conftest import PATIENCE_S
from tests.apiserver.driver_permissions import (
    ACCOUNT,
    NAMESPACE,
    expect_driver_makes_executors_only,
    expect_driver_permissions,
    objects,
)
from tests.support.apiserver import ApiServer
from tests.support.waiting import eventually

CHART = Path(__file__).parents[2] / "charts" / "consumer-fleet"
GROUPS = ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"]
Right = tuple[str, str, str]
"""A verb, a resource with its group and optional subresource, and a namespace."""
CRDS = (
    "backfills.consumerfleet.io",
    "consumergroups.consumerfleet.io",
    "kafkaclusters.consumerfleet.io",
    "offsetresets.consumerfleet.io",
    "operatorstates.consumerfleet.io",
    "redrives.consumerfleet.io",
    "retrypolicies.consumerfleet.io",
)


@dataclass(frozen=True)
class Helm:
    """Helm against one API server; nothing waits, because no pod ever starts there."""

    program: Path
    api: ApiServer

    def __call__(self, *arguments: str) -> str:
        command = [str(self.program), "--kubeconfig", str(self.api.kubeconfig), "--namespace", NAMESPACE, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *arguments: str) -> str:
        """Return Helm's error message."""
        done = subprocess.run([str(self.program), *arguments], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def upgrade(self, *arguments: str) -> str:
        """Install or upgrade the release."""
        target = ("upgrade", "--install", "consumer-fleet", str(CHART), "--create-namespace")
        return self(*target, *arguments)


@pytest.fixture(scope="module")
def helm() -> Iterator[Helm]:
    with ApiServer() as api:
        yield Helm(ensure_programs(HELM) / "helm", api)


def has_right(client: Client, right: Right) -> bool:
    """Return whether the operator's account has a right, where it ends in `:name` to the object of that name."""
    verb, kind, namespace = right
    resource, _, of = kind.partition(":")
    name, _, part = resource.partition("/")
    plural, _, group = name.partition(".")
    asked = {"verb": verb, "resource": plural, "group": group, "subresource": part, "namespace": namespace, "name": of}
    spec = {"user": ACCOUNT, "groups": GROUPS, "resourceAttributes": asked}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = client.ask("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def wait_rights(api: ApiServer, allowed: Sequence[Right], denied: Sequence[Right]) -> None:
    """Wait until the account has these rights and none of the others: the server learns of new roles a little later."""

    def as_wanted(client: Client) -> bool:
        assert [right for right in (*allowed, *denied) if has_right(client, right)] == list(allowed)
        return True

    with Client(api.kubeconfig) as client:
        eventually(lambda: as_wanted(client), timeout_s=PATIENCE_S, what="the rights of the operator's account")


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


def test_monitors_are_selected_by_labels_and_select_workers(helm: Helm) -> None:
    monitors = ("--set", "podMonitor.enabled=true,podMonitor.labels.release=prom")
    services = ("--set", "serviceMonitor.enabled=true,serviceMonitor.labels.release=prom")

    def rendered(*arguments: str) -> dict[str, dict[str, Any]]:
        text = helm("template", "consumer-fleet", str(CHART), *monitors, *services, *arguments)
        found = [each for each in yaml.safe_load_all(text) if each and each["kind"].endswith("Monitor")]
        return {each["kind"]: each for each in found}

    found = rendered()
    assert [each["metadata"]["labels"]["release"] for each in found.values()] == ["prom", "prom"]
    pods = found["PodMonitor"]["spec"]
    assert pods["namespaceSelector"] == {"any": True}
    documented = (CHART.parents[1] / "docs" / "metrics.md").read_text().split("kind: PodMonitor")[1].split("```")[0]
    manifest = yaml.safe_load(f"kind: PodMonitor{documented}")["spec"]
    assert pods["selector"] == manifest["selector"]
    assert [each["port"] for each in pods["podMetricsEndpoints"]] == ["http"]
    assert "honorLabels" not in str(found)
    served = rendered("--set", "watch.namespaces={shop}")["PodMonitor"]["spec"]["namespaceSelector"]
    assert served == {"matchNames": ["shop"]}
    named = rendered("--set", "watch.namespaces={shop,bank}", "--set", "podMonitor.namespaces={bank}")
    assert named["PodMonitor"]["spec"]["namespaceSelector"] == {"matchNames": ["bank"]}


def test_installation_without_backfills_makes_no_accounts_and_no_applications(helm: Helm) -> None:
    def granted(found: list[dict[str, Any]]) -> set[str]:
        rules = [rule for each in found if each["kind"] in ("Role", "ClusterRole") for rule in each.get("rules") or ()]
        return {resource for rule in rules for resource in rule["resources"]}

    special = {"sparkapplications", "serviceaccounts", "roles", "rolebindings", "backfills", "backfills/executors"}
    special |= {"backfills/status", "backfills/finalizers"}
    policy = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    for namespaces in ((), ("--set", "watch.namespaces={shop}")):
        whole = rendered(helm, *namespaces)
        assert special <= granted(whole)
        assert policy <= {each["kind"] for each in whole}
        without = rendered(helm, *namespaces, "--set", "backfills.enabled=false")
        assert not special & granted(without)
        crds = [each["metadata"]["name"] for each in without if each["kind"] == "CustomResourceDefinition"]
        assert crds == [crd for crd in CRDS if crd != "backfills.consumerfleet.io"]
        (deployment,) = [each for each in without if each["kind"] == "Deployment"]
        settings = parse(deployment["spec"]["template"]["spec"]["containers"][0]["args"], {})
        assert not settings.backfills, "the operator watches no kind that it cannot read"
        assert not policy & {each["kind"] for each in without}
        open_ = rendered(helm, *namespaces, "--set", "backfills.executorPolicy.enabled=false")
        assert not policy & {each["kind"] for each in open_}


def test_priority_class_of_backfills_is_made_when_asked_for(helm: Helm) -> None:
    def made(*arguments: str) -> list[tuple[str, int]]:
        found = [each for each in rendered(helm, *arguments) if each["kind"] == "PriorityClass"]
        return [(each["metadata"]["name"], each["value"]) for each in found]

    wanted = ("--set", "backfills.priorityClass.create=true")
    assert (made(), made(*wanted)) == ([], [("consumer-fleet-backfill", -1000)])
    assert made(*wanted, "--set", "backfills.enabled=false") == []


class OnceOnly(yaml.SafeLoader):
    """Refuses a mapping that has a key twice, as some tools do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), keys
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def test_no_key_stands_twice_where_labels_repeat_the_chart_s_own(helm: Helm) -> None:
    own = "app\\.kubernetes\\.io/component=mine"
    monitors = [
        f"{each}.labels.{own},{each}.enabled=true,{each}.interval=1m30s" for each in ("podMonitor", "serviceMonitor")
    ]
    text = helm("template", "x", str(CHART), "--set", ",".join([f"podLabels.{own}", "enabled=true", *monitors]))
    found = {each["kind"]: each for each in yaml.load_all(text, OnceOnly) if each}
    assert found["PodMonitor"]["metadata"]["labels"]["app.kubernetes.io/component"] == "mine"
    deployment = found["Deployment"]["spec"]
    assert deployment["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()


def rendered(helm: Helm, *arguments: str) -> list[dict[str, Any]]:
    text = helm("template", "consumer-fleet", str(CHART), *arguments)
    return [each for each in yaml.safe_load_all(text) if each]


def test_kept_crds_survive_a_prune_of_argo_cd(helm: Helm) -> None:
    """Helm's own policy bars Argo CD from deletion with the application, and not from pruning."""
    crds = [each for each in rendered(helm) if each["kind"] == "CustomResourceDefinition"]
    assert [each["metadata"]["name"] for each in crds] == list(CRDS)
    for crd in crds:
        options = crd["metadata"]["annotations"]["argocd.argoproj.io/sync-options"].split(",")
        assert {"Prune=false", "Delete=false"} <= set(options)
    assert all("annotations" not in each["metadata"] for each in rendered(helm, "--set", "crds.keep=false"))


def test_pods_ask_for_no_user_where_the_platform_assigns_them(helm: Helm) -> None:
    """OpenShift's restricted-v2 refuses a user, a group or a group of files outside the namespace's range."""

    def deployed(*arguments: str) -> tuple[dict[str, Any], bool]:
        (found,) = [each for each in rendered(helm, *arguments) if each["kind"] == "Deployment"]
        spec = found["spec"]["template"]["spec"]
        return spec, parse(spec["containers"][0]["args"], {}).platform_assigns_users

    spec, assigned = deployed()
    assert not assigned
    contexts = [spec["securityContext"], *(each["securityContext"] for each in spec["containers"])]
    assert not [key for context in contexts for key in context if key in ("runAsUser", "runAsGroup", "fsGroup")]
    assert deployed("--api-versions", "security.openshift.io/v1")[1]
    forced = ("--api-versions", "security.openshift.io/v1", "--set", "workers.platformAssignsUsers=false")
    assert not deployed(*forced)[1]
    own, assigned = deployed("--set", "podSecurityContext.runAsUser=1000,workers.platformAssignsUsers=true")
    assert (own["securityContext"]["runAsUser"], assigned) == (1000, True)


def test_pages_are_closed_to_all_but_the_operator_and_those_who_scrape(helm: Helm) -> None:
    values = [
        "networkPolicy.enabled=true",
        "networkPolicy.workerNamespaces={shop,bank}",
        "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=watch",
    ]
    found = rendered(helm, *(part for value in values for part in ("--set", value)))
    policies = [
        each for each in found if each["kind"] == "NetworkPolicy" and "backfills" not in each["metadata"]["name"]
    ]
    assert [each["metadata"]["namespace"] for each in policies] == [NAMESPACE, "shop", "bank"]
    scraper = {"namespaceSelector": {"matchLabels": {"team": "watch"}}}
    own, shop, _ = (each["spec"] for each in policies)
    assert own["ingress"] == [{"ports": [{"port": "health"}]}, {"ports": [{"port": "metrics"}], "from": [scraper]}]
    (rule,) = shop["ingress"]
    operator, other = rule["from"]
    assert (rule["ports"], other) == ([{"port": "http"}], scraper)
    (deployment,) = [each for each in found if each["kind"] == "Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert operator["podSelector"]["matchLabels"].items() <= labels.items()
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}


def readable(api: ApiServer, crd: str) -> bool:
    """True if the API server lists the objects of a kind."""
    try:
        api.kubectl("get", crd, "--all-namespaces")
    except ClusterError as error:
        raise AssertionError(str(error)) from error
    return True


def test_life_of_a_release(helm: Helm) -> None:
    """Install, change to serve one namespace, remove; CRDs and users' objects survive the removal."""
    api = helm.api
    notes = helm.upgrade()
    assert "serves the whole cluster" in notes
    await_definitions(api.kubectl, *(f"crd/{crd}" for crd in CRDS), timeout_s=PATIENCE_S)
    expect_pods(api)
    expect_rights(api)
    expect_driver_permissions(api)
    expect_rights_of_people(api)
    expect_driver_makes_executors_only(api)

    api.kubectl("create", "namespace", "shop")
    here, there = ("get", "secrets", "shop"), ("get", "secrets", "default")
    assert "The operator reads no Secrets" in notes
    assert "only in the namespaces shop" in helm.upgrade("--set", "secrets.namespaces={shop}")
    wait_rights(api, [here], [there, ("list", "secrets", "shop")])
    helm.upgrade("--set", "secrets.wholeCluster=true")
    wait_rights(api, [here, there], [("list", "secrets", "shop")])
    helm.upgrade("--set", "watch.namespaces={shop}", "--set", "replicas=1")
    elsewhere = (("patch", "statefulsets.apps", "default"), ("get", "secrets", "default"))
    wait_rights(api, [("patch", "statefulsets.apps", "shop"), ("get", "secrets", "shop")], elsewhere)
    (deployment,) = objects(api, "deployments")
    assert "--namespace=shop" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert objects(api, "poddisruptionbudgets") == [], "a budget for one replica would block every drain"

    helm("uninstall", "consumer-fleet")
    assert objects(api, "deployments,services,serviceaccounts,clusterroles,roles,rolebindings") == []
    assert api.kubectl("get", "crd", "-o", "name").split() == [
        f"customresourcedefinition.apiextensions.k8s.io/{crd}" for crd in CRDS
    ]

    helm.upgrade("--set", "crds.keep=false")
    # The API server opens the storage of a kind when it is first asked for. A CRD that is deleted meanwhile may stay
    # until the next resync of its finalizer ("storage is (re)initializing"), five minutes later.
    for crd in CRDS:
        eventually(partial(readable, api, crd), what=f"the storage of {crd} to be open")
    helm("uninstall", "consumer-fleet")
    eventually(lambda: api.kubectl("get", "crd", "-o", "name") == "", timeout_s=400, what="the CRDs to be gone")


def expect_pods(api: ApiServer) -> None:
    """Two replicas, flags that the operator has, and nothing that pod security level "restricted" would refuse."""
    (deployment,) = objects(api, "deployments")
    assert deployment["spec"]["replicas"] == 2
    settings = parse(deployment["spec"]["template"]["spec"]["containers"][0]["args"], {})
    assert (settings.leader_elect, settings.lease_namespace, settings.namespaces) == (True, NAMESPACE, ())
    assert settings.lease_name == "consumer-fleet-operator"
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


def expect_rights_of_people(api: ApiServer) -> None:
    """The roles that people have cover the kinds, and never a status, which would forge what the operator knows.

    The controller that merges aggregated roles does not run here: the roles that it merges are read.
    """
    merged: dict[str, set[str]] = {"view": set(), "edit": set()}
    for role in objects(api, "clusterroles"):
        for name, verbs in merged.items():
            if role["metadata"]["labels"].get(f"rbac.authorization.k8s.io/aggregate-to-{name}") == "true":
                for rule in role["rules"]:
                    assert not [each for each in rule["resources"] if each.endswith(("/status", "/finalizers", "*"))]
                    assert rule["apiGroups"] == ["consumerfleet.io"]
                    verbs |= {f"{verb} {each}" for verb in rule["verbs"] for each in rule["resources"]}
    plurals = [crd.partition(".")[0] for crd in CRDS]
    written = [each for each in plurals if each != "operatorstates"]
    assert {f"{verb} {each}" for verb in ("get", "list", "watch") for each in plurals} <= merged["view"]
    assert not [right for right in merged["view"] if right.split()[0] not in ("get", "list", "watch")]
    assert {f"{verb} {each}" for verb in ("create", "patch", "delete") for each in written} <= merged["edit"]
    assert {right for right in merged["edit"] if "operatorstates" in right} <= merged["view"]
    assert "patch consumergroups/scale" in merged["edit"]


def expect_rights(api: ApiServer) -> None:
    """Rights that the operator needs, and some that it must never get."""
    allowed = (
        ("patch", "consumergroups.consumerfleet.io/status", "default"),
        ("patch", "consumergroups.consumerfleet.io", "default"),
        ("patch", "retrypolicies.consumerfleet.io/status", "default"),
        ("watch", "kafkaclusters.consumerfleet.io", "default"),
        ("create", "statefulsets.apps", "default"),
        ("update", "jobs.batch", "default"),
        ("delete", "redrives.consumerfleet.io", "default"),
        ("delete", "offsetresets.consumerfleet.io", "default"),
        ("patch", "offsetresets.consumerfleet.io", "default"),
        ("patch", "offsetresets.consumerfleet.io/status", "default"),
        ("create", "operatorstates.consumerfleet.io", "default"),
        ("patch", "operatorstates.consumerfleet.io", "default"),
        ("delete", "backfills.consumerfleet.io", "default"),
        ("patch", "backfills.consumerfleet.io/status", "default"),
        ("create", "sparkapplications.sparkoperator.k8s.io", "default"),
        ("delete", "sparkapplications.sparkoperator.k8s.io", "default"),
        ("create", "rolebindings.rbac.authorization.k8s.io", "default"),
        ("delete", "pods", "default"),
        ("create", "events.events.k8s.io", "default"),
        ("update", "leases.coordination.k8s.io:consumer-fleet-operator", NAMESPACE),
        ("create", "leases.coordination.k8s.io", "kube-system"),
        ("patch", "kafkaclusters.consumerfleet.io", "default"),
    )
    denied = (
        ("get", "secrets", "default"),
        ("list", "secrets", "default"),
        ("get", "consumergroups.consumerfleet.io/status", "default"),
        ("patch", "leases.coordination.k8s.io:consumer-fleet-operator", NAMESPACE),
        ("update", "leases.coordination.k8s.io:of-another-controller", NAMESPACE),
        ("watch", "secrets", "default"),
        ("update", "consumergroups.consumerfleet.io", "default"),
        ("patch", "retrypolicies.consumerfleet.io", "default"),
        ("patch", "redrives.consumerfleet.io", "default"),
        ("update", "offsetresets.consumerfleet.io", "default"),
        ("create", "offsetresets.consumerfleet.io", "default"),
        ("delete", "operatorstates.consumerfleet.io", "default"),
        ("patch", "backfills.consumerfleet.io", "default"),
        ("patch", "sparkapplications.sparkoperator.k8s.io", "default"),
        ("bind", "clusterroles.rbac.authorization.k8s.io", "default"),
        ("escalate", "roles.rbac.authorization.k8s.io", "default"),
        ("delete", "consumergroups.consumerfleet.io", "default"),
        ("create", "pods/exec", "default"),
        ("get", "nodes", "default"),
        ("create", "leases.coordination.k8s.io", "default"),
        ("update", "leases.coordination.k8s.io", "kube-system"),
        ("update", "kafkaclusters.consumerfleet.io", "default"),
        ("create", "clusterroles.rbac.authorization.k8s.io", "default"),
    )
    wait_rights(api, allowed, denied)
