"""The chart as Helm renders it, by its values."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.install import CHART, version
from fleet_operator.console import CONSOLE_LABEL
from fleet_operator.planning.labels import BACKFILL_LABEL
from fleet_operator.runtime.settings import parse
from tests.apiserver.chart import deployed, helm, of_kind, rendered

CRD = "CustomResourceDefinition"
ORIGINALS = CHART.parents[1] / "crds"


def test_chart_of_a_clone_and_packed_chart_have_the_crds_of_the_repository(tmp_path: Path) -> None:
    """Git has one copy of each CRD: Helm follows the chart's link to it."""
    wanted = {as_text(yaml.safe_load(path.read_text())) for path in ORIGINALS.glob("*.yaml")}
    helm("package", str(CHART), "--destination", str(tmp_path))
    (packed,) = tmp_path.iterdir()
    for chart in (CHART, packed):
        crds = of_kind(rendered(chart=chart), CRD).values()
        for crd in crds:
            del crd["metadata"]["annotations"]
        assert set(map(as_text, crds)) == wanted


def as_text(value: Any) -> str:
    """A value in which 1 and 1.0 differ."""
    return json.dumps(value, sort_keys=True)


def test_chart_that_was_copied_without_its_crds_is_refused(tmp_path: Path) -> None:
    """Tools that skip symbolic links would otherwise take the CRDs, and with them all groups, out of a release."""
    copied = shutil.copytree(CHART, tmp_path / "chart", ignore=shutil.ignore_patterns("definitions"))
    with pytest.raises(ValueError, match="helm package"):
        rendered(chart=copied)
    assert not of_kind(rendered("crds.enabled=false", chart=copied), CRD)


def images(*values: str) -> list[str]:
    """Images of the operator, of workers and of Backfills."""
    (operator,) = deployed(*values)["spec"]["containers"]
    settings = parse(operator["args"], {})
    return [operator["image"], settings.consumer_image, settings.spark_image]


def test_mirror_is_named_once_and_tags_are_the_chart_s_version() -> None:
    assert images() == [f"consumer-fleet-{part}:{version()}" for part in ("operator", "consumer", "spark")]
    mirrored = images("imageRegistry=registry.example.com/mirror", "spark.image.registry=other:5000")
    assert mirrored == [
        f"registry.example.com/mirror/consumer-fleet-operator:{version()}",
        f"registry.example.com/mirror/consumer-fleet-consumer:{version()}",
        f"other:5000/consumer-fleet-spark:{version()}",
    ]


def test_image_is_named_by_tag_by_digest_or_by_both() -> None:
    digest = f"sha256:{'0a' * 32}"
    named = ("consumer.image.tag=v1", f"consumer.image.digest={digest}", f"spark.image.digest={digest}")
    operator, *rest = images("operator.image.repository=fleet/operator", *named)
    assert operator == f"fleet/operator:{version()}"
    assert rest == [f"consumer-fleet-consumer:v1@{digest}", f"consumer-fleet-spark@{digest}"]


def test_everything_has_the_common_labels_and_its_own_win() -> None:
    names = ("podMonitor", "serviceMonitor", "networkPolicy", "alerts", "dashboards")
    monitors = [f"{name}.enabled=true" for name in names]
    given = ("commonLabels.team=data", "commonLabels.tier=one", "podLabels.tier=two")
    found = rendered(*monitors, *given, "commonLabels.app\\.kubernetes\\.io/name=mine")
    labels = {(each["kind"], each["metadata"]["name"]): each["metadata"]["labels"] for each in found}
    assert [name for name, each in labels.items() if (each.get("team"), each.get("tier")) != ("data", "one")] == []
    assert {each["app.kubernetes.io/name"] for (kind, _), each in labels.items() if kind != CRD} == {"consumer-fleet"}
    (deployment,) = of_kind(found, "Deployment").values()
    pod, selector = deployment["spec"]["template"]["metadata"]["labels"], deployment["spec"]["selector"]["matchLabels"]
    assert (pod["team"], pod["tier"]) == ("data", "two")
    assert selector.items() <= pod.items()
    assert "team" not in selector, "a selector cannot be changed afterwards"


def test_deployment_has_annotations_of_its_own() -> None:
    found = of_kind(rendered("deploymentAnnotations.reloader=on"), "Deployment")["consumer-fleet"]
    assert found["metadata"]["annotations"] == {"reloader": "on"}
    assert "annotations" not in found["spec"]["template"]["metadata"]


def test_replicas_are_spread_over_nodes_unless_values_say_otherwise() -> None:
    pod = deployed()
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert spread["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert spread["matchLabelKeys"] == ["pod-template-hash"], "an upgrade does not count the pods that it replaces"
    zones = deployed("topologySpreadConstraints[0].topologyKey=zone")["spec"]["topologySpreadConstraints"]
    assert zones == [{"topologyKey": "zone"}]


def test_operator_gets_further_volumes_but_no_other_scratch() -> None:
    volume = ("operator.extraVolumes[0].name=ca", "operator.extraVolumes[0].configMap.name=corporate")
    spec = deployed(*volume, "operator.extraVolumeMounts[0].name=ca", "operator.extraVolumeMounts[0].mountPath=/ca")
    names = [each["name"] for each in spec["spec"]["volumes"]]
    mounts = {each["name"]: each["mountPath"] for each in spec["spec"]["containers"][0]["volumeMounts"]}
    assert (names, mounts) == (["scratch", "ca"], {"scratch": "/tmp", "ca": "/ca"})
    with pytest.raises(ValueError, match="extraVolumes"):
        deployed("operator.extraVolumes[0].name=scratch")


def test_pages_are_closed_to_everybody_while_nobody_is_named_to_scrape() -> None:
    found = of_kind(rendered("networkPolicy.enabled=true", "watch.namespaces={shop}"), "NetworkPolicy")
    assert found["consumer-fleet"]["spec"]["ingress"] == [{"ports": [{"port": "health"}]}]
    (rule,) = found["consumer-fleet-workers"]["spec"]["ingress"]
    (peer,) = rule["from"]
    operator = deployed("watch.namespaces={shop}")["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= operator.items()


def test_pods_of_backfills_reach_each_other_where_workers_are_closed() -> None:
    """They have the labels of workers too, and an executor connects to its driver."""
    closed = ("networkPolicy.enabled=true", "watch.namespaces={shop}")
    found = of_kind(rendered(*closed), "NetworkPolicy")
    selector = found["consumer-fleet-workers"]["spec"]["podSelector"]
    of_backfills = {"key": BACKFILL_LABEL, "operator": "Exists"}
    assert selector["matchExpressions"] == [{**of_backfills, "operator": "DoesNotExist"}]
    spec = found["consumer-fleet-backfills"]["spec"]
    assert spec["podSelector"] == {"matchExpressions": [of_backfills]}
    assert spec["ingress"] == [{"from": [{"podSelector": spec["podSelector"]}]}]
    assert "consumer-fleet-backfills" not in of_kind(rendered(*closed, "backfills.enabled=false"), "NetworkPolicy")


def test_console_is_off_and_brings_its_port_service_and_rights_only_where_it_is_on() -> None:
    assert "console" not in str(rendered())
    on = rendered("console.enabled=true")
    container = deployed("console.enabled=true")["spec"]["containers"][0]
    assert parse(container["args"], {}).console
    assert {"name": "console", "containerPort": parse(container["args"], {}).console_port} in container["ports"]
    service = of_kind(on, "Service")["consumer-fleet-console"]["spec"]
    assert (service["selector"][CONSOLE_LABEL], service["ports"][0]["targetPort"]) == ("true", "console")
    granted = of_kind(on, "ClusterRole")["consumer-fleet-console"]["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in granted] == [
        (["tokenreviews"], ["create"]),
        (["subjectaccessreviews"], ["create"]),
    ]
    assert of_kind(on, "Role")["consumer-fleet-console"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}
    ]


def test_console_is_reached_only_by_the_named_peers() -> None:
    def ports(*values: str) -> list[str]:
        found = of_kind(rendered("networkPolicy.enabled=true", *values), "NetworkPolicy")
        return [each["port"] for rule in found["consumer-fleet"]["spec"]["ingress"] for each in rule["ports"]]

    peer = "console.from[0].namespaceSelector.matchLabels.team=web"
    assert ports("console.enabled=true") == ports(peer) == ["health"]
    assert ports("console.enabled=true", peer) == ["health", "console"]


def test_nothing_is_made_in_kube_system_where_the_platform_closes_it() -> None:
    def there(*values: str) -> list[str]:
        return sorted(each["kind"] for each in rendered(*values) if each["metadata"].get("namespace") == "kube-system")

    assert there() == 2 * ["Role"] + 2 * ["RoleBinding"]
    assert there("rbac.scopeLease=false") == there("watch.namespaces={shop}") == []


def test_limits_of_tenants_are_for_served_namespaces_only_and_absent_by_default() -> None:
    kind = "ValidatingAdmissionPolicy"
    limits = ("tenantLimits[0].name=all", "tenantLimits[0].maxReplicas=5")
    assert list(of_kind(rendered("backfills.enabled=false"), kind)) == []
    for values, namespaces in (((), None), (("watch.namespaces={shop,bank}",), ["shop", "bank"])):
        matched = of_kind(rendered(*limits, *values), kind)["consumer-fleet-tenants-all"]["spec"]["matchConstraints"]
        (served,) = matched.get("namespaceSelector", {"matchExpressions": [{"values": None}]})["matchExpressions"]
        assert served["values"] == namespaces
    with pytest.raises(ValueError, match="groupIdPrefix"):
        rendered(*limits, "tenantLimits[0].groupIdPrefix=it's")


def test_limits_of_tenants_have_a_name_each() -> None:
    """Two policies of one name were rendered, of which a cluster can have one."""
    limits = [f"tenantLimits[{entry}].{value}" for entry in (0, 1) for value in ("name=all", "maxReplicas=5")]
    with pytest.raises(ValueError, match="tenantLimits has two entries with the name all"):
        rendered(*limits)
    assert len(of_kind(rendered(*limits, "tenantLimits[1].name=others"), "ValidatingAdmissionPolicy")) == 3


NO_TEXT = {
    "allowPrivilegeEscalation",
    "automountServiceAccountToken",
    "containerPort",
    "enableServiceLinks",
    "failureThreshold",
    "maxSkew",
    "minAvailable",
    "periodSeconds",
    "port",
    "readOnlyRootFilesystem",
    "replicas",
    "runAsNonRoot",
    "terminationGracePeriodSeconds",
    "timeoutSeconds",
}
"""Fields of numbers and booleans in the objects of the chart, CRDs apart."""


def leaves(tree: Any, field: str = "") -> Iterator[tuple[str, Any]]:
    """The values of an object, each with the field that it, or the list of it, is in."""
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else ((field, each) for each in tree):
            yield from leaves(value, key)
    else:
        yield field, tree


@pytest.mark.parametrize("name", ["123", "no", "true", "null", "0", "2026-01-01", "0x1f"])
def test_names_that_yaml_reads_otherwise_stay_names(name: str, tmp_path: Path) -> None:
    """A release called 123 had a number as its label, and the namespace `no` was the boolean false."""
    texts, names = {name: name}, [name]
    switched = {"enabled": True, "labels": texts, "interval": "0"}
    values = {
        "fullnameOverride": name,
        "nameOverride": name,
        "commonLabels": texts,
        "podLabels": texts,
        "podAnnotations": texts,
        "deploymentAnnotations": texts,
        "nodeSelector": texts,
        "serviceAccount": {"name": name, "annotations": texts},
        "priorityClassName": name,
        "imagePullSecrets": [{"name": name}],
        "watch": {"namespaces": names},
        "secrets": {"namespaces": names},
        "networkPolicy": {"enabled": True, "workerNamespaces": names},
        "serviceMonitor": switched,
        "podMonitor": {**switched, "namespaces": names},
        "tenantLimits": [{"name": name, "maxReplicas": 1}],
    }
    for served in (values, {**values, "fullnameOverride": "", "watch": {"namespaces": []}}):
        (tmp_path / "values.json").write_text(json.dumps(served))
        text = helm("template", name, str(CHART), "--namespace", name, "--values", str(tmp_path / "values.json"))
        found = [each["metadata"] if each["kind"] == CRD else each for each in yaml.safe_load_all(text) if each]
        values_of = [leaf for each in found for leaf in leaves(each)]
        assert [leaf for leaf in values_of if leaf[0] not in NO_TEXT and not isinstance(leaf[1], str)] == []
        assert [field for field, _ in values_of if not isinstance(field, str)] == []
        assert {value for field, value in values_of if field == "namespace"} <= {name, "kube-system"}
