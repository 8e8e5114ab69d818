"""Revisions whose connection the operator may not use, or has not used yet: nothing begins, and nothing stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from fleet_operator.api.v1alpha1 import KafkaCluster
from fleet_operator.api.v1alpha1.kafkacluster import ClusterIdentity
from fleet_operator.planning.fleet import manifests
from fleet_operator.planning.fleet.parts import MAIN
from fleet_operator.planning.fleet.revision import Revision, with_known
from fleet_operator.planning.fleet.rollout_facts import RevisionRecord
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.state.group import RevisionState
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.plan import Plan, make_plan
from tests.unit.planning.builders import IMAGE, NOW, consumer_group, kafka_cluster, observation, remembered, unreachable
from tests.unit.reconcilers.consumergroup.test_decide import gathered

ID: Final = {"clusterId": "cluster-a"}
STOLEN: Final = {
    "mechanism": "PLAIN",
    "username": "x",
    "allowWithoutTls": True,
    "secretRef": {"name": "payments-db", "passwordKey": "root-password"},
}
GROUP: Final = consumer_group(replicas=2)
SEEN: Final = observation()
UNLABELLED: Final = replace(unreachable("SecretNotLabelled", "label it"), identified=False)
EDITED: Final = replace(SEEN, current=False, identified=False)


def edited() -> KafkaCluster:
    """The KafkaCluster with another address, and somebody's Secret."""
    return kafka_cluster(status=ID, bootstrapServers=["evil:9092"], sasl=STOLEN)


def planned(found: Gathered) -> Plan:
    return make_plan(found, NOW, image=IMAGE)


def first(**changes: Any) -> Gathered:
    """A group without workers yet."""
    return gathered(**({"group": GROUP, "policy": None, "cluster": kafka_cluster(status=ID)} | changes))


def fleet(*, replicas: int = 2, candidate: Revision | None = None, **changes: Any) -> Gathered:
    """A fleet of the group at a good revision; `candidate` has passed its check."""
    good = planned(first(observation=SEEN)).fleet.wanted
    assert good is not None
    templates = {each.hash: each.pod_template for each in (good, candidate) if each is not None}
    stateful_set = manifests.stateful_set(GROUP, revision=good.hash, pod_template=good.pod_template, replicas=replicas)
    stateful_set["status"] = {"observedGeneration": 1, "replicas": replicas}
    records = [RevisionRecord(hash=good.hash, state=RevisionState.GOOD, since=NOW - 60, checked=True)]
    config_maps = [manifests.revision_config_map(GROUP, good)]
    if candidate is not None:
        records.append(RevisionRecord(hash=candidate.hash, since=NOW - 1, checked=True))
        config_maps.append(manifests.revision_config_map(GROUP, candidate))
    known = {"state": remembered(*records), "config_maps": tuple(config_maps)}
    return first(stateful_set=with_known(stateful_set, templates), **known, **changes)


def candidate_of(cluster: KafkaCluster) -> Revision:
    revision = planned(first(cluster=cluster, observation=SEEN)).fleet.wanted
    assert revision is not None
    return revision


def main_part(plan: Plan) -> tuple[str | None, int]:
    (part,) = [part for part in plan.parts if part.part is MAIN]
    return part.target, part.replicas


@pytest.mark.parametrize("reason", ["SecretNotLabelled", "SecretForbidden", "SecretNotFound", "SecretIncomplete"])
def test_workers_mount_no_secret_that_the_operator_was_refused(reason: str) -> None:
    refused = replace(UNLABELLED, reason=reason)
    plan = planned(first(cluster=edited(), observation=refused))
    assert plan.fleet.wanted is None
    assert (plan.fleet.decision.run_check, plan.fleet.decision.target) == (False, None)
    assert plan.fleet.decision.cause is not None
    assert plan.fleet.decision.cause.reason == reason


def test_running_fleet_stays_next_to_a_refused_secret() -> None:
    found = fleet(observation=UNLABELLED, candidate=candidate_of(edited()), cluster=edited())
    plan = planned(found)
    fleet_facts = found.parts[MAIN].fleet
    assert fleet_facts is not None
    assert main_part(plan) == (fleet_facts.revision, 2)


@pytest.mark.parametrize("seen", [None, EDITED])
def test_edited_cluster_is_not_used_before_the_operator_has_checked_it(seen: ClusterObservation | None) -> None:
    """The edit must not win against its own reconcile, in which the Secrets are read."""
    plan = planned(first(cluster=edited(), observation=seen))
    assert (plan.fleet.decision.run_check, plan.fleet.decision.target) == (False, None)
    assert plan.fleet.decision.requeue_after is not None
    found = fleet(observation=seen, candidate=candidate_of(edited()), cluster=edited())
    fleet_facts = found.parts[MAIN].fleet
    assert fleet_facts is not None
    assert main_part(planned(found)) == (fleet_facts.revision, 2)


@pytest.mark.parametrize("seen", [SEEN, unreachable(), replace(unreachable(), cluster_id=None, last_good_at=None)])
def test_first_group_begins_after_the_first_poll_whatever_came_of_it(seen: ClusterObservation) -> None:
    assert planned(first(observation=seen)).fleet.decision.run_check


@pytest.mark.parametrize("seen", [None, SEEN, unreachable(), EDITED, replace(unreachable(), cluster_id=None)])
def test_running_revision_goes_on_whatever_is_known_of_its_cluster(seen: ClusterObservation | None) -> None:
    found = fleet(observation=seen)
    plan = planned(found)
    assert plan.fleet.wanted is not None
    assert main_part(plan) == (plan.fleet.wanted.hash, 2)
    assert plan.fleet.decision.waits is None


@pytest.mark.parametrize(("identified", "applied"), [(False, False), (True, True)])
def test_fleet_moves_to_another_connection_only_when_the_cluster_id_was_seen_with_it(
    identified: bool, applied: bool
) -> None:
    """A refused or silent observer keeps the id of the addresses before."""
    moved = kafka_cluster(status=ID, bootstrapServers=["kafka-b:9092"])
    candidate = candidate_of(moved)
    found = fleet(cluster=moved, candidate=candidate, observation=replace(unreachable(), identified=identified))
    plan = planned(found)
    assert (main_part(plan)[0] == candidate.hash) is applied
    assert main_part(plan)[1] == 2


@pytest.mark.parametrize("seen", [None, replace(unreachable("AuthenticationFailed"), cluster_id=None), unreachable()])
def test_fleet_stopped_on_another_cluster_stays_stopped_until_an_id_is_seen(seen: ClusterObservation | None) -> None:
    """After a restart of the operator, or with an observer of renewed credentials, nobody knows an id at first."""
    stopped = kafka_cluster(identity=ClusterIdentity(cluster_id="cluster-b", other="another cluster"))
    found = fleet(replicas=0, cluster=stopped, observation=seen)
    assert found.stopped
    assert main_part(planned(found))[1] == 0
    back = fleet(replicas=0, cluster=stopped, observation=replace(SEEN, cluster_id="cluster-b"))
    assert main_part(planned(back))[1] == 2
