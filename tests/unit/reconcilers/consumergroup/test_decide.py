"""Decisions of a reconcile in which more than one planner has a say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.clients.kinds import JsonObject
from fleet_operator.planning.fleet import manifests
from fleet_operator.planning.fleet.blocking import cluster_not_found
from fleet_operator.planning.fleet.parts import MAIN, RETRY, read_part
from fleet_operator.planning.fleet.revision import Revision, with_known
from fleet_operator.planning.fleet.rollout_facts import RevisionRecord
from fleet_operator.planning.labels import RETRY_VOLUME
from fleet_operator.planning.observation import RetryObservation, WorkerObservation
from fleet_operator.planning.retry.fleet import has_retries
from fleet_operator.planning.retry.scaling import RetryMemory
from fleet_operator.planning.state.group import RevisionState
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.plan import make_plan
from fleet_operator.reconcilers.consumergroup.retries import breaker_open
from fleet_operator.reconcilers.consumergroup.session import Memory
from tests.unit.planning.builders import IMAGE, NOW, consumer_group, kafka_cluster, remembered
from tests.unit.planning.retry.test_plan import GROUP, TOLD, cluster, flow
from tests.unit.planning.retry.test_published_policies import DAY, OLD

WITH_RETRIES = {"volumes": [{"name": RETRY_VOLUME}]}


def gathered(**changes: Any) -> Gathered:
    """A new group with retries whose topics are as they should be; `stateful_set`, `workers` and `retry_workers` make
    its parts."""
    main = read_part(MAIN, changes.pop("stateful_set", None), changes.pop("workers", ()), NOW)
    retry = read_part(RETRY, None, changes.pop("retry_workers", ()), NOW)
    found = Gathered(
        body={"metadata": {"name": "orders", "namespace": "shop"}, "spec": {"clusterRef": {"name": "main"}}},
        group=GROUP,
        cluster=kafka_cluster(status={"clusterId": "cluster-a"}),
        observation=cluster(flow(found_delays=())),
        handler_files=None,
        older=None,
        parts={MAIN: main, RETRY: retry},
        checks=(),
        config_maps=(),
        worker_reports=(),
        policy=OLD,
    )
    return replace(found, **changes)


def test_another_cluster_is_not_assumed_to_have_the_groups_topics() -> None:
    plan = make_plan(gathered(), NOW, image=IMAGE)
    assert plan.retry is not None
    assert plan.retry.published is not None
    other = gathered(cluster=kafka_cluster(status={"clusterId": "cluster-b"}))
    plan = make_plan(other, NOW, image=IMAGE)
    assert plan.retry is not None
    assert (plan.retry.published, plan.retry.scale.replicas) == (None, 0)
    assert (gathered().on_its_cluster, other.on_its_cluster) == (True, False)


def test_object_of_another_cluster_speaks_for_no_kafka_group() -> None:
    """Its workers may not run there, and what it asks for is not what the group's owner there is scaled by."""
    mine, other = gathered(), gathered(cluster=kafka_cluster(status={"clusterId": "cluster-b"}))
    assert not make_plan(mine, NOW, image=IMAGE).subscription.waits
    assert make_plan(other, NOW, image=IMAGE).subscription.waits


def running(name: str, **spec: Any) -> JsonObject:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z"}
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": [ready]}}


@pytest.mark.parametrize(
    ("worker_reports", "known"),
    [
        ((), None),
        ((WorkerObservation(pod="orders-0"),), None),
        ((WorkerObservation(pod="orders-0"), WorkerObservation(pod="orders-retry-0")), False),
        ((WorkerObservation(pod="orders-0", breaker="Open"),), True),
        ((WorkerObservation(pod="orders-retry-0", breaker="HalfOpen"),), True),
    ],
)
def test_breaker_is_closed_only_when_every_worker_reports_it_closed(
    worker_reports: tuple[WorkerObservation, ...], known: bool | None
) -> None:
    found = gathered(
        workers=(running("orders-0", **WITH_RETRIES), running("orders-of-before")),
        retry_workers=(running("orders-retry-0"),),
        worker_reports=worker_reports,
    )
    assert breaker_open(found) is known


def test_forged_record_is_never_rolled_back_to() -> None:
    """Whoever may write ConfigMaps puts a template of his own under a revision, even a good one of which the state
    remembers more than its hash."""
    group = consumer_group()
    bare = {"cluster": kafka_cluster(), "group": group, "policy": None}
    wanted = make_plan(gathered(**bare), NOW, image=IMAGE).fleet.wanted
    assert wanted is not None
    good = RevisionRecord(hash=wanted.hash, state=RevisionState.GOOD, since=NOW - 60, checked=True)
    ours = manifests.revision_config_map(group, wanted)
    evil = replace(wanted, hash="f" * 10, pod_template={"spec": {"hostNetwork": True}})
    forged = manifests.revision_config_map(group, evil)
    renamed = {**manifests.revision_config_map(group, wanted)}
    renamed["metadata"] = {**renamed["metadata"], "name": "orders-looks-like-it"}
    fleet = manifests.stateful_set(group, revision=wanted.hash, pod_template=wanted.pod_template, replicas=2)
    fleet = with_known(fleet, {wanted.hash: wanted.pod_template})
    forever = RevisionRecord(hash=evil.hash, state=RevisionState.GOOD, since=4e9, checked=True)
    state = remembered(good, forever)
    found = gathered(**bare, state=state, stateful_set=fleet, config_maps=(ours, forged, renamed))
    settled = make_plan(found, NOW, image=IMAGE)
    assert set(settled.fleet.records) == {wanted.hash}
    assert settled.fleet.decision.prune == (evil.hash,)
    blocked = make_plan(replace(found, cluster=cluster_not_found("shop", "main")), NOW, image=IMAGE)
    assert blocked.fleet.decision.target == wanted.hash
    assert set(blocked.fleet.templates) == {wanted.hash}


def revision_of(**changes: Any) -> Revision:
    found = make_plan(gathered(**changes), NOW, image=IMAGE).fleet.wanted
    assert found is not None
    return found


def ending(retry: RetryObservation) -> Gathered:
    """A group without retries whose retry StatefulSet somebody deleted. Of its three good revisions only the oldest
    knows retries, so that no rollout needs it."""
    bare = consumer_group()
    old, newer = revision_of(), revision_of(group=consumer_group(consumer={"maxPollIntervalSeconds": 100}), policy=None)
    wanted = revision_of(group=bare, policy=None)
    known = (old, newer, wanted)
    good = [
        RevisionRecord(hash=each.hash, state=RevisionState.GOOD, since=NOW - 90 + age, checked=True)
        for age, each in enumerate(known)
    ]
    fleet = manifests.stateful_set(bare, revision=wanted.hash, pod_template=wanted.pod_template, replicas=2)
    fleet["status"] = {"observedGeneration": 1}
    return gathered(
        group=bare,
        policy=None,
        stateful_set=with_known(fleet, {each.hash: each.pod_template for each in known}),
        config_maps=tuple(manifests.revision_config_map(bare, each) for each in known),
        state=remembered(*good),
        observation=cluster(retry),
        published=replace(TOLD, ending_since=NOW - DAY),
    )


def test_retry_workers_that_are_gone_are_made_again_while_records_wait_at_the_end_of_retries() -> None:
    found = ending(flow(waiting=5, due_lag=5, oldest_due_at=NOW - 100))
    plan = make_plan(found, NOW, image=IMAGE)
    made = next(part for part in plan.parts if part.part is RETRY)
    assert made.target in plan.fleet.templates
    assert has_retries(plan.fleet.templates[made.target])
    assert (made.replicas, made.remove) == (1, False)
    assert made.target not in plan.fleet.decision.prune
    body = plan.fleet.stateful_set(found, made)
    assert body["metadata"]["name"] == "orders-fleet-retry"


@pytest.mark.parametrize(
    ("retry", "kept"),
    [(flow(waiting=None, error="NotObserved"), True), (flow(waiting=5, due_lag=0), True), (flow(), False)],
)
def test_record_of_the_last_retry_revision_stays_until_nothing_waits(retry: RetryObservation, kept: bool) -> None:
    found = ending(retry)
    assert len(found.config_maps) == 3
    memory = Memory(retry=RetryMemory(drained_at=NOW - 60))
    plan = make_plan(found, NOW, image=IMAGE, memory=memory)
    last = next(name for name, template in plan.fleet.templates.items() if has_retries(template))
    assert (last not in plan.fleet.decision.prune) is kept
    waits = bool(retry.waiting)
    assert [part.remove for part in plan.parts if part.part is RETRY] == ([False] if waits else [] if kept else [True])


@pytest.mark.parametrize(
    ("changes", "feeds"),
    [
        ({}, False),
        ({"redrives": ("fixed",)}, True),
        ({"workers": ({"spec": {}},)}, False),
        ({"workers": ({"spec": WITH_RETRIES},)}, True),
        ({"stateful_set": {"metadata": {}, "spec": {"template": {"spec": WITH_RETRIES}}}}, True),
    ],
)
def test_possible_writers_of_retry_topics(changes: dict[str, JsonObject], feeds: bool) -> None:
    """Pods of a revision that knows retries, and whoever would make such pods, as well as Redrives."""
    assert gathered(**changes).feeds_retries is feeds
