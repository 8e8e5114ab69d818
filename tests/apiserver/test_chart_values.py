"""The chart as Helm renders it, by its values."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.install import CHART, version
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
    monitors = ("podMonitor.enabled=true", "serviceMonitor.enabled=true", "networkPolicy.enabled=true")
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
