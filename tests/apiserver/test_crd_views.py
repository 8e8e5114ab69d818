"""Views of our objects for people and autoscalers: columns, short names, scale, documentation, status."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest

from fleet_consumer.contract.backfill_ledger import Comparison, Counts, Ledger, Sample
from fleet_operator.api.v1alpha1 import Backfill, OffsetReset, Redrive, conditions
from fleet_operator.api.v1alpha1.kafkacluster import ClusterIdentity
from fleet_operator.clients.kinds import CONSUMER_GROUP
from fleet_operator.planning import times
from fleet_operator.planning.backfill.attempts import AttemptEnd
from fleet_operator.planning.backfill.parsing import BOTH, Progress
from fleet_operator.planning.backfill.phase import BackfillDecision, BackfillFacts
from fleet_operator.planning.backfill.ranges import ResolvedRange, range_status
from fleet_operator.planning.backfill.spark import SeenApplication, SparkState
from fleet_operator.planning.backfill.status import project_backfill_status
from fleet_operator.planning.observation import OffsetSample, RetryObservation, StuckPartition, WorkerObservation
from fleet_operator.planning.offsets.records import ResetPhase, ResetRecord
from fleet_operator.planning.offsets.run import OffsetResetDecision, project_offset_reset_status
from fleet_operator.planning.redrive.phase import RedriveFacts, RedriveProgress
from fleet_operator.planning.redrive.status import project_redrive_status
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.run import RunDecision
from fleet_operator.planning.status.consumergroup import project_consumergroup_status
from fleet_operator.planning.status.kafkacluster import project_kafkacluster_status
from tests.apiserver.conftest import PATIENCE_S, Site
from tests.apiserver.offset_reset_rules import reset_to_a_time
from tests.support.waiting import eventually
from tests.unit.api.backfill_objects import backfill
from tests.unit.api.crd_objects import changed, consumer_group, kafka_cluster, redrive, retry_policy
from tests.unit.planning import builders

KINDS = ("KafkaCluster", "ConsumerGroup", "RetryPolicy", "Redrive", "Backfill", "OffsetReset")
COLUMNS = "NAME READY REASON STATE MEMBERS TARGET LAG BEHIND FAILED AGE"
WIDE_COLUMNS = "REPLICAS PARTS LIMIT PROGRESS RETRY NEXT-DUE ASSIGNOR COORDINATOR MESSAGE"
REDRIVE_COLUMNS = "NAME GROUP PHASE REASON SELECTED MOVED RATE AGE"
REDRIVE_WIDE_COLUMNS = "REMAINING GUARDED MOVED-BEFORE FAILED-AGAIN DRY-RUN FINISHED READY MESSAGE"
BACKFILL_COLUMNS = "NAME GROUP PHASE REASON PROGRESS RATE END FAILED AGE"
BACKFILL_WIDE_COLUMNS = "THROTTLED ATTEMPTS DRY-RUN DIFFERENT READY MESSAGE"
OFFSET_RESET_COLUMNS = "NAME GROUP TO PHASE REASON PARTITIONS AGE"
OFFSET_RESET_WIDE_COLUMNS = "TIME DRY-RUN FINISHED MESSAGE"
CLUSTER_COLUMNS = "NAME READY REASON BROKERS GROUPS CLUSTER-ID AGE"
LINE_MAX = 120


FAILED = {("Exhausted", "shop.Refused"): 8, ("Timeout", ""): 2}


def busy_status() -> dict[str, Any]:
    """A status with every part that this version writes, as the operator makes it."""
    stuck = StuckPartition(topic="orders", partition=2, offset=7, since=builders.NOW - 90, message="x" * 600)
    keys = [("orders", number) for number in range(4)]
    history = OffsetSample(builders.NOW - 61, 0), OffsetSample(builders.NOW - 1, 1000)
    group = builders.observed_group(
        end_offsets=dict.fromkeys(keys, 1000),
        end_history=dict.fromkeys(keys, history),
        failed_records=12,
        retry=RetryObservation(observed_at=builders.NOW, waiting=8, due_lag=0, next_due_at=builders.NOW + 30),
    )
    facts = builders.facts(
        group=builders.consumer_group(retry={"policyRef": {"name": "standard"}}),
        retry=RetryIntent(policy="standard", current="a1b2c3d4e5"),
        observation=builders.observation(group),
        workers=(WorkerObservation(pod="orders-0", member_id="m0", generation=3, stuck=(stuck,), failed=FAILED),),
    )
    return project_consumergroup_status(facts, {}, builders.NOW)


def cluster_status() -> dict[str, Any]:
    observation = builders.observation(metadata_version=29)
    return project_kafkacluster_status(
        builders.kafka_cluster(identity=ClusterIdentity(cluster_id="cluster-a")), observation, {}, builders.NOW
    )


def redrive_status() -> dict[str, Any]:
    """A Redrive in progress, with every field that is written by then."""
    body = Redrive.model_validate({**redrive(), "status": {"startedAt": "2026-01-01T00:00:00Z"}})
    decision = RunDecision("Running", conditions.RUNNING, "moving failed records")
    progress = RedriveProgress(selected=12, moved=11, guarded=2, remaining=40, moved_before=5, failed_again=3)
    return project_redrive_status(RedriveFacts(redrive=body), decision, progress, 6, builders.NOW)


def backfill_status() -> dict[str, Any]:
    """A Backfill between two attempts, with every field that is written by then."""
    sample = Sample(partition=0, offset=3, live="1", candidate="2")
    note = Ledger(
        attempt=2,
        remaining={0: ((4, 10),)},
        slices_done=1,
        slices_left=2,
        slice_offsets=6,
        counts=Counts(records_in=4, failed=1),
        comparison=Comparison(equal=3, different=1, samples=(sample,)),
        records_per_second=2.0,
        throttled_by="Rate",
        repeated=2,
    )
    resolved = ResolvedRange(
        topic="orders",
        ranges={0: (0, 10)},
        cluster_id="LUGiZEhbTwKuRnWpZ29UCw",
        topic_id=str(UUID(int=7)),
        sampled_from=1_000,
        from_ms=1_000,
        to_ms=9_000,
    )
    ended = AttemptEnd(attempt=2, reason="DriverFailed", message="x" * 600, failures_in_a_row=1, offsets_covered=4)
    known = {**range_status(resolved), "attempts": 2, "applicationName": "again-2", "startedAt": "2026-01-01T00:00:00Z"}
    facts = BackfillFacts(
        backfill=Backfill.model_validate({**backfill({"spec.spark": {"ui": True}}), "status": known}),
        resolved=resolved,
        progress=Progress(ledger=note, passes=BOTH, covered=4, total=10),
        application=SeenApplication(state=SparkState.RUNNING, uid="a-1"),
    )
    decision = BackfillDecision(phase="Running", reason=conditions.RUNNING, message="at work", ended=ended)
    return project_backfill_status(facts, decision, builders.NOW)


def offset_reset_status() -> dict[str, Any]:
    """An OffsetReset that was done, with every field that is written by then."""
    record = ResetRecord(
        phase=ResetPhase.SUCCEEDED,
        note="1 partition: the time is after its last record",
        started_at="2026-11-23T09:00:00Z",
        finished_at="2026-11-23T09:00:10Z",
        previous={("orders", 0): 50},
        offsets={("orders", 0): 10, ("orders", 1): 20},
    )
    decision = OffsetResetDecision("Succeeded", conditions.OFFSETS_SET, "all offsets were set", record=record)
    body = OffsetReset.model_validate(
        {**reset_to_a_time(), "metadata": {"name": "again", "namespace": "x", "uid": "1"}}
    )
    return project_offset_reset_status(body, decision, None, builders.NOW)


@pytest.fixture(scope="module")
def shown(quiet_site: Callable[..., Site]) -> Iterator[Site]:
    """A namespace with one object of each kind, each with a status that no operator will overwrite."""
    made = quiet_site("crd-views")
    place = {"metadata.namespace": made.name}
    made.apply(kafka_cluster(place), consumer_group({**place, "spec.replicas": 2}), redrive(place))
    made.apply(backfill(place), changed(reset_to_a_time(), place))
    made.client.merge_status("backfills", made.name, "again", backfill_status())
    made.client.merge_status("offsetresets", made.name, "again", offset_reset_status())
    made.client.merge_status("kafkaclusters", made.name, "main", cluster_status())
    made.client.merge_status("consumergroups", made.name, "orders", busy_status())
    made.client.merge_status("redrives", made.name, "fixed", redrive_status())
    yield made
    made.kubectl("delete", "kafkaclusters,consumergroups,redrives,backfills,offsetresets", "--all")


def table(site: Site, *arguments: str) -> tuple[str, str]:
    """The header, and the first row with single blanks."""
    header, row = site.kubectl("get", *arguments).strip().splitlines()[:2]
    return " ".join(header.split()), " ".join(row.split())


def test_status_is_stored_as_projected(shown: Site) -> None:
    """The schema knows every field that the operator writes; otherwise the server would prune it."""
    assert shown.status("consumergroups", "orders") == busy_status()
    assert shown.status("kafkaclusters", "main") == cluster_status()
    assert shown.status("redrives", "fixed") == redrive_status()
    assert shown.status("backfills", "again") == backfill_status()
    assert shown.status("offsetresets", "again") == offset_reset_status()


def test_columns_of_consumer_groups(shown: Site) -> None:
    header, row = table(shown, "kcg")
    assert header == COLUMNS
    assert row.startswith("orders True FleetReady Stable 2 2 2048 ~30s 12 ")


def test_wide_columns_of_consumer_groups(shown: Site) -> None:
    header, row = table(shown, "consumergroups", "-o", "wide")
    assert header == f"{COLUMNS} {WIDE_COLUMNS}"
    assert row.endswith(f" 2 4 None Complete 8 {times.to_text(builders.NOW + 30)} range 1 2 of 2 workers are ready")


def test_tables_fit_a_line_of_a_terminal(shown: Site) -> None:
    lines = [line for kind in KINDS for line in shown.kubectl("get", kind, "--ignore-not-found").splitlines()]
    assert len(lines) == 10
    assert [line for line in lines if len(line.rstrip()) > LINE_MAX] == []


def test_columns_of_kafka_clusters(shown: Site) -> None:
    header, row = table(shown, "kcl")
    assert header == CLUSTER_COLUMNS
    assert row.startswith("main True Reached 2 7 cluster-a ")


def test_columns_of_backfills(shown: Site) -> None:
    header, row = table(shown, "kbf")
    assert header == BACKFILL_COLUMNS
    assert row.startswith("again orders Running Running 40 %, slice 2 of 3 2 ")
    header, _ = table(shown, "backfills", "-o", "wide")
    assert header == f"{BACKFILL_COLUMNS} {BACKFILL_WIDE_COLUMNS}"


def test_columns_of_redrives(shown: Site) -> None:
    header, row = table(shown, "krd")
    assert header == REDRIVE_COLUMNS
    assert row.startswith("fixed orders Running Running 12 11 6 ")
    header, row = table(shown, "redrives", "-o", "wide")
    assert header == f"{REDRIVE_COLUMNS} {REDRIVE_WIDE_COLUMNS}"
    assert row.endswith(" 40 2 5 3 false True moving failed records")


def test_columns_of_offset_resets(shown: Site) -> None:
    header, row = table(shown, "kor")
    assert header == OFFSET_RESET_COLUMNS
    assert row.startswith("again orders Time Succeeded OffsetsSet 2 ")
    header, row = table(shown, "offsetresets", "-o", "wide")
    assert header == f"{OFFSET_RESET_COLUMNS} {OFFSET_RESET_WIDE_COLUMNS}"
    assert " 2026-11-23T08:00:00Z false " in row
    assert row.endswith(" all offsets were set")


def test_category_lists_all_kinds(shown: Site) -> None:
    listed = shown.kubectl("get", "consumerfleet", "-o", "name").split()
    assert listed == [
        "backfill.consumerfleet.io/again",
        "consumergroup.consumerfleet.io/orders",
        "kafkacluster.consumerfleet.io/main",
        "offsetreset.consumerfleet.io/again",
        "redrive.consumerfleet.io/fixed",
    ]


def test_scale_subresource_reads_and_writes(shown: Site) -> None:
    """The parts that an autoscaler needs: wanted and present replicas, and a nonempty selector."""
    scale = shown.client.ask("GET", CONSUMER_GROUP.path(shown.name, "orders", "scale"))
    assert (scale["spec"], scale["status"]) == (
        {"replicas": 2},
        {"replicas": 2, "selector": "app.kubernetes.io/component=worker,consumerfleet.io/group=orders"},
    )
    try:
        shown.kubectl("scale", "kcg/orders", "--replicas=3")
        assert shown.get("consumergroups", "orders")["spec"]["replicas"] == 3
    finally:
        shown.kubectl("scale", "kcg/orders", "--replicas=2")


def test_status_is_written_by_its_subresource_only(shown: Site) -> None:
    """A user who edits the object cannot change its status, and the operator cannot change a spec."""
    shown.kubectl("patch", "kcg", "orders", "--type=merge", "-p", json.dumps({"status": {"state": "Dead"}}))
    assert shown.status("consumergroups", "orders")["state"] == "Stable"


def test_object_that_no_operator_has_seen_says_so(quiet_site: Callable[..., Site]) -> None:
    """Helm and Flux take an object without `status.observedGeneration` for ready."""
    here = quiet_site("crd-unseen")
    place = {"metadata.namespace": here.name}
    here.apply(kafka_cluster(place), consumer_group(place), retry_policy(place), redrive(place), backfill(place))
    here.apply(changed(reset_to_a_time(), place))
    every = "kafkaclusters,consumergroups,retrypolicies,redrives,backfills,offsetresets"
    seen = json.loads(here.kubectl("get", every, "-o", "json"))
    assert [(body["kind"], body["status"]) for body in seen["items"]] == [
        (kind, {"observedGeneration": -1}) for kind in KINDS
    ]
    here.kubectl("delete", every, "--all")


KUBERNETES = re.compile(
    r"(\.spec\.template\.spec\.((initContainers|containers|volumes)\.\w+|(?!initContainers|containers|volumes)\w+)"
    r"|\.spec\.sink\.(parquet|table)\.volume\.csi|\.spec\.spark\.placement\.tolerations)\..+"
)
"""Insides of Kubernetes' own types, which are without descriptions."""


def undescribed(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if not schema.get("description") and not KUBERNETES.fullmatch(path):
        yield path
    for name, inner in schema.get("properties", {}).items():
        yield from undescribed(inner, f"{path}.{name}")


@pytest.fixture(scope="module")
def published(shown: Site) -> Mapping[str, Any]:
    """The schemas of our kinds by name. The server publishes them some time after it serves the kinds."""

    def complete() -> dict[str, Any]:
        answer = shown.client.ask("GET", "/openapi/v3/apis/consumerfleet.io/v1alpha1")
        schemas: dict[str, Any] = answer["components"]["schemas"]
        missing = {f"io.consumerfleet.v1alpha1.{kind}" for kind in KINDS} - schemas.keys()
        assert not missing, missing
        return schemas

    return eventually(complete, timeout_s=PATIENCE_S, what="all schemas")


@pytest.mark.parametrize("kind", KINDS)
def test_published_documentation_has_no_empty_field(published: Mapping[str, Any], kind: str) -> None:
    """The schema that `kubectl explain` reads from the server."""
    assert list(undescribed(published[f"io.consumerfleet.v1alpha1.{kind}"], "")) == []


def explained(text: str) -> list[str]:
    """The paths of `kubectl explain --recursive` that have fields of their own, `""` for the kind itself."""
    fields = re.findall(r"^( +)(\w+)\t<", text.partition("FIELDS:\n")[2], re.MULTILINE)
    depths = [len(blanks) // 2 for blanks, _ in fields]
    found, above = [""], [""] * (max(depths) + 1)
    for (_, name), depth, after in zip(fields, depths, [*depths[1:], 0], strict=True):
        above[depth] = f"{above[depth - 1]}.{name}"
        if after > depth:
            found.append(above[depth])
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("published")
def test_explain_describes_every_field(shown: Site, kind: str) -> None:
    """`kubectl explain` of everything that has fields; only Kubernetes' own types are not ours to describe."""
    paths = explained(shown.kubectl("explain", kind, "--recursive"))
    ours = [path for path in paths if not path.startswith(".metadata") and not KUBERNETES.fullmatch(f"{path}.*")]
    assert {".spec", ".status", ".status.conditions"} <= set(ours)
    silent = []
    for path in ours:
        text = shown.kubectl("explain", f"{kind}{path}")
        if "<no description>" in text or "<empty>" in text:
            silent.append(path)
    assert silent == []


@pytest.mark.parametrize(
    ("kind", "selector", "found"),
    [
        ("kcg", "spec.clusterRef.name=main", ["orders"]),
        ("kcg", "spec.clusterRef.name!=main", []),
        ("kcg", "status.groupId=orders", ["orders"]),
        ("kcg", "spec.retry.policyRef.name=standard", []),
        ("kcg", "spec.handler.python.configMapRef.name=absent", []),
        ("krd", "spec.groupRef.name=orders", ["fixed"]),
        ("krd", "status.phase=Running", ["fixed"]),
        ("kor", "spec.groupRef.name=orders", ["again"]),
        ("kor", "status.phase=Succeeded", ["again"]),
        ("kcl", "spec.sasl.secretRef.name=", ["main"]),
        ("kcl", "spec.tls.caSecretRef.name=ca", []),
        ("kcl", "spec.tls.clientCertSecretRef.name=", ["main"]),
    ],
)
def test_objects_are_selected_by_what_they_refer_to(shown: Site, kind: str, selector: str, found: list[str]) -> None:
    names = shown.kubectl("get", kind, "--field-selector", selector, "-o", "jsonpath={.items[*].metadata.name}")
    assert names.split() == found
