"""The health scripts for Argo CD, run on objects as Argo CD runs them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fleet_operator.api.v1alpha1 import Backfill, Redrive
from fleet_operator.clients.kinds import CONSUMER_GROUP
from fleet_operator.planning.backfill.phase import BackfillFacts
from fleet_operator.planning.backfill.phase import decide as decide_backfill
from fleet_operator.planning.backfill.status import project_backfill_status
from fleet_operator.planning.fleet.rollout import RolloutDecision, RolloutPhase
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.redrive.phase import RedriveFacts, decide
from fleet_operator.planning.redrive.status import project_redrive_status
from fleet_operator.planning.run import JobFacts, RunState
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from fleet_operator.planning.status.kafkacluster import project_kafkacluster_status
from tests.support.argo import SCRIPTS, health
from tests.unit.api.backfill_objects import backfill
from tests.unit.api.crd_objects import redrive
from tests.unit.planning import builders
from tests.unit.planning.status.projecting import brand_new, cause, project

CRDS: Final = Path(__file__).resolve().parents[3] / "crds"
WITH_STATUS: Final = tuple(text for path in sorted(CRDS.glob("*.yaml")) if "status: {}" in (text := path.read_text()))
KINDS: Final = tuple(re.findall(r"^    kind: (\w+)$", text, re.MULTILINE)[0] for text in WITH_STATUS)
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
SERVING = "Serving=True LastGoodRevision: 2 workers of revision a handle records"
IDLE = "Serving=False NoWorkerReady: no worker is ready"
REFUSED = "Stalled=True Refused: HandlerNotFound: module shop has no handle"
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
    "waiting while serving": (
        group(UNREADY, WAITING, SERVING),
        "Progressing",
        "2 workers of revision a handle records",
    ),
    "waiting and degraded": (group(UNREADY, WAITING, "Degraded=True RevisionHeld: x"), "Progressing", "Waiting"),
    "refused while serving": (group(UNREADY, REFUSED, SERVING), "Degraded", "2 workers of revision a handle records"),
    "refused and idle": (group(UNREADY, REFUSED, IDLE), "Degraded", "no worker is ready"),
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
    "cluster with a lost coordinator": (
        made(
            "KafkaCluster", "Ready=True Reached: yes", "CoordinatorsAvailable=False PartitionsOffline: start broker 2"
        ),
        "Healthy",
        "start broker 2",
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
    "backfill runs": (made("Backfill", "Complete=False R: yes", status={"phase": "Running"}), "Progressing", "R: yes"),
    "backfill succeeded": (
        made("Backfill", "Complete=True A: all", status={"phase": "Succeeded"}),
        "Healthy",
        "A: all",
    ),
    "backfill failed": (made("Backfill", "Complete=False J: e", status={"phase": "Failed"}), "Degraded", "J: e"),
    "backfill suspended": (
        made("Backfill", "Complete=False Suspended: s", status={"phase": "Paused"}, spec={"suspend": True}),
        "Suspended",
        "Suspended: s",
    ),
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


NEW: Final = "bbbbbbbbbb"
PULLING: Final = Problem("ImagePullBackOff", "pod orders-1, container worker: back-off")


def behind(phase: RolloutPhase, **decided: Any) -> ConsumerGroupFacts:
    """A fleet that runs one revision while a newer one is in this phase."""
    decision = RolloutDecision(phase=phase, target="aaaaaaaaaa", **decided)
    return builders.facts(rollout=decision, revision=NEW)


PHASES: Final[dict[str, tuple[ConsumerGroupFacts, str, str]]] = {
    "settled": (builders.facts(), "Healthy", "2 of 2 workers are ready"),
    "first visit": (brand_new(), "Progressing", "Checking"),
    "checking": (behind(RolloutPhase.CHECKING), "Progressing", "Checking"),
    "applying": (behind(RolloutPhase.APPLYING), "Progressing", "RollingOut"),
    "waiting for workers": (behind(RolloutPhase.WAITING), "Progressing", "RollingOut"),
    "check waits": (behind(RolloutPhase.CHECKING, waits=PULLING), "Progressing", "Waiting: ImagePullBackOff"),
    "worker waits": (behind(RolloutPhase.WAITING, waits=PULLING), "Progressing", "Waiting: ImagePullBackOff"),
    "check failed outside": (
        behind(RolloutPhase.CHECK_FAILED, cause=Problem("TopicNotFound", "none")),
        "Progressing",
        "Waiting: TopicNotFound",
    ),
    "refused": (
        behind(RolloutPhase.REFUSED, cause=Problem("HandlerNotFound", "no module shop")),
        "Degraded",
        "2 workers of revision aaaaaaaaaa handle records",
    ),
    "held for a reference": (
        builders.facts(rollout=cause(RolloutPhase.HELD, "HandlerSourceNotFound"), revision=None),
        "Progressing",
        "Waiting: HandlerSourceNotFound",
    ),
    "held by a mistake": (
        builders.facts(rollout=cause(RolloutPhase.HELD, "TemplateRefused"), revision=None),
        "Degraded",
        "Refused: what to do",
    ),
    "refused by the API server": (
        builders.facts(refusal=Problem("RefusedByApiServer", "no such class")),
        "Degraded",
        "no such class",
    ),
    "scaled up": (builders.facts(wanted_replicas=4), "Progressing", "2 of 4 workers are ready"),
    "no workers wanted": (
        builders.facts(rollout=RolloutDecision(phase=RolloutPhase.HELD, target=None), wanted_replicas=0),
        "Healthy",
        "no workers are wanted",
    ),
    "brokers away": (builders.facts(observation=builders.unreachable()), "Degraded", "no broker answers"),
}


def test_there_is_a_case_for_every_phase() -> None:
    assert {facts.rollout.phase for facts, _, _ in PHASES.values()} == set(RolloutPhase)


@pytest.mark.parametrize("case", PHASES)
def test_health_of_what_the_operator_writes(case: str) -> None:
    """The status comes from the operator's own projection, so a condition renamed there fails here."""
    facts, status, message = PHASES[case]
    projected = project(facts)
    body = {"kind": CONSUMER_GROUP.kind, "metadata": {"generation": projected["observedGeneration"]}, "spec": {}}
    found = health({**body, "status": projected})
    assert (found.status, message in found.message) == (status, True), found
    newer = health({**body, "metadata": {"generation": 2}, "status": projected})
    assert newer.status == "Progressing"


@pytest.mark.parametrize(
    ("observation", "status"),
    [(builders.observation(), "Healthy"), (builders.unreachable(), "Degraded"), (None, "Progressing")],
)
def test_health_of_a_projected_kafka_cluster(observation: Any, status: str) -> None:
    projected = project_kafkacluster_status(builders.kafka_cluster(), observation, {}, builders.NOW)
    assert health({"kind": "KafkaCluster", "metadata": {"generation": 1}, "status": projected}).status == status


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"obstacle": Problem("GroupNotFound", "create it")}, "Progressing"),
        ({}, "Progressing"),
        ({"job": JobFacts(state=RunState.COMPLETE)}, "Healthy"),
        ({"job": JobFacts(state=RunState.FAILED)}, "Degraded"),
        ({"refusal": Problem("FilterRefused", "no such reason")}, "Degraded"),
    ],
)
def test_health_of_a_projected_redrive(facts: dict[str, Any], status: str) -> None:
    body = redrive()
    given = RedriveFacts(redrive=Redrive.model_validate(body), **facts)
    projected = project_redrive_status(given, decide(given), None, None, builders.NOW)
    found = health({**body, "metadata": {"generation": projected["observedGeneration"]}, "status": projected})
    assert found.status == status, found


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"obstacle": Problem("GroupNotFound", "create it")}, "Progressing"),
        ({}, "Progressing"),
        ({"refusal": Problem("FilterRefused", "no such pattern")}, "Degraded"),
    ],
)
def test_health_of_a_projected_backfill(facts: dict[str, Any], status: str) -> None:
    body = backfill()
    given = BackfillFacts(backfill=Backfill.model_validate(body), **facts)
    projected = project_backfill_status(given, decide_backfill(given), builders.NOW)
    found = health({**body, "metadata": {"generation": projected["observedGeneration"]}, "status": projected})
    assert found.status == status, found
