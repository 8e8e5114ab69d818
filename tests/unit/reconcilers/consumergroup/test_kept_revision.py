"""Revisions under another version of the operator, which renders the same spec otherwise."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.api.v1alpha1 import ConsumerGroup
from fleet_operator.planning.fleet import manifests, pod_template
from fleet_operator.planning.fleet.blocking import cluster_not_found
from fleet_operator.planning.fleet.parts import MAIN, PartPlan
from fleet_operator.planning.fleet.rollout import RolloutPhase
from fleet_operator.planning.fleet.rollout_facts import RevisionRecord
from fleet_operator.planning.state.group import RevisionState
from fleet_operator.planning.trimming import trim_stateful_set
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.plan import Plan, make_plan
from tests.unit.planning.builders import IMAGE, NOW, consumer_group, kafka_cluster, remembered, with_worker
from tests.unit.planning.retry.test_published_policies import OLD
from tests.unit.reconcilers.consumergroup.test_decide import gathered

PATIENT = {"rollout": {"progressDeadlineSeconds": 3600}}
SKIPPED = {"offsets": {"skip": [{"topic": "orders", "partition": 0, "offset": 5}]}}
ANOTHER_FORM = {"requests": {"cpu": "75m"}}


def plan_of(found: Gathered, image: str = IMAGE) -> Plan:
    return make_plan(found, NOW, image=image)


def hash_of(plan: Plan) -> str:
    assert plan.fleet.wanted is not None
    return plan.fleet.wanted.hash


def resources_of(plan: Plan) -> Any:
    assert plan.fleet.wanted is not None
    return plan.fleet.wanted.pod_template["spec"]["containers"][0]["resources"]


def alone(group: ConsumerGroup, **changes: Any) -> Gathered:
    return gathered(cluster=kafka_cluster(), group=group, policy=None, **changes)


def settled(group: ConsumerGroup, state: RevisionState = RevisionState.GOOD) -> Gathered:
    """A fleet that has reached its revision, as the API server and the caches have it."""
    plan = plan_of(alone(group))
    assert plan.fleet.wanted is not None
    verdict = RevisionRecord(hash=plan.fleet.wanted.hash, state=state, since=NOW - 60, checked=True)
    record = manifests.revision_config_map(group, plan.fleet.wanted)
    body = plan.fleet.stateful_set(alone(group), PartPlan(part=MAIN, target=plan.fleet.wanted.hash, replicas=1))
    fields = {"namespace": "shop", "uid": "s", "resourceVersion": "1", "generation": 1}
    body = {**body, "metadata": {**body["metadata"], **fields}, "status": {}}
    pinned = group.model_copy(update={"status": {"image": plan.upgrade.image.name}})
    return alone(pinned, state=remembered(verdict), stateful_set=trim_stateful_set(body), config_maps=(record,))


def change_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_template, "DEFAULT_RESOURCES", ANOTHER_FORM)


def test_pods_stay_under_an_operator_that_renders_them_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settled(consumer_group())
    first = plan_of(before)
    change_version(monkeypatch)
    assert hash_of(plan_of(alone(consumer_group()))) != hash_of(first), "a new group gets the new form"
    for scaled in ({}, {"replicas": 7}, {"suspend": True}, {"deletion": {"group": "Delete"}}, PATIENT, SKIPPED):
        group = consumer_group(**scaled).model_copy(update={"status": before.group.status})
        plan = plan_of(replace(before, group=group), image="worker:of-another-version")
        assert hash_of(plan) == hash_of(first)
        assert plan.fleet.templates == first.fleet.templates
        assert plan.fleet.decision.prune == ()
        assert plan.fleet.decision.phase in (RolloutPhase.SETTLED, RolloutPhase.HELD)
        assert plan.facts.kept


def test_next_change_takes_the_new_form_along(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settled(consumer_group())
    first = plan_of(before)
    change_version(monkeypatch)
    for changed in (
        {"handler": {"python": {"callable": "shop:other"}}},
        {"image": "worker:2"},
        {"imagePullPolicy": "Always"},
        {"rollout": {"drainSeconds": 99}},
        {"template": with_worker(env=[{"name": "A", "value": "1"}])},
        {"template": {"metadata": {"annotations": {"upgrade": "1"}}}},
    ):
        group = consumer_group(**changed).model_copy(update={"status": before.group.status})
        plan = plan_of(replace(before, group=group))
        assert hash_of(plan) != hash_of(first)
        assert resources_of(plan) == ANOTHER_FORM
    retries = consumer_group(retry={"policyRef": {"name": "standard"}})
    assert resources_of(plan_of(replace(before, group=retries, policy=OLD))) == ANOTHER_FORM
    source = plan_of(replace(before, handler_files={"shop.py": ""}))
    elsewhere = plan_of(replace(before, cluster=kafka_cluster(bootstrapServers=["other:9092"])))
    assert resources_of(source) == resources_of(elsewhere) == ANOTHER_FORM


def test_changed_interval_of_polls_keeps_the_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settled(consumer_group())
    change_version(monkeypatch)
    seldom = kafka_cluster(observeIntervalSeconds=60)
    assert hash_of(plan_of(replace(before, cluster=seldom))) == hash_of(plan_of(before))


def test_refused_revision_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version may be what it takes."""
    before = settled(consumer_group(), RevisionState.REFUSED)
    change_version(monkeypatch)
    assert resources_of(plan_of(before)) == ANOTHER_FORM


def test_record_that_is_not_the_one_that_runs_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settled(consumer_group())
    change_version(monkeypatch)
    (record,) = before.config_maps
    other_template = {**record, "data": {**record["data"], "pod-template.json": '{"spec": {"hostNetwork": true}}'}}
    unreadable = {**record, "data": {**record["data"], "worker.json": "{"}}
    renamed = {**record, "metadata": {**record["metadata"], "name": "orders-another"}}
    for config_maps in ((), (other_template,), (unreadable,), (renamed,)):
        plan = plan_of(replace(before, config_maps=config_maps))
        assert resources_of(plan) == ANOTHER_FORM, config_maps


def test_stateful_set_without_the_digest_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settled(consumer_group())
    change_version(monkeypatch)
    main = before.parts[MAIN]
    body = copy.deepcopy(main.body)
    assert body is not None
    del body["metadata"]["annotations"]["consumerfleet.io/revision-inputs"]
    plan = plan_of(replace(before, parts={**before.parts, MAIN: replace(main, body=body)}))
    assert resources_of(plan) == ANOTHER_FORM


def test_same_version_keeps_nothing_that_it_would_not_plan_itself() -> None:
    plan = plan_of(settled(consumer_group()))
    assert plan.fleet.wanted is not None
    assert not plan.fleet.wanted.kept


def test_digest_of_inputs_survives_while_the_spec_cannot_be_planned() -> None:
    before = settled(consumer_group())
    blocked = plan_of(replace(before, cluster=cluster_not_found("shop", "main")))
    assert blocked.fleet.wanted is None
    (main,) = (part for part in blocked.parts if part.part is MAIN)
    body = blocked.fleet.stateful_set(before, main)
    digests = [
        each["metadata"]["annotations"]["consumerfleet.io/revision-inputs"]
        for each in (body, before.parts[MAIN].body or {})
    ]
    assert digests[0] == digests[1]
