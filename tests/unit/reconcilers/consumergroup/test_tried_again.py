"""Refused revisions that are asked for again, and times that pass from one plan to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.api.v1alpha1 import ConsumerGroup
from fleet_operator.planning.fleet import manifests
from fleet_operator.planning.fleet.blocking import cluster_not_found
from fleet_operator.planning.fleet.parts import MAIN, read_part
from fleet_operator.planning.fleet.revision import request_digest, with_known
from fleet_operator.planning.fleet.rollout import RolloutPhase
from fleet_operator.planning.fleet.rollout_facts import RevisionRecord
from fleet_operator.planning.state.group import RevisionState
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.plan import Plan, make_plan
from fleet_operator.reconcilers.consumergroup.session import Memory
from tests.unit.planning.builders import IMAGE, NOW, consumer_group, kafka_cluster, remembered
from tests.unit.reconcilers.consumergroup.test_decide import gathered

SAME_HASH = (
    {"rollout": {"progressDeadlineSeconds": 900}},
    {"deletion": {"group": "Delete"}},
    {"annotations": {"consumerfleet.io/retry-rollout": "1"}},
)


def found(group: ConsumerGroup, *verdicts: RevisionRecord, **changes: Any) -> Gathered:
    here = gathered(cluster=kafka_cluster(), group=group, policy=None, **changes)
    revision = make_plan(here, NOW, image=IMAGE).fleet.wanted
    assert revision is not None
    records = [replace(verdict, hash=revision.hash) for verdict in verdicts]
    maps = tuple(manifests.revision_config_map(group, revision) for _ in verdicts)
    return replace(here, state=remembered(*records, wanted=revision.hash), config_maps=maps)


def refused(group: ConsumerGroup) -> RevisionRecord:
    why = {"reason": "HandlerImportFailed", "message": "why", "since": NOW - 60, "request": request_digest(group)}
    return RevisionRecord(hash="", state=RevisionState.REFUSED, **why)  # type: ignore[arg-type]


def beside_another(here: Gathered) -> Gathered:
    """The same with workers of another revision, which knew this one."""
    revision = make_plan(here, NOW, image=IMAGE).fleet.wanted
    assert revision is not None
    template = revision.pod_template
    body = manifests.stateful_set(here.group, revision="f" * 10, pod_template=template, replicas=2)
    main = read_part(MAIN, with_known(body, {revision.hash: template}), (), NOW)
    return replace(here, parts={**here.parts, MAIN: main})


def hash_of(plan: Plan) -> str:
    assert plan.fleet.wanted is not None
    return plan.fleet.wanted.hash


@pytest.mark.parametrize("change", SAME_HASH)
def test_any_change_and_the_annotation_try_a_refused_revision_again(change: dict[str, Any]) -> None:
    before, after = consumer_group(), consumer_group(**change)
    verdict = refused(before)
    first = make_plan(found(before, verdict), NOW, image=IMAGE)
    assert (first.fleet.decision.phase, first.fleet.decision.new_record) == (RolloutPhase.REFUSED, None)
    again = make_plan(found(after, verdict), NOW, image=IMAGE, memory=first.memory)
    assert hash_of(again) == hash_of(first)
    assert again.fleet.decision.phase is RolloutPhase.CHECKING
    assert again.fleet.decision.new_record is not None
    assert (again.fleet.decision.new_record.state, again.fleet.decision.new_record.reason) == (
        RevisionState.CANDIDATE,
        "",
    )


def test_number_of_workers_asks_for_nothing() -> None:
    before = consumer_group(replicas=2)
    assert request_digest(consumer_group(replicas=5)) == request_digest(before)
    scaled = found(consumer_group(replicas=5), refused(before))
    assert make_plan(scaled, NOW, image=IMAGE).fleet.decision.phase is RolloutPhase.REFUSED


def test_refused_revision_that_is_wanted_after_another_one_is_asked_for_once() -> None:
    """The state says which one was wanted before; a status may be older, for its write is put off."""
    group = consumer_group()
    here = found(group, refused(group))
    shown = replace(here, body={**here.body, "status": {"revision": "another"}})
    assert make_plan(shown, NOW, image=IMAGE).fleet.decision.phase is RolloutPhase.REFUSED
    after = replace(shown, state=replace(here.state, fleet=replace(here.state.fleet, wanted="another")))
    first = make_plan(after, NOW, image=IMAGE)
    assert (first.fleet.decision.phase, first.state.fleet.wanted) == (RolloutPhase.CHECKING, hash_of(first))
    assert first.state.fleet.verdicts[hash_of(first)].request == "", "in the same write"
    second = make_plan(replace(after, state=first.state), NOW, image=IMAGE, memory=first.memory)
    assert second.fleet.decision.new_record is not None
    assert second.fleet.decision.new_record.state is RevisionState.CANDIDATE


def test_change_back_and_forth_is_remembered_while_the_plan_is_not_carried_out() -> None:
    """Of a paused group, or between an error of the API server and the next try."""
    group, other = consumer_group(), consumer_group(consumer={"maxPollRecords": 7})
    here = beside_another(found(group, refused(group)))
    first = make_plan(here, NOW, image=IMAGE)
    assert first.fleet.decision.phase is RolloutPhase.REFUSED
    away = make_plan(replace(here, group=other), NOW, image=IMAGE, memory=first.memory)
    assert away.state.fleet.wanted == hash_of(away) != hash_of(first)
    memory = away.memory
    for _ in range(2):
        back = make_plan(replace(here, state=away.state), NOW, image=IMAGE, memory=memory)
        assert (back.fleet.decision.phase, back.fleet.decision.new_record is None) == (RolloutPhase.CHECKING, False)
        memory = back.memory


def test_revision_wanted_last_is_remembered_while_the_spec_cannot_be_planned() -> None:
    group = consumer_group()
    here = beside_another(found(group, refused(group)))
    blocked = make_plan(replace(here, cluster=cluster_not_found("shop", "main")), NOW, image=IMAGE)
    assert blocked.fleet.wanted is None
    assert blocked.state.fleet == here.state.fleet


def hanging_check(revision: str) -> dict[str, Any]:
    worker = {"name": "worker", "ready": True, "state": {"running": {"startedAt": "2020-01-01T00:00:00Z"}}}
    metadata = {"name": "check", "uid": "c1", "annotations": {"consumerfleet.io/revision": revision}}
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Running", "containerStatuses": [worker]}}


@pytest.mark.parametrize(("paused", "refuses"), [(False, True), (True, False)])
def test_time_of_a_check_passes_from_plan_to_plan_unless_the_group_is_paused(paused: bool, refuses: bool) -> None:
    """However long ago the container started by its kubelet's clock: only reconciles count."""
    annotations = {"consumerfleet.io/paused": "true"} if paused else {}
    here = found(consumer_group(annotations=annotations), RevisionRecord(hash=""))
    here = replace(here, checks=(hanging_check(hash_of(make_plan(here, NOW, image=IMAGE))),))
    memory, phases = Memory(), []
    for step in range(80):
        plan = make_plan(here, NOW, image=IMAGE, memory=memory, tick=1000.0 + 5 * step)
        memory = plan.memory
        phases.append(plan.fleet.decision.phase)
    assert phases[59] is RolloutPhase.CHECKING
    assert (RolloutPhase.REFUSED in phases) is refuses
