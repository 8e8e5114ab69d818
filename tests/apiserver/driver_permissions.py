"""Rights of a Backfill's driver, for test_crd_chart: enough for its executors, and for no other pod."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from e2e.local_cluster.errors import ClusterError
from fleet_operator.api.v1alpha1 import Backfill
from fleet_operator.planning.backfill import manifests
from fleet_operator.runtime.settings import parse
from tests.apiserver.conftest import PATIENCE_S
from tests.support.apiserver import ApiServer
from tests.support.waiting import eventually
from tests.unit.api.backfill_objects import backfill
from tests.unit.planning import builders

NAMESPACE = "fleet-system"
RELEASE = "app.kubernetes.io/instance=consumer-fleet"


ACCOUNT = f"system:serviceaccount:{NAMESPACE}:consumer-fleet"


def objects(api: ApiServer, kinds: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(api.kubectl("get", kinds, "-A", "-l", RELEASE, "-o", "json"))["items"]
    return found


def expect_driver_permissions(api: ApiServer) -> None:
    """The operator can give a Backfill's driver what it needs, and nobody any other role."""
    body = Backfill.model_validate(backfill({"metadata.namespace": "default", "metadata.uid": "1"}))
    (deployment,) = objects(api, "deployments")
    role = parse(deployment["spec"]["template"]["spec"]["containers"][0]["args"], {}).spark_driver_role

    def given(child: dict[str, Any]) -> str:
        child["metadata"].pop("ownerReferences")
        apply = ("apply", "--server-side", "--as", ACCOUNT, "-f", "-")
        return api.kubectl(*apply, input=json.dumps(child))

    rights = manifests.driver_permissions(body, role, "shop")
    assert [each["kind"] for each in rights] == ["ServiceAccount", "Role", "RoleBinding", "RoleBinding"]
    for child in rights:
        given(child)
    driver = "system:serviceaccount:default:again-driver"

    def can(verb: str, resource: str, name: str = "") -> bool:
        asked = ("auth", "can-i", verb, f"{resource}/{name}" if name else resource, "--as", driver)
        try:
            return api.kubectl(*asked).strip() == "yes"
        except ClusterError:
            return False

    eventually(lambda: can("create", "pods"), timeout_s=PATIENCE_S, what="the driver's rights")
    assert can("update", "configmaps", "again-ledger")
    assert can("get", "configmaps", "again-control")
    assert not can("update", "configmaps", "again-control")
    assert not any(can("get", resource) for resource in ("configmaps", "secrets", "services"))
    *_, binding = manifests.driver_permissions(body, "cluster-admin")
    binding["metadata"]["name"] = "too-much"
    with pytest.raises(ClusterError, match="forbidden"):
        given(binding)


def executor() -> dict[str, Any]:
    """An executor of the Backfill `again` as Spark 4.0 makes it of the operator's template.

    The Spark operator has its labels replaced by those of the SparkApplication.
    """
    body = Backfill.model_validate(backfill({"metadata.namespace": "default", "metadata.uid": "1"}))
    template = {"spec": {"serviceAccountName": "shop", "containers": [{"name": "proxy", "image": "p"}]}}
    group, cluster = builders.consumer_group(template=template), builders.kafka_cluster(tls={})
    files = manifests.SourceFiles(handler=("shop.py",))
    application = manifests.application(body, group, cluster, files, image="spark:1")
    made = application["spec"]["executor"]["template"]
    labels = {"spark-role": "executor", "spark-exec-id": "1", "spark-app-selector": "spark-1", "spark-version": "4.0.0"}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "again-1-driver", "uid": "u", "controller": True}
    metadata = {
        "name": "fleet-1-exec-1",
        "ownerReferences": [owner],
        "labels": {**application["metadata"]["labels"], **labels},
    }
    pod = copy.deepcopy({**made["spec"], "restartPolicy": "Never", "serviceAccountName": "shop"})
    pod["containers"][0] |= {"image": "spark:1", "args": ["executor"]}
    pod["containers"][0]["lifecycle"] = {"preStop": {"exec": {"command": ["/opt/decom.sh"]}}}
    pod["containers"][0]["ports"] = [{"name": "blockmanager", "containerPort": 7079}]
    pod["containers"][0]["volumeMounts"].append({"name": "spark-local-dir-1", "mountPath": "/var/data/spark-1"})
    pod["volumes"].append({"name": "spark-local-dir-1", "emptyDir": {}})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The executor with another value at a dotted path, or one more in a list."""
    body = executor()
    *inner, last = path.split(".")
    place: Any = body
    for name in inner:
        place = place[int(name)] if name.isdigit() else place.setdefault(name, {})
    if isinstance(value, dict) and isinstance(place.get(last), list):
        place[last].append(value)
    else:
        place[last.replace("~", ".")] = value
    return body


HOST = {"name": "host", "hostPath": {"path": "/"}}


def projected(**source: Any) -> dict[str, Any]:
    return {"name": "projected", "projected": {"sources": [{"secret": {"name": "harmless"}}, source]}}


TOKEN = projected(serviceAccountToken={"path": "token"})
CERTIFICATE = projected(podCertificate={"signerName": "a.b/c", "keyType": "ED25519", "credentialBundlePath": "pem"})
BUNDLE = projected(clusterTrustBundle={"name": "roots", "path": "pem"})


OTHER_PODS = {
    "no labels": ("metadata.labels", {}),
    "a driver": ("metadata.labels.spark-role", "driver"),
    "another Backfill's": ("metadata.labels.consumerfleet~io/backfill", "other"),
    "no owner": ("metadata.ownerReferences", []),
    "another account": ("spec.serviceAccountName", "deployer"),
    "a token": ("spec.automountServiceAccountToken", True),
    "a token by a volume": ("spec.volumes", TOKEN),
    "a certificate of its own by a volume": ("spec.volumes", CERTIFICATE),
    "whom the cluster trusts": ("spec.volumes", BUNDLE),
    "the node's files": ("spec.volumes", HOST),
    "the node's network": ("spec.hostNetwork", True),
    "privileged": ("spec.containers.0.securityContext", {"privileged": True}),
    "a privileged container next to it": ("spec.initContainers.0.securityContext", {"privileged": True}),
    "root": ("spec.containers.0.securityContext.runAsUser", 0),
    "an SELinux type of the host": ("spec.containers.0.securityContext.seLinuxOptions", {"type": "spc_t"}),
    "that of its pod": ("spec.securityContext.seLinuxOptions", {"type": "spc_t"}),
    "no AppArmor": ("spec.containers.0.securityContext.appArmorProfile", {"type": "Unconfined"}),
    "no AppArmor for its pod": ("spec.securityContext.appArmorProfile", {"type": "Unconfined"}),
    "a kernel parameter": ("spec.securityContext.sysctls", [{"name": "kernel.msgmax", "value": "1"}]),
    "a port of the node": ("spec.containers.0.ports", [{"containerPort": 1, "hostPort": 1}]),
}


def expect_driver_makes_executors_only(api: ApiServer) -> None:
    """A driver's token makes, changes and deletes its own executors, whatever its ClusterRole says of pods."""
    driver = ("--as", "system:serviceaccount:default:again-driver", "--dry-run=server")
    for account in ("shop", "deployer"):
        api.kubectl("create", "serviceaccount", account)

    def make(body: dict[str, Any], *more: str) -> str:
        return api.kubectl("create", *more, "-f", "-", input=json.dumps(body))

    def refused(*arguments: str, body: dict[str, Any] | None = None) -> bool:
        try:
            answer = make(body, *arguments) if body is not None else api.kubectl(*arguments)
        except ClusterError as error:
            return "executor" in str(error)
        raise AssertionError(answer)

    plain = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"}, "spec": executor()["spec"]}
    # Policies come into force a moment after they were made.
    eventually(lambda: refused(*driver, body=plain), timeout_s=PATIENCE_S, what="the policy of executors' pods")
    make(executor(), *driver)
    make(changed("spec.volumes", projected(downwardAPI={"items": []})), *driver)
    for path, value in OTHER_PODS.values():
        assert refused(*driver, body=changed(path, value)), path
    make(changed("metadata.name", "plain"))
    make(plain | {"metadata": {"name": "worker-0"}})
    api.kubectl("label", "pod", "plain", "seen=1", *driver)
    api.kubectl("delete", "pod", "plain", *driver)
    for words in (("label", "pod", "worker-0", "seen=1"), ("delete", "pod", "worker-0"), ("delete", "pods", "--all")):
        assert refused(*words, *driver), words
    assert refused("label", "pod", "plain", "--overwrite", "consumerfleet.io/backfill=other", *driver)
    api.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
    # Accounts of others whose name ends alike are none of the policy's.
    api.kubectl("create", "clusterrole", "csi", "--verb=create", "--resource=pods")
    api.kubectl("create", "clusterrolebinding", "csi", "--clusterrole=csi", "--serviceaccount=default:csi-driver")
    other = ("--as", "system:serviceaccount:default:csi-driver", "--dry-run=server")

    def made() -> bool:
        try:
            return bool(make(plain, *other))
        except ClusterError as error:
            raise AssertionError(str(error)) from error

    eventually(made, timeout_s=PATIENCE_S, what="the rights of another driver")
