"""Objects that are anybody's, cut to what the operator reads."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from pydantic import ValidationError

from fleet_operator.api.v1alpha1 import Backfill, ConsumerGroup, KafkaCluster, OffsetReset, Redrive, RetryPolicy
from fleet_operator.api.v1alpha1.model import CustomResource
from fleet_operator.planning.fleet.parsing import read_check, read_fleet, read_pod
from fleet_operator.planning.fleet.revision import known_to
from fleet_operator.planning.labels import CONTAINER, RETRY_VOLUME
from fleet_operator.planning.problem import Problem, spec_problem
from fleet_operator.planning.redrive.phase import at_work, read_run_pods
from fleet_operator.planning.retry.fleet import has_retries
from fleet_operator.planning.run import read_job
from fleet_operator.planning.trimming import (
    SPEC_BYTES_MAX,
    trim_config_map,
    trim_job,
    trim_pod,
    trim_resource,
    trim_stateful_set,
)
from fleet_operator.reconcilers.registry import CONTROLLERS

LARGE = "x" * 200_000
BOUND = 20_000


def a_pod(*, hostile: str = "") -> dict[str, Any]:
    died = {"exitCode": 1, "reason": "Error", "finishedAt": "2026-01-01T00:00:50Z", "message": '{"reason": "Boom"}'}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "orders-0",
            "namespace": "ns",
            "uid": "u",
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"consumerfleet.io/group": "orders", "other": hostile},
            "annotations": {
                "consumerfleet.io/revision": "abc",
                "consumerfleet.io/retry-policies": "def",
                "other": hostile,
            },
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "orders", "uid": "s"}],
            "managedFields": [{"manager": hostile}],
        },
        "spec": {
            "containers": [
                {"name": "sidecar", "image": hostile},
                {
                    "name": CONTAINER,
                    "env": [{"name": "A", "value": hostile}],
                    "ports": [{"name": "http", "containerPort": 8081, "protocol": "TCP"}],
                },
            ],
            "volumes": [{"name": "other", "configMap": {"name": hostile}}, {"name": RETRY_VOLUME, "configMap": {}}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [
                {"type": "Custom", "status": "True", "message": hostile},
                {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:01:00Z"},
                {"type": "PodScheduled", "status": "True"},
            ],
            "containerStatuses": [
                {
                    "name": CONTAINER,
                    "restartCount": 3,
                    "imageID": hostile,
                    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                    "lastState": {"terminated": died},
                }
            ],
        },
    }


def test_used_fields_of_a_pod_survive_trimming() -> None:
    whole, cut = a_pod(), trim_pod(a_pod())
    assert read_pod(cut, 1767225670.0) == read_pod(whole, 1767225670.0)
    assert read_check(cut) == read_check(whole)
    assert read_run_pods([cut], job_uid="s") == read_run_pods([whole], job_uid="s")
    assert has_retries({"spec": cut["spec"]})
    assert cut["spec"]["containers"][0]["ports"] == [{"name": "http", "containerPort": 8081}]
    assert cut["status"]["podIP"] == "10.0.0.1"


@pytest.mark.parametrize("orphaned", [False, True])
def test_pod_of_a_run_is_known_when_it_is_trimmed(orphaned: bool) -> None:
    pod = a_pod()
    pod["metadata"]["labels"] = {"consumerfleet.io/redrive": "fixed", "batch.kubernetes.io/job-name": "fixed-redrive"}
    pod["metadata"]["ownerReferences"] = [] if orphaned else [{"kind": "Job", "name": "fixed-redrive", "uid": "j"}]
    pod["status"]["phase"] = "Running"
    assert at_work([], [trim_pod(pod)]) == at_work([], [pod]) == ("fixed",)


def test_ended_check_keeps_its_answer() -> None:
    whole = a_pod()
    report = json.dumps({"ok": False, "reason": "HandlerNotFound", "message": "no module"})
    state = {"terminated": {"exitCode": 2, "finishedAt": "2026-01-01T00:00:50Z", "message": f"log\n{report}\n"}}
    whole["status"] |= {"phase": "Failed", "containerStatuses": [{"name": CONTAINER, "state": state}]}
    assert read_check(trim_pod(whole)) == read_check(whole)
    assert read_check(whole).reason == "HandlerNotFound"


def test_large_pod_is_cut_to_a_bounded_size() -> None:
    hostile = a_pod(hostile=LARGE)
    hostile["metadata"]["annotations"]["consumerfleet.io/revision"] = LARGE
    hostile["metadata"]["ownerReferences"] *= 10_000
    hostile["spec"]["containers"][1]["ports"] *= 10_000
    hostile["status"]["conditions"] *= 10_000
    hostile["status"]["containerStatuses"][0]["lastState"]["terminated"]["message"] = LARGE
    assert len(json.dumps(trim_pod(hostile))) < BOUND


def test_cut_of_a_cut_is_the_same() -> None:
    assert trim_pod(trim_pod(a_pod())) == trim_pod(a_pod())
    config_map = {**a_pod(), "kind": "ConfigMap"}
    assert trim_config_map(trim_config_map(config_map)) == trim_config_map(config_map)
    assert trim_stateful_set(trim_stateful_set(a_stateful_set())) == trim_stateful_set(a_stateful_set())
    assert trim_job(trim_job(a_job())) == trim_job(a_job())


def test_config_map_loses_its_data_and_foreign_annotations() -> None:
    cut = trim_config_map({**a_pod(hostile=LARGE), "kind": "ConfigMap", "data": {"a": LARGE}})
    assert len(json.dumps(cut)) < BOUND
    assert "data" not in cut
    assert cut["metadata"]["annotations"] == {"consumerfleet.io/revision": "abc"}
    assert cut["metadata"]["ownerReferences"][0]["uid"] == "s"


def a_stateful_set(*, hostile: str = "", known: str = '{"abc": "digest"}') -> dict[str, Any]:
    pod = a_pod(hostile=hostile)
    annotations = {
        "consumerfleet.io/revision": "abc",
        "consumerfleet.io/known-revisions": known,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {**pod["metadata"], "generation": 3, "annotations": annotations | {"other": hostile}},
        "spec": {"replicas": 4, "serviceName": hostile, "template": {"metadata": {}, "spec": pod["spec"]}},
        "status": {
            "observedGeneration": 3,
            "replicas": 4,
            "readyReplicas": 3,
            "availableReplicas": 2,
            "updatedReplicas": 0,
            "currentReplicas": 4,
            "currentRevision": "orders-1",
            "updateRevision": "orders-1",
            "conditions": [{"type": "Custom", "status": "True", "message": hostile}],
        },
    }


def a_job(*, hostile: str = "", failed: bool = False) -> dict[str, Any]:
    pod = a_pod(hostile=hostile)
    words = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": f"{hostile}too often"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **pod["metadata"],
            "name": "fixed-redrive",
            "generation": 2,
            "labels": {"consumerfleet.io/group": "orders", "consumerfleet.io/redrive": "fixed", "other": hostile},
            "annotations": {"consumerfleet.io/records-per-second": "50", "other": hostile},
        },
        "spec": {"suspend": not failed, "template": {"spec": pod["spec"]}},
        "status": {"active": 1, "conditions": [words] if failed else None},
    }


def test_used_fields_of_a_stateful_set_survive_trimming() -> None:
    whole, cut = a_stateful_set(), trim_stateful_set(a_stateful_set())
    assert read_fleet(cut) == read_fleet(whole) is not None
    assert known_to(cut) == known_to(whole) == {"abc"}
    assert has_retries(cut["spec"]["template"])
    assert cut["metadata"]["generation"] == 3


@pytest.mark.parametrize("failed", [False, True])
def test_used_fields_of_a_job_survive_trimming(failed: bool) -> None:
    whole, cut = a_job(failed=failed), trim_job(a_job(failed=failed))
    assert read_job(cut) == read_job(whole) is not None
    assert at_work([cut], []) == at_work([whole], [])
    assert cut["metadata"]["generation"] == 2


def test_large_stateful_sets_and_jobs_are_cut_to_a_bounded_size() -> None:
    assert len(json.dumps(trim_stateful_set(a_stateful_set(hostile=LARGE)))) < BOUND
    assert len(json.dumps(trim_job(a_job(hostile=LARGE, failed=True)))) < BOUND


def test_stateful_set_that_names_too_many_revisions_names_none() -> None:
    cut = trim_stateful_set(a_stateful_set(known=json.dumps({LARGE: "digest"})))
    assert len(json.dumps(cut)) < BOUND
    assert known_to(cut) == frozenset()
    assert cut["metadata"]["annotations"]["consumerfleet.io/known-revisions"] == "", "not as if there were none"


REFERRING = {"clusterRef": {"name": "main"}, "groupRef": {"name": "orders"}, "groupId": "shop.orders"}
"""The fields by which other objects find an object."""


def a_resource(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "orders", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 2}
    return {"metadata": metadata, "spec": {**REFERRING, **spec}}


def problem_of(model: type[CustomResource], body: dict[str, Any]) -> Problem:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    return spec_problem(refused.value)


@pytest.mark.parametrize("model", [ConsumerGroup, KafkaCluster, RetryPolicy, Redrive, Backfill])
def test_large_spec_is_cut_and_refused_with_its_size_and_the_limit(model: type[CustomResource]) -> None:
    affinity = {"podAffinity": {"x": [{"a": number} for number in range(60_000)]}}
    body = trim_resource(a_resource(template={"spec": {"affinity": affinity}}, topics=["orders"]))
    assert len(json.dumps(body)) < 2_000
    assert body["spec"] == {**REFERRING, "topics": ["orders"]}
    problem = problem_of(model, body)
    assert problem.reason == "SpecTooLarge"
    assert problem.message == (
        "spec has 708990 bytes as JSON, 708935 of them in template, but more than 65536 are refused: make it smaller"
    )
    assert trim_resource(deepcopy(body)) == body, "a part of an object stays as it is"


def test_spec_up_to_the_limit_stays_whole() -> None:
    sidecars = [{"name": f"s{n}", "args": ["x" * 100] * 40} for n in range(14)]
    spec = a_resource(template={"spec": {"containers": sidecars}}, topics=["orders"])
    assert 55_000 < len(json.dumps(spec["spec"])) < SPEC_BYTES_MAX
    assert trim_resource(deepcopy(spec)) == spec


def test_offsets_of_thousands_of_partitions_stay() -> None:
    def named(topic: str) -> dict[str, Any]:
        offsets = [{"topic": topic, "partition": number, "offset": 123_456_789} for number in range(5000)]
        return a_resource(to="Offsets", offsets=offsets)

    assert trim_resource(named("orders")) == named("orders")
    cut = trim_resource(named("orders" * 12))
    assert "offsets" not in cut["spec"]
    assert problem_of(OffsetReset, cut).message.startswith("spec.offsets has 603891 bytes")


def test_labels_and_annotations_of_others_are_not_kept() -> None:
    body = a_resource()
    ours = {"consumerfleet.io/paused": "true"}
    body["metadata"] |= {
        "annotations": {**ours, "other": LARGE},
        "labels": {"app": "x", "consumerfleet.io/canary": "true"},
    }
    cut = trim_resource(body)["metadata"]
    assert (cut["annotations"], cut["labels"]) == (ours, {"consumerfleet.io/canary": "true"})


def test_pod_whose_image_was_changed_after_its_creation_says_by_whom() -> None:
    image: dict[str, Any] = {"f:spec": {"f:containers": {'k:{"name":"worker"}': {"f:image": {}}}}}
    made = "2026-11-27T10:00:00Z"
    later = "2026-11-27T10:05:00Z"
    entries = [
        {"manager": "kube-controller-manager", "time": later, "fieldsV1": image},
        {"manager": "kubelet", "subresource": "status", "time": later, "fieldsV1": {"f:status": {}}},
        {"manager": "kubectl-debug", "subresource": "ephemeralcontainers", "time": later, "fieldsV1": image},
        {"manager": "k3s", "time": made, "fieldsV1": image},
        {"manager": "someone", "time": later, "fieldsV1": {"f:metadata": {"f:labels": {}}}},
    ]
    metadata = {"name": "orders-0", "namespace": "ns", "uid": "u", "creationTimestamp": made, "managedFields": entries}
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    assert "edited" not in trim_pod(pod)["metadata"]
    entries.append({"manager": "kubectl-set", "time": later, "fieldsV1": image})
    cut = trim_pod(pod)
    assert cut["metadata"]["edited"] == "kubectl-set"
    assert trim_pod(cut) == cut


def test_finalizers_and_owners_of_others_are_not_kept() -> None:
    body = a_resource()
    ours = ["consumerfleet.io/retry-topics", "foregroundDeletion"]
    body["metadata"] |= {
        "finalizers": [*(f"example.org/{number}" for number in range(20_000)), *ours],
        "ownerReferences": [{"uid": str(number), "name": "x" * 200} for number in range(5_000)],
    }
    cut = trim_resource(body)["metadata"]
    assert cut["finalizers"] == ours
    assert len(json.dumps(cut)) < 400


def test_every_kind_of_ours_is_cut() -> None:
    assert {controller.watched.view.trim for controller in CONTROLLERS} == {trim_resource}
