"""The health scripts for Argo CD, run on objects as Argo CD runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fleet_operator.clients.kinds import CONSUMER_GROUP, KAFKA_CLUSTER, REDRIVE, RETRY_POLICY
from tests.support.argo import SCRIPTS, health

KINDS: Final = tuple(kind.kind for kind in (CONSUMER_GROUP, KAFKA_CLUSTER, RETRY_POLICY, REDRIVE))
Given = dict[str, Any]


def made(kind: str, *conditions: str, generation: int = 3, **parts: Any) -> Given:
    """An object whose status is of its newest generation; a condition is written `Type=Status Reason: message`."""
    status = {"observedGeneration": generation, "conditions": [parsed(text) for text in conditions]}
    body: Given = {"kind": kind, "metadata": {"name": "orders", "generation": generation}, "spec": {}, "status": status}
    for place, changes in parts.items():
        body[place] = {**body[place], **changes}
    return body


def parsed(text: str) -> dict[str, str]:
    judged, _, message = text.partition(": ")
    given, _, reason = judged.partition(" ")
    kind, _, status = given.partition("=")
    return {"type": kind, "status": status, "reason": reason, "message": message}


def group(*conditions: str, **parts: Any) -> Given:
    return made(CONSUMER_GROUP.kind, *conditions, **parts)


READY = "Ready=True FleetReady: 2 of 2 workers are ready"
UNREADY = "Ready=False RollingOut: 1 of 2 workers run it"
COMPLETE = "Progressing=False Complete: the revision runs"
SERVING = "Serving=True GoodRevision: revision a runs"
IDLE = "Serving=False NoRevision: no revision runs"
REFUSED = "Progressing=False Refused: HandlerNotFound: module shop has no handle"
WAITING = "Progressing=True Waiting: pod orders-check: Unschedulable: 0/3 nodes are available"

CASES: Final[dict[str, tuple[Given, str, str]]] = {
    "good": (group(READY, COMPLETE, SERVING), "Healthy", "2 of 2 workers are ready"),
    "no status": ({"kind": "ConsumerGroup", "metadata": {"generation": 1}}, "Progressing", "generation 1"),
    "null status": (
        {"kind": "ConsumerGroup", "metadata": {"generation": 1}, "status": None},
        "Progressing",
        "generation 1",
    ),
    "default status": (group(status={"observedGeneration": -1, "conditions": None}), "Progressing", "generation 3"),
    "no conditions": (group(), "Progressing", "not judged"),
    "older generation": (group(READY, COMPLETE, status={"observedGeneration": 2}), "Progressing", "generation 3"),
    "checking": (group(UNREADY, "Progressing=True Checking: pod orders-check runs", IDLE), "Progressing", "Checking"),
    "waiting": (group(UNREADY, WAITING, IDLE), "Progressing", "Waiting: pod orders-check: Unschedulable"),
    "waiting while serving": (group(UNREADY, WAITING, SERVING), "Progressing", "last good revision handles records"),
    "waiting and degraded": (group(UNREADY, WAITING, "Degraded=True RevisionHeld: x"), "Progressing", "Waiting"),
    "refused while serving": (group(UNREADY, REFUSED, SERVING), "Degraded", "last good revision handles records"),
    "refused and idle": (group(UNREADY, REFUSED, IDLE), "Degraded", "no revision handles records"),
    "refusal of an older generation": (
        group(UNREADY, REFUSED, SERVING, status={"observedGeneration": 2}),
        "Progressing",
        "generation 3",
    ),
    "ready and degraded": (
        group(READY, COMPLETE, "Degraded=True BreakerOpen: too many records fail"),
        "Degraded",
        "BreakerOpen: too many records fail",
    ),
    "not ready": (group("Ready=False WaitingForGroup: not Stable", COMPLETE), "Progressing", "WaitingForGroup"),
    "message missing": (group("Ready=Unknown NotYetObserved: "), "Progressing", "NotYetObserved"),
    "suspended": (group(UNREADY, spec={"suspend": True}), "Suspended", "spec.suspend"),
    "suspended and refused": (group(UNREADY, REFUSED, spec={"suspend": True}), "Suspended", "spec.suspend"),
    "paused": (
        group(READY, metadata={"annotations": {"consumerfleet.io/paused": "true"}, "generation": 4}),
        "Suspended",
        "consumerfleet.io/paused",
    ),
    "other annotation": (group(READY, metadata={"annotations": {"consumerfleet.io/paused": "false"}}), "Healthy", "2"),
    "deleted": (group(READY, metadata={"deletionTimestamp": "2027-01-15T08:00:00Z"}), "Progressing", "deleted"),
    "cluster reached": (made("KafkaCluster", "Ready=True Reached: the brokers answer"), "Healthy", "answer"),
    "cluster with a small offsets topic": (
        made("KafkaCluster", "Ready=True Reached: yes", "OffsetsTopicSized=False ReplicationTooLow: one replica"),
        "Healthy",
        "one replica",
    ),
    "cluster away": (made("KafkaCluster", "Ready=False BrokerUnreachable: none"), "Degraded", "BrokerUnreachable"),
    "cluster not asked": (made("KafkaCluster", "Ready=Unknown NotYetObserved: not yet"), "Progressing", "not yet"),
    "policy accepted": (made("RetryPolicy", "Ready=True PolicyAccepted: 5 delays"), "Healthy", "5 delays"),
    "policy refused": (made("RetryPolicy", "Ready=False TooManyDelays: 17"), "Degraded", "TooManyDelays: 17"),
    "redrive waits": (made("Redrive", "Complete=False X: no", status={"phase": "Pending"}), "Progressing", "X: no"),
    "redrive runs": (made("Redrive", "Complete=False R: yes", status={"phase": "Running"}), "Progressing", "R: yes"),
    "redrive succeeded": (made("Redrive", "Complete=True A: all", status={"phase": "Succeeded"}), "Healthy", "A: all"),
    "redrive failed": (made("Redrive", "Complete=False J: e", status={"phase": "Failed"}), "Degraded", "J: e"),
    "redrive cancelled": (made("Redrive", "Complete=False G: e", status={"phase": "Cancelled"}), "Degraded", "G: e"),
    "redrive suspended": (
        made("Redrive", "Complete=False Suspended: s", status={"phase": "Paused"}, spec={"suspend": True}),
        "Suspended",
        "Suspended: s",
    ),
    "redrive halted": (made("Redrive", "Complete=False H: h", status={"phase": "Paused"}), "Progressing", "H: h"),
    "redrive edited after its end": (
        made("Redrive", "Complete=True A: all", status={"phase": "Succeeded", "observedGeneration": 2}),
        "Healthy",
        "A: all",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_health(case: str) -> None:
    body, status, message = CASES[case]
    found = health(body)
    assert (found.status, message in found.message) == (status, True), found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [None, {}, {"observedGeneration": -1}, {"observedGeneration": 1, "conditions": []}])
def test_object_that_nobody_has_judged_is_progressing(kind: str, status: Any) -> None:
    for metadata in ({"generation": 2}, {"generation": 2, "annotations": {}}):
        assert health({"kind": kind, "metadata": metadata, "spec": {}, "status": status}).status == "Progressing"


def test_every_kind_has_a_script_and_argo_cd_is_given_all() -> None:
    """The folders are those of Argo CD's own `resource_customizations`; the keys are those of `argocd-cm`."""
    assert {path.parent.name for path in SCRIPTS.glob("*/health.lua")} == set(KINDS)
    folder = SCRIPTS.parent
    (generated,) = yaml.safe_load((folder / "kustomization.yaml").read_text())["configMapGenerator"]
    given = dict(entry.split("=") for entry in generated["files"])
    assert given == {
        f"resource.customizations.health.{SCRIPTS.name}_{kind}": f"{SCRIPTS.name}/{kind}/health.lua" for kind in KINDS
    }
    assert all(Path(folder, path).is_file() for path in given.values())
