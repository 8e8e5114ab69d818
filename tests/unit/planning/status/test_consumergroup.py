"""The status of a ConsumerGroup: what is shown, what stays, and that it is calm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.api.v1alpha1.conditions import CONSUMER_GROUP_CONDITIONS
from fleet_operator.planning.fleet.blocking import cluster_not_found
from fleet_operator.planning.fleet.rollout import RolloutPhase
from fleet_operator.planning.fleet.rollout_facts import PodFacts
from fleet_operator.planning.observation import (
    OffsetSample,
    StuckPartition,
    WorkerObservation,
)
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.status.consumergroup import invalid_spec_status
from fleet_operator.planning.status.facts import ConsumerGroupFacts
from tests.unit.planning.builders import (
    NOW,
    UID,
    consumer_group,
    facts,
    member,
    observation,
    observed_group,
    pods,
    ready_fleet,
    unreachable,
)
from tests.unit.planning.status.projecting import (
    FAILED_TOPIC,
    MISSING,
    brand_new,
    cause,
    condition,
    message,
    project,
)


def test_status_of_a_working_fleet_is_complete() -> None:
    status = project(facts(workers=(WorkerObservation(pod="orders-fleet-0", member_id="m0", generation=3),)))
    shown = {key: status[key] for key in status if key not in ("conditions", "members", "transitions")}
    assert shown == {
        "observedGeneration": 1,
        "image": "consumer-fleet-consumer:test",
        "imageSource": "Operator",
        "state": "Stable",
        "stateSince": "2027-01-15T07:59:59Z",
        "assignor": "range",
        "generation": 3,
        "coordinator": {
            "id": 1,
            "host": "broker-1:9092",
            "offsetsPartition": 31,
        },
        "memberCount": 2,
        "groupId": "orders",
        "replicas": 2,
        "readyReplicas": 2,
        "revision": "aaaaaaaaaa",
        "updatedReplicas": 2,
        "targetReplicas": 2,
        "selector": "app.kubernetes.io/component=worker,consumerfleet.io/group=orders",
        "partitions": 4,
        "lagApproximate": 0,
        "behindText": "0s",
        "limit": "None",
        "stuckPartitions": [],
        "observedAt": "2027-01-15T07:59:59Z",
    }
    assert status["members"][0] == {
        "id": "m0",
        "instanceId": "shop.orders.0a1b2c3d-0",
        "pod": "orders-fleet-0",
        "host": "/10.0.0.0",
        "partitions": [{"topic": "orders", "ranges": "0-1"}],
        "partitionCount": 2,
        "state": "Active",
    }
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "Ready": "True",
        "Progressing": "False",
        "Serving": "True",
        "Stalled": "False",
        "ClusterReachable": "True",
        "LagKnown": "True",
        "ScalingActive": "False",
        "ScalingLimited": "False",
        "Paused": "False",
        "Stuck": "False",
        "Degraded": "False",
        "TopicsReady": "True",
        "GroupShared": "False",
        "UpgradeAvailable": "False",
        "OffsetsKept": "Unknown",
        "RetriesKept": "True",
    }


def test_first_visit_has_all_conditions_and_guesses_nothing() -> None:
    status = project(brand_new())
    assert [c["type"] for c in status["conditions"]] == list(CONSUMER_GROUP_CONDITIONS)
    assert all(c["observedGeneration"] == 1 and c["reason"] and c["message"] for c in status["conditions"])
    assert (status["state"], status["behindText"]) == ("Unknown", "unknown")
    assert not {"lagApproximate", "partitions", "memberCount", "generation", "observedAt"} & status.keys(), (
        "unknown is not zero"
    )
    unknown = ("ClusterReachable", "LagKnown", "TopicsReady", "GroupShared", "Stuck", "Degraded")
    assert {condition(status, kind) for kind in unknown} == {("Unknown", "NotYetObserved")}
    assert condition(status, "Ready") == ("False", "CheckingRevision")


@pytest.mark.parametrize("given", [facts(), brand_new(), facts(observation=unreachable()), facts(fleet=None, pods=())])
def test_same_facts_give_the_same_status_however_often(given: ConsumerGroupFacts) -> None:
    """Calm: no ages, no clock. A quiet hour writes nothing."""
    once = project(given)
    assert project(given, once, NOW + 30) == once


def test_observer_that_hangs_is_found_out() -> None:
    """Its last observation stays good for a while; then what it saw counts as unknown, once and without an age."""
    before = project(facts())
    status = project(facts(now=NOW + 90), before, NOW + 90)
    assert condition(status, "ClusterReachable") == ("False", "ObservationStale")
    assert condition(status, "LagKnown") == ("False", "ObservationStale")
    assert "2027-01-15T07:59:59Z" in message(status, "ClusterReachable")
    assert (status["state"], status["lagApproximate"]) == ("Unknown", before["lagApproximate"])
    assert project(facts(now=NOW + 9000), status, NOW + 9000) == status


def test_later_poll_of_the_same_group_changes_nothing() -> None:
    once = project(facts())
    later = observed_group(observed_at=NOW + 500)
    assert project(facts(observation=observation(later)), once, NOW + 501) == once


def test_observed_at_moves_with_new_observations() -> None:
    once = project(facts())
    later = observed_group(observed_at=NOW + 500, end_offsets=dict.fromkeys([("orders", n) for n in range(4)], 1000))
    status = project(facts(observation=observation(later)), once, NOW + 501)
    assert (status["lagApproximate"], status["observedAt"]) == (2048, "2027-01-15T08:08:20Z")


def test_unreachable_cluster_keeps_the_last_observation() -> None:
    """Unknown is not zero: lag, members and partitions stay; the state is Unknown, and conditions say why."""
    before = project(facts())
    status = project(facts(observation=unreachable()), before, NOW + 60)
    kept = (
        "lagApproximate",
        "members",
        "memberCount",
        "partitions",
        "coordinator",
        "assignor",
        "observedAt",
    )
    assert {key: status[key] for key in kept} == {key: before[key] for key in kept}
    assert (status["state"], status["stateSince"]) == ("Unknown", "2027-01-15T08:01:00Z")
    assert condition(status, "ClusterReachable") == ("False", "BrokerUnreachable")
    assert condition(status, "LagKnown") == ("False", "BrokerUnreachable")
    assert condition(status, "Ready") == ("True", "FleetReady"), "the workers themselves are still ready"
    assert condition(status, "Degraded") == ("True", "BrokerUnreachable")


def test_group_that_alone_could_not_be_asked_keeps_its_values_too() -> None:
    before = project(facts())
    broken = observation(observed_group(error="CoordinatorNotAvailable", committed={}))
    status = project(facts(observation=broken), before, NOW + 30)
    assert (status["lagApproximate"], status["state"]) == (0, "Unknown")
    assert condition(status, "LagKnown") == ("False", "CoordinatorNotAvailable")
    assert condition(status, "ClusterReachable") == ("True", "Reached")


def test_poll_that_failed_changes_no_status_until_enough_have_failed() -> None:
    before = project(facts())
    lost = replace(unreachable(), unconfirmed=True)
    assert project(facts(observation=lost), before, NOW + 10) == before
    assert project(facts(observation=unreachable()), before, NOW + 60)["state"] == "Unknown"
    hanging = project(facts(observation=lost, now=NOW + 600), before, NOW + 600)
    assert condition(hanging, "ClusterReachable") == ("False", "ObservationStale")


def test_group_keeps_its_status_while_its_coordinator_moves() -> None:
    before = project(facts())
    moving = observation(observed_group(error="CoordinatorNotAvailable", failing_since=NOW, unconfirmed=True))
    assert project(facts(observation=moving), before, NOW + 10) == before


def test_partition_without_an_answer_leaves_the_last_known_lag() -> None:
    before = project(facts())
    group = observed_group(end_offsets={("orders", 0): 999})
    status = project(facts(observation=observation(group)), before, NOW)
    assert status["lagApproximate"] == 0
    assert condition(status, "LagKnown") == ("False", "PartitionsUnknown")
    assert "orders-1, orders-2, orders-3" in message(status, "LagKnown")


@pytest.mark.parametrize(
    ("why", "changes", "reason"),
    [
        (
            "no KafkaCluster",
            {"cluster": cluster_not_found("shop", "main"), "rollout": cause(RolloutPhase.HELD, "ClusterNotFound")},
            "ClusterNotFound",
        ),
        ("group id taken", {"rollout": cause(RolloutPhase.HELD, "GroupIdTaken")}, "GroupIdTaken"),
        ("no handler source", {"rollout": cause(RolloutPhase.HELD, "HandlerSourceNotFound")}, "HandlerSourceNotFound"),
        ("quota", {"refusal": Problem("RefusedByApiServer", "quota")}, "RefusedByApiServer"),
        ("broker away", {"observation": unreachable()}, "BrokerUnreachable"),
        ("wrong password", {"observation": unreachable("AuthenticationFailed")}, "AuthenticationFailed"),
        ("no Secret", {"observation": unreachable("SecretNotFound")}, "SecretNotFound"),
        ("no topic", {"observation": observation(topics={"orders": MISSING} | FAILED_TOPIC)}, "TopicNotFound"),
        ("bad handler", {"rollout": cause(RolloutPhase.REFUSED, "HandlerImportFailed")}, "HandlerImportFailed"),
        ("check meets no topic", {"rollout": cause(RolloutPhase.CHECK_FAILED, "TopicNotFound")}, "TopicNotFound"),
        (
            "no image",
            {"pods": (PodFacts(name="orders-fleet-0", revision="a", ordinal=0, ready=False, reason="ErrImagePull"),)},
            "WorkersFailing",
        ),
        (
            "a worker complains",
            {"workers": (WorkerObservation(pod="orders-fleet-0", error_reason="FencedInstance", error_message="m"),)},
            "WorkerReportsError",
        ),
    ],
)
def test_root_cause_is_reported_when_the_fleet_does_not_work(why: str, changes: dict[str, Any], reason: str) -> None:
    status = project(brand_new(**({"observation": observation()} | changes)))
    assert condition(status, "Ready") == ("False", reason), why
    assert condition(status, "Degraded")[0] == "True", why
    assert message(status, "Ready")


def test_spec_problems_come_before_their_consequences() -> None:
    """Without a KafkaCluster the check cannot run and the topics are unknown: only the first can be corrected."""
    given = brand_new(
        cluster=cluster_not_found("shop", "main"),
        rollout=cause(RolloutPhase.HELD, "ClusterNotFound"),
        observation=unreachable(),
    )
    assert condition(project(given), "Ready") == ("False", "ClusterNotFound")


def test_unreachable_cluster_comes_before_the_checks_message() -> None:
    given = brand_new(observation=unreachable(), rollout=cause(RolloutPhase.CHECK_FAILED, "TopicNotFound"))
    assert condition(project(given), "Ready") == ("False", "BrokerUnreachable")


def test_ready_needs_the_group_stable_once_with_all_workers() -> None:
    rebalancing = facts(observation=observation(observed_group(state="PreparingRebalance")))
    assert condition(project(rebalancing), "Ready") == ("False", "WaitingForGroup")
    one = facts(observation=observation(observed_group(members=(member(0),))))
    assert condition(project(one), "Ready") == ("False", "WaitingForGroup")
    assert condition(project(facts()), "Ready") == ("True", "FleetReady")


def test_ready_does_not_flip_in_a_rebalance() -> None:
    before = project(facts())
    for state in ("PreparingRebalance", "CompletingRebalance", "Empty"):
        status = project(facts(observation=observation(observed_group(state=state))), before, NOW + 5)
        assert condition(status, "Ready") == ("True", "FleetReady")
        assert status["state"] == state


def test_ready_ends_when_a_worker_is_missing() -> None:
    before = project(facts())
    status = project(facts(fleet=ready_fleet(2, ready=1)), before, NOW + 5)
    assert condition(status, "Ready") == ("False", "WaitingForReplicas")
    assert message(status, "Ready") == "1 of 2 workers are ready"


def test_growing_fleet_is_ready_again_when_all_have_joined() -> None:
    before = project(facts())
    growing = facts(wanted_replicas=3, fleet=ready_fleet(3, ready=2))
    during = project(growing, before, NOW + 5)
    assert condition(during, "Ready") == ("False", "WaitingForReplicas")
    all_ready = facts(wanted_replicas=3, fleet=ready_fleet(3))
    assert condition(project(all_ready, during), "Ready") == ("False", "WaitingForGroup")


def test_suspended_and_paused() -> None:
    suspended = facts(group=consumer_group(suspend=True), wanted_replicas=0, fleet=ready_fleet(0))
    status = project(suspended)
    assert condition(status, "Ready") == ("False", "Suspended")
    assert condition(status, "Paused") == ("True", "Suspended")
    assert (status["limit"], status["targetReplicas"]) == ("Suspended", 0)
    paused = facts(group=consumer_group(annotations={"consumerfleet.io/paused": "true"}))
    assert condition(project(paused), "Paused") == ("True", "PausedByAnnotation")


def test_fleet_of_no_workers_is_ready() -> None:
    empty = facts(group=consumer_group(replicas=0), wanted_replicas=0, fleet=ready_fleet(0), pods=())
    assert condition(project(empty), "Ready") == ("True", "FleetReady")


def test_more_workers_than_partitions_are_reported() -> None:
    crowded = facts(wanted_replicas=6, fleet=ready_fleet(6))
    status = project(crowded)
    assert condition(status, "ScalingLimited") == ("True", "MoreWorkersThanPartitions")
    assert "2 without work" in message(status, "ScalingLimited")
    assert status["limit"] == "Partitions"


def test_stuck_partitions_stay_while_their_worker_cannot_be_asked() -> None:
    why = {"reason": "WriteFailed", "message": "topic orders-done is not there"}
    stuck = StuckPartition(topic="orders", partition=2, offset=7, since=NOW - 90, **why)
    telling = WorkerObservation(pod="orders-fleet-1", stuck=(stuck,))
    before = project(facts(workers=(telling,)))
    assert condition(before, "Stuck") == condition(before, "Degraded") == ("True", "PartitionStuck")
    oldest = "the oldest in pod orders-fleet-1 since 2027-01-15T07:58:30Z"
    cause_text = "WriteFailed: topic orders-done is not there"
    said = f"records that workers cannot complete: orders-2:7; {oldest}: {cause_text}"
    assert message(before, "Stuck") == message(before, "Degraded") == said
    silent = project(facts(workers=()), before, NOW + 5)
    assert silent["stuckPartitions"] == before["stuckPartitions"]
    fixed = project(facts(workers=(replace(telling, stuck=()),)), silent, NOW + 10)
    assert (fixed["stuckPartitions"], condition(fixed, "Stuck")) == ([], ("False", "AllPartitionsMove"))
    gone = project(facts(pods=pods(1)), before, NOW + 5)
    assert gone["stuckPartitions"] == []


def test_time_behind_comes_from_the_history_of_end_offsets() -> None:
    group = observed_group(
        end_offsets=dict.fromkeys([("orders", n) for n in range(4)], 200),
        end_history={("orders", n): (OffsetSample(NOW - 61, 0), OffsetSample(NOW - 1, 200)) for n in range(4)},
    )
    status = project(facts(observation=observation(group)))
    assert (status["lagApproximate"], status["behindText"]) == (256, "~30s")


@pytest.mark.parametrize(
    ("worker", "reason"),
    [
        (
            WorkerObservation(
                pod="orders-fleet-0",
                stuck=(StuckPartition(topic="orders", partition=2, offset=7, since=NOW, reason="OutputNotListed"),),
            ),
            "OutputNotListed",
        ),
        (
            WorkerObservation(
                pod="orders-fleet-0",
                error_reason="HandlerMisconfigured",
                error_message="http://x answers 404 Not Found",
            ),
            "HandlerMisconfigured",
        ),
    ],
)
def test_error_of_the_deployment_is_the_reason_of_ready_and_degraded(worker: WorkerObservation, reason: str) -> None:
    """The fleet was ready: its pods are, and yet it does not do its work."""
    before = project(facts())
    assert condition(before, "Ready") == ("True", "FleetReady")
    held = project(facts(workers=(worker,)), before)
    assert condition(held, "Ready") == ("False", reason)
    assert condition(held, "Degraded") == ("True", reason)
    corrected = project(facts(workers=(WorkerObservation(pod="orders-fleet-0"),)), held)
    assert condition(corrected, "Ready") == ("True", "FleetReady")


def test_failed_records_are_shown_when_known() -> None:
    assert "retry" not in project(facts())
    status = project(facts(observation=observation(observed_group(failed_records=8255))))
    assert status["retry"] == {"failed": 8300}
    assert project(facts(observation=unreachable()), status)["retry"] == {"failed": 8300}


def test_unreadable_spec_keeps_the_rest_of_the_status() -> None:
    before = project(facts())
    status = invalid_spec_status({"generation": 2, "uid": UID}, Problem("SpecInvalid", "spec.topics: ..."), before, NOW)
    assert condition(status, "Ready") == ("False", "SpecInvalid")
    assert condition(status, "LagKnown") == ("Unknown", "SpecInvalid")
    assert (status["lagApproximate"], status["members"], status["observedGeneration"]) == (0, before["members"], 2)
    assert {c["type"] for c in status["conditions"]} == set(CONSUMER_GROUP_CONDITIONS)
    assert (
        invalid_spec_status({"generation": 2}, Problem("SpecInvalid", "spec.topics: ..."), status, NOW + 99) == status
    )


@pytest.mark.parametrize(
    ("changes", "reason", "named"),
    [
        ({"end_offsets": {("orders", 0): 999}}, "PartitionsUnknown", "orders-1"),
        ({"beyond_end": frozenset({("orders", 2)})}, "CommitBeyondEnd", "orders-2"),
        ({"committed": {("orders", 0): 100}}, "NotCommittedYet", "orders-3"),
    ],
)
def test_unknown_lag_has_its_reason(changes: dict[str, Any], reason: str, named: str) -> None:
    latest = consumer_group(consumer={"autoOffsetReset": "Latest"})
    before = project(facts(group=latest))
    assert condition(before, "LagKnown")[0] == "True"
    status = project(facts(group=latest, observation=observation(observed_group(**changes))), before, NOW)
    assert condition(status, "LagKnown") == ("False", reason)
    assert named in message(status, "LagKnown")
    assert status["lagApproximate"] == before["lagApproximate"], "the last known one"


def test_missing_commit_under_the_policy_none_is_what_workers_stop_at() -> None:
    """No worker commits there, so waiting for one would be in vain."""
    group = consumer_group(consumer={"autoOffsetReset": "None"})
    seen = observation(observed_group(committed={("orders", 0): 100}))
    status = project(facts(group=group, observation=seen))
    assert condition(status, "LagKnown") == ("False", "NotCommittedYet")
    told = message(status, "LagKnown")
    assert "a worker commits this offset when it starts" not in told
    assert "orders-1, orders-2, orders-3" in told
    assert "autoOffsetReset is None" in told
    assert "OffsetReset" in told
