"""Cluster objects as people and kubelets leave them, read into facts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet_operator.planning.fleet import manifests, parsing
from fleet_operator.planning.fleet.revision import plan_revision
from fleet_operator.planning.state.group import RevisionState, RevisionVerdict
from tests.unit.planning.builders import IMAGE, NOW, consumer_group, kafka_cluster


def check_pod(phase: str, *, terminated: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    containers = [{"name": "worker", "state": {"terminated": terminated}}] if terminated else []
    metadata = {
        "name": "orders-check-abc",
        "uid": "u1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"consumerfleet.io/revision": "abc"},
    }
    return {"metadata": metadata, "status": {"phase": phase, "containerStatuses": containers, **status}}


def report(ok: bool, reason: str, message: str = "what to do") -> str:
    return json.dumps({"ok": ok, "reason": reason, "message": message})


def test_passed_check() -> None:
    terminated = {"exitCode": 0, "finishedAt": "2026-01-01T00:00:09Z", "message": report(True, "CheckPassed")}
    facts = parsing.read_check(check_pod("Succeeded", terminated=terminated))
    assert (facts.ok, facts.revision, facts.uid) == (True, "abc", "u1")


@pytest.mark.parametrize(("code", "outside"), [(20, False), (21, True), (137, True)])
def test_failed_check_reports_if_it_may_be_retried(code: int, outside: bool) -> None:
    terminated = {"exitCode": code, "message": report(False, "TopicNotFound")}
    facts = parsing.read_check(check_pod("Failed", terminated=terminated))
    assert (facts.ok, facts.outside, facts.reason, facts.message) == (False, outside, "TopicNotFound", "what to do")


def test_answer_is_the_last_line_of_the_termination_message() -> None:
    """With FallbackToLogsOnError the message may be the log's tail."""
    text = "Traceback ...\n" + report(False, "HandlerImportFailed") + "\n"
    facts = parsing.read_check(check_pod("Failed", terminated={"exitCode": 20, "message": text}))
    assert facts.reason == "HandlerImportFailed"


@pytest.mark.parametrize(
    ("terminated", "status", "message"),
    [
        (
            {"exitCode": 137, "reason": "OOMKilled"},
            {},
            "the check pod ended without a result (OOMKilled, exit code 137)",
        ),
        (
            {"exitCode": 1, "reason": "Error", "message": "boom\nKeyError: x"},
            {},
            "the check pod ended without a result (Error, exit code 1): KeyError: x",
        ),
        (
            None,
            {"reason": "Evicted", "message": "node was low on memory"},
            "the check pod ended without a result (Evicted): node was low on memory",
        ),
    ],
)
def test_check_that_left_no_answer_is_explained(
    terminated: dict[str, Any] | None, status: dict[str, Any], message: str
) -> None:
    facts = parsing.read_check(check_pod("Failed", terminated=terminated, **status))
    assert (facts.ok, facts.outside, facts.reason, facts.message) == (False, True, "CheckFailed", message)


@pytest.mark.parametrize(("code", "ok"), [(0, True), (20, False)])
@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_answer_of_a_check_is_that_of_the_worker_among_injected_containers(phase: str, code: int, ok: bool) -> None:
    """A mesh's webhook adds a proxy, which the kubelet lists first, and which runs on."""
    pod = check_pod(phase, terminated={"exitCode": code, "message": report(ok, "HandlerImportFailed")})
    proxy = {"running": {"startedAt": "x"}} if phase == "Running" else {"terminated": {"exitCode": 1}}
    pod["status"]["containerStatuses"].insert(0, {"name": "istio-proxy", "state": proxy})
    facts = parsing.read_check(pod)
    assert (facts.ok, facts.outside) == (ok, False)


def test_check_whose_init_container_fails_names_it() -> None:
    pod = check_pod("Failed")
    pod["spec"] = {"initContainers": [{"name": "proxy", "restartPolicy": "Always"}, {"name": "migrate"}]}
    ended = {"terminated": {"exitCode": 137}}, {"terminated": {"exitCode": 3, "message": "no such table\n"}}
    names = ("proxy", "migrate")
    pod["status"]["initContainerStatuses"] = [
        {"name": name, "state": state} for name, state in zip(names, ended, strict=True)
    ]
    facts = parsing.read_check(pod)
    assert (facts.ok, facts.reason) == (False, "InitContainerFailed")
    assert facts.message == "init container migrate ended (exit code 3): no such table"
    pod["status"] |= {"reason": "Evicted", "message": "node was low on memory"}
    assert parsing.read_check(pod).reason == "CheckFailed", "the node ended it"


def test_waiting_check_reports_the_cause() -> None:
    pod = check_pod("Pending")
    pod["status"]["containerStatuses"] = [
        {"name": "worker", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
    ]
    facts = parsing.read_check(pod)
    assert (facts.ok, facts.reason, facts.message) == (None, "ImagePullBackOff", "not found")


def test_running_check_has_started_and_one_on_a_lost_node_waits() -> None:
    pod = check_pod("Running")
    pod["status"]["containerStatuses"] = [{"name": "worker", "ready": True, "state": {"running": {"startedAt": "x"}}}]
    assert (parsing.read_check(pod).started, parsing.read_check(pod).waits) == (True, None)
    pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    assert parsing.read_check(pod).waits is None
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    waits = parsing.read_check(pod).waits
    assert waits is not None
    assert waits.reason == "NodeNotReady"


def test_fresh_check_waits_for_nothing_special() -> None:
    pod = check_pod("Pending")
    pod["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": "ContainerCreating"}}}]
    assert parsing.read_check(pod).reason == ""
    assert parsing.read_check({"metadata": {"name": "x"}}).ok is None


@pytest.mark.parametrize("handler_files", [None, {"shop.py": "def handle(record): ..."}])
def test_revision_is_read_as_it_was_written(handler_files: dict[str, str] | None) -> None:
    """Round trip of `manifests` and `parsing`, with what the group's state says of the revision."""
    group = consumer_group()
    revision = plan_revision(group, kafka_cluster(), handler_files=handler_files, image=IMAGE)
    verdict = RevisionVerdict(
        state=RevisionState.REFUSED,
        since=NOW,
        reason="HandlerImportFailed",
        message="no module\nnamed 'shöp'",
        request="r1",
        check="u1",
        checked=True,
    )
    handler = manifests.handler_config_map(group, revision)
    names = [handler["metadata"]["name"]] if handler else []
    read = parsing.read_revision(
        manifests.revision_config_map(group, revision), {revision.hash: verdict}, config_map_names=names
    )
    assert read is not None
    assert (read.hash, read.verdict) == (revision.hash, verdict)
    assert read.pod_template == revision.pod_template
    assert read.complete


def test_missing_handler_copy_makes_a_record_incomplete() -> None:
    group = consumer_group()
    revision = plan_revision(group, kafka_cluster(), handler_files={"a.py": ""}, image=IMAGE)
    body = manifests.revision_config_map(group, revision)
    read = parsing.read_revision(body, {}, config_map_names=[])
    assert read is not None
    assert not read.complete


@pytest.mark.parametrize(
    "spoil",
    [
        {"data": {}},
        {"data": {"pod-template.json": "{"}},
        {"data": {"pod-template.json": "[]"}},
        {"metadata": {"annotations": {}}},
    ],
)
def test_spoilt_record_counts_as_none(spoil: dict[str, Any]) -> None:
    group = consumer_group()
    revision = plan_revision(group, kafka_cluster(), handler_files=None, image=IMAGE)
    body = manifests.revision_config_map(group, revision)
    verdicts = {revision.hash: RevisionVerdict(state=RevisionState.GOOD)}
    assert parsing.read_revision(body | spoil, verdicts, config_map_names=[]) is None


def test_revision_that_the_state_does_not_know_is_an_unchecked_candidate() -> None:
    """Somebody made the ConfigMap: the revision must be checked, not trusted."""
    group = consumer_group()
    revision = plan_revision(group, kafka_cluster(), handler_files=None, image=IMAGE)
    body = manifests.revision_config_map(group, revision)
    another = {"0" * 10: RevisionVerdict(state=RevisionState.GOOD, since=NOW, checked=True)}
    read = parsing.read_revision(body, another, config_map_names=[])
    assert read is not None
    assert (read.state, read.since, read.checked) == (RevisionState.CANDIDATE, None, False)


def stateful_set(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"generation": 3, "annotations": {"consumerfleet.io/revision": "abc"}},
        "spec": {"replicas": 2},
        "status": status,
    }


def test_fleet_in_the_middle_of_an_update() -> None:
    facts = parsing.read_fleet(
        stateful_set(
            observedGeneration=3,
            replicas=2,
            updatedReplicas=1,
            readyReplicas=2,
            availableReplicas=1,
            currentRevision="x",
            updateRevision="y",
        )
    )
    assert facts is not None
    assert (facts.revision, facts.observed, facts.replicas, facts.current_replicas) == ("abc", True, 2, 2)
    assert (facts.updated_replicas, facts.ready_replicas, facts.available_replicas) == (1, 2, 1)


def test_fleet_with_a_lagging_controller_is_not_observed() -> None:
    facts = parsing.read_fleet(stateful_set(observedGeneration=2))
    assert facts is not None
    assert not facts.observed
    facts = parsing.read_fleet(stateful_set())
    assert facts is not None
    assert (facts.observed, facts.current_replicas) == (False, 0)


def test_finished_update_counts_all_pods_as_updated() -> None:
    """Once both revisions are equal, the controller may count the pods as current only."""
    facts = parsing.read_fleet(
        stateful_set(observedGeneration=3, replicas=2, currentReplicas=2, currentRevision="y", updateRevision="y")
    )
    assert facts is not None
    assert facts.updated_replicas == 2


def test_absent_or_leaving_statefulset_is_no_fleet() -> None:
    assert parsing.read_fleet(None) is None
    leaving = stateful_set()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert parsing.read_fleet(leaving) is None


def worker_pod(ready: str | None, *, since: str = "2026-01-01T00:05:00Z", **status: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": since}] if ready else []
    metadata = {
        "name": "orders-12",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"consumerfleet.io/revision": "abc"},
    }
    return {"metadata": metadata, "status": {"conditions": conditions, **status}}


def test_ready_pod() -> None:
    facts = parsing.read_pod(worker_pod("True"))
    assert (facts.name, facts.ordinal, facts.revision, facts.ready, facts.deleting) == (
        "orders-12",
        12,
        "abc",
        True,
        False,
    )


@pytest.mark.parametrize("ready", ["False", "Unknown", None])
def test_pod_is_not_ready_without_a_condition_that_is_true(ready: str | None) -> None:
    assert not parsing.read_pod(worker_pod(ready)).ready


def test_crashing_pod_reports_its_exit_code_and_last_line() -> None:
    crash = {
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
        "name": "worker",
        "lastState": {"terminated": {"exitCode": 1, "message": "Traceback\nValueError: no such table"}},
    }
    facts = parsing.read_pod(worker_pod("False", containerStatuses=[crash]))
    told = "container worker ended (exit code 1): ValueError: no such table"
    assert (facts.reason, facts.message) == ("CrashLoopBackOff", told)


def test_unscheduled_pod_reports_the_schedulers_message() -> None:
    pod = worker_pod("False")
    pod["status"]["conditions"].append(
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    )
    facts = parsing.read_pod(pod)
    assert (facts.reason, facts.message) == ("Unschedulable", "0/1 nodes")
