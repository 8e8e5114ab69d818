"""What people and autoscalers see of our objects: columns, short names, scale, documentation, status."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from fleet_operator.api.v1alpha1 import Redrive, conditions
from fleet_operator.planning import times
from fleet_operator.planning.observation import OffsetSample, RetryObservation, StuckPartition, WorkerObservation
from fleet_operator.planning.redrive_phase import RedriveDecision, RedriveFacts
from fleet_operator.planning.redrive_readings import Progress
from fleet_operator.planning.redrive_status import project_redrive_status
from fleet_operator.planning.retry_intent import RetryIntent
from fleet_operator.planning.status_consumergroup import project_consumergroup_status
from fleet_operator.planning.status_kafkacluster import KafkaClusterFacts, project_kafkacluster_status
from tests.apiserver.conftest import Site
from tests.support.apiserver import ApiServer
from tests.unit.api.crd_objects import consumer_group, kafka_cluster, redrive
from tests.unit.planning import builders

COLUMNS = "NAME STATE REPLICAS TARGET PARTS LAG BEHIND LIMIT READY AGE"
WIDE_COLUMNS = "PROTOCOL ASSIGNOR MEMBERS COORDINATOR RETRY NEXT-DUE FAILED MESSAGE"
REDRIVE_COLUMNS = "NAME GROUP PHASE SELECTED MOVED RATE AGE"
REDRIVE_WIDE_COLUMNS = "REMAINING GUARDED DRY-RUN FINISHED MESSAGE"
CLUSTER_COLUMNS = "NAME CLUSTER-ID BROKERS GROUPS OFFSETS-PARTITIONS READY AGE"


def busy_status() -> dict[str, Any]:
    """A status with every part that this version writes, as the operator makes it."""
    stuck = StuckPartition(topic="orders", partition=2, offset=7, since=builders.NOW - 90)
    group = builders.observed_group(
        end_offsets=dict.fromkeys([("orders", number) for number in range(4)], 1000),
        end_history={("orders", 0): (OffsetSample(builders.NOW - 61, 0), OffsetSample(builders.NOW - 1, 1000))},
        failed_records=12,
        retry=RetryObservation(observed_at=builders.NOW, waiting=8, due_lag=0, next_due_at=builders.NOW + 30),
    )
    facts = builders.facts(
        group=builders.consumer_group(retry={"policyRef": {"name": "standard"}}),
        retry=RetryIntent(policy="standard", current="a1b2c3d4e5"),
        observation=builders.observation(group),
        workers=(WorkerObservation(pod="orders-0", member_id="m0", generation=3, stuck=(stuck,)),),
    )
    return project_consumergroup_status(facts, {}, builders.NOW)


def cluster_status() -> dict[str, Any]:
    facts = KafkaClusterFacts(cluster=builders.kafka_cluster(), observation=builders.observation(metadata_version=29))
    return project_kafkacluster_status(facts, {}, builders.NOW)


def redrive_status() -> dict[str, Any]:
    """A Redrive in its middle, with every field that is written by then."""
    body = Redrive.model_validate({**redrive(), "status": {"startedAt": "2026-01-01T00:00:00Z"}})
    decision = RedriveDecision("Running", conditions.RUNNING, "moving failed records")
    progress = Progress(selected=12, moved=11, guarded=2, remaining=40)
    return project_redrive_status(RedriveFacts(redrive=body), decision, progress, 6, builders.NOW)


def write_status(site: Site, kind: str, name: str, status: Mapping[str, Any]) -> None:
    patch = json.dumps({"status": status})
    site.api.kubectl("-n", site.name, "patch", kind, name, "--subresource=status", "--type=merge", "-p", patch)


def stored(site: Site, kind: str, name: str) -> dict[str, Any]:
    """An object as kubectl shows it."""
    found: dict[str, Any] = json.loads(site.api.kubectl("-n", site.name, "get", kind, name, "-o", "json"))
    return found


@pytest.fixture(scope="module")
def shown(site: Callable[..., Site]) -> Iterator[Site]:
    """A namespace with one object of each kind, both with a status; gone before an operator could look at them."""
    made = site("crd-views")
    place = {"metadata.namespace": made.name}
    made.apply(kafka_cluster(place), consumer_group({**place, "spec.replicas": 2}))
    write_status(made, "kafkacluster", "main", cluster_status())
    write_status(made, "consumergroup", "orders", busy_status())
    made.apply(redrive(place))
    write_status(made, "redrive", "mended", redrive_status())
    yield made
    made.api.kubectl("-n", made.name, "delete", "kafkaclusters,consumergroups,redrives", "--all")


def table(site: Site, *arguments: str) -> tuple[str, str]:
    """The header, and the first row with single blanks."""
    header, row = site.api.kubectl("-n", site.name, "get", *arguments).strip().splitlines()[:2]
    return " ".join(header.split()), " ".join(row.split())


def test_status_is_stored_as_projected(shown: Site) -> None:
    """Nothing that the operator writes is unknown to the schema, and so pruned."""
    assert stored(shown, "consumergroups", "orders")["status"] == busy_status()
    assert stored(shown, "kafkaclusters", "main")["status"] == cluster_status()
    assert stored(shown, "redrives", "mended")["status"] == redrive_status()


def test_columns_of_consumer_groups(shown: Site) -> None:
    header, row = table(shown, "kcg")
    assert header == COLUMNS
    assert row.startswith("orders Stable 2 2 4 ~2k ~30s None True ")


def test_wide_columns_of_consumer_groups(shown: Site) -> None:
    header, row = table(shown, "consumergroups", "-o", "wide")
    assert header == f"{COLUMNS} {WIDE_COLUMNS}"
    assert "Classic range 2 broker 1 (partition 31)" in row
    assert row.endswith(f" 8 {times.to_text(builders.NOW + 30)} 12 2 of 2 workers are ready")


def test_columns_of_kafka_clusters(shown: Site) -> None:
    header, row = table(shown, "kcl")
    assert header == CLUSTER_COLUMNS
    assert row.startswith("main cluster-a 2 7 50 True ")


def test_columns_of_redrives(shown: Site) -> None:
    header, row = table(shown, "krd")
    assert header == REDRIVE_COLUMNS
    assert row.startswith("mended orders Running 12 11 6 ")
    header, row = table(shown, "redrives", "-o", "wide")
    assert header == f"{REDRIVE_COLUMNS} {REDRIVE_WIDE_COLUMNS}"
    assert row.endswith(" 40 2 false moving failed records")


def test_category_lists_all_kinds(shown: Site) -> None:
    listed = shown.api.kubectl("-n", shown.name, "get", "consumerfleet", "-o", "name").split()
    assert listed == [
        "consumergroup.consumerfleet.io/orders",
        "kafkacluster.consumerfleet.io/main",
        "redrive.consumerfleet.io/mended",
    ]


def test_scale_subresource_reads_and_writes(shown: Site) -> None:
    """The parts that an autoscaler needs: wanted and present replicas, and a selector that is not empty."""
    path = f"/apis/consumerfleet.io/v1alpha1/namespaces/{shown.name}/consumergroups/orders/scale"
    scale = json.loads(shown.api.kubectl("get", "--raw", path))
    assert (scale["spec"], scale["status"]) == (
        {"replicas": 2},
        {"replicas": 2, "selector": "app.kubernetes.io/component=worker,consumerfleet.io/group=orders"},
    )
    shown.api.kubectl("-n", shown.name, "scale", "kcg/orders", "--replicas=3")
    assert stored(shown, "consumergroups", "orders")["spec"]["replicas"] == 3
    shown.api.kubectl("-n", shown.name, "scale", "kcg/orders", "--replicas=2")


def test_status_is_written_by_its_subresource_only(shown: Site) -> None:
    """A person who edits the object cannot change what was observed, and the operator cannot change a spec."""
    path = ("-n", shown.name, "patch", "kcg", "orders", "--type=merge", "-p")
    shown.api.kubectl(*path, json.dumps({"status": {"state": "Dead"}}))
    assert stored(shown, "consumergroups", "orders")["status"]["state"] == "Stable"


def undescribed(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if not schema.get("description"):
        yield path
    for name, inner in schema.get("properties", {}).items():
        yield from undescribed(inner, f"{path}.{name}")


@pytest.mark.parametrize("kind", ["KafkaCluster", "ConsumerGroup", "RetryPolicy", "Redrive"])
def test_published_documentation_has_no_empty_field(api: ApiServer, kind: str) -> None:
    """The schema that `kubectl explain` reads from the server."""
    schemas = json.loads(api.kubectl("get", "--raw", "/openapi/v3/apis/consumerfleet.io/v1alpha1"))["components"]
    schema = schemas["schemas"][f"io.consumerfleet.v1alpha1.{kind}"]
    assert list(undescribed(schema, kind)) == []


@pytest.mark.parametrize(
    "path",
    [
        "kcl",
        "kcl.spec.sasl",
        "kcg.spec",
        "kcg.spec.consumer",
        "kcg.spec.template",
        "kcg.status",
        "krp.spec",
        "krd.spec.filter",
    ],
)
def test_explain_describes(api: ApiServer, path: str) -> None:
    told = api.kubectl("explain", path)
    assert "FIELDS:" in told
    assert "<no description>" not in told
    assert "<empty>" not in told
