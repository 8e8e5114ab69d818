"""Standing of a group in upgrades by waves, as its object shows it."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.api.v1alpha1 import ConsumerGroup
from fleet_operator.planning.fleet.image import WorkerImage
from fleet_operator.planning.fleet.rollout import RolloutDecision, RolloutPhase
from fleet_operator.planning.fleet.waves import (
    NO_TURN,
    Phase,
    Standing,
    Turn,
    Upgrade,
    advance,
    begin_upgrade,
    read_standing,
    read_upgrade,
)
from fleet_operator.planning.problem import Problem
from tests.unit.planning.builders import consumer_group, facts, ready_fleet, settled
from tests.unit.planning.status.projecting import cause, condition, message, project

CLUSTER = ("shop", "main")
NEW = "worker:2"
ROLLING = Upgrade(Phase.ROLLING, NEW)


def condition_of(kind: str, status: str, reason: str, generation: int = 1) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "observedGeneration": generation}


def whole(**changes: Any) -> dict[str, Any]:
    """The body of a group that is whole."""
    conditions = [
        condition_of("Progressing", "False", "Complete"),
        condition_of("Serving", "True", "NewestRevision"),
        condition_of("ClusterReachable", "True", "Reached"),
    ]
    status = {"image": "worker:1", "imageSource": "Operator", "connection": "c", "conditions": conditions}
    metadata = {"name": "orders", "namespace": "shop", "generation": 1} | changes.pop("metadata", {})
    return {"metadata": metadata, "spec": changes.pop("spec", {}), "status": status | changes}


def standing(body: dict[str, Any]) -> Standing:
    return read_standing(body, CLUSTER)


def test_whole_group_that_is_pinned_may_go_over() -> None:
    found = standing(whole())
    assert found == Standing(cluster=CLUSTER, whole=True, image="worker:1", connection="c")
    assert (found.waits_for_image(NEW), found.waits_for_image("worker:1")) == (True, False)
    assert (found.waits_for_connection("d"), found.waits_for_connection("c")) == (True, False)
    assert not found.waits_for_connection(None)


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": {"suspend": True}},
        {"spec": {"replicas": 0}},
        {"spec": {"image": "shop:1"}},
        {"metadata": {"annotations": {"consumerfleet.io/paused": "true"}}},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"generation": 2}},
        {"imageSource": "Spec"},
        {"image": None},
        {"image": 7},
        {"conditions": []},
    ],
)
def test_group_at_rest_of_its_own_image_or_in_a_rollout_does_not(changes: dict[str, Any]) -> None:
    found = standing(whole(**changes))
    assert not found.waits_for_image(NEW)
    assert not found.rolls


def test_group_without_workers_or_without_kafka_does_not() -> None:
    for wrong in (condition_of("Serving", "False", "NoWorkerReady"), condition_of("ClusterReachable", "False", "X")):
        assert not standing(with_condition(wrong)).waits_for_image(NEW)


def test_label_of_canaries_counts_in_the_namespaces_that_may_have_some() -> None:
    body = whole(metadata={"labels": {"consumerfleet.io/canary": "true"}})
    assert [read_standing(body, CLUSTER, names).canary for names in ((), {"shop"}, {"other"})] == [True, True, False]


def test_group_without_a_ready_worker_is_down_and_one_whose_pods_die_or_is_refused_fails() -> None:
    down = condition_of("Serving", "False", "NoWorkerReady")
    asleep, kafka = condition_of("Serving", "False", "NoWorkersWanted"), condition_of("Serving", "Unknown", "X")
    assert [standing(with_condition(each)).down for each in (down, asleep, kafka)] == [True, True, False]
    for beside, fails in (
        (condition_of("Degraded", "True", "WorkersFailing"), True),
        (condition_of("Stalled", "True", "Refused"), True),
        (condition_of("Degraded", "True", "BrokerUnreachable"), False),
        (condition_of("Degraded", "True", "WorkerReportsError"), False),
        (condition_of("Degraded", "False", "WorkersFailing"), False),
    ):
        body = with_condition(down)
        body["status"]["conditions"].append(beside)
        assert standing(body).fails is fails
        assert not standing(whole(conditions=[beside])).fails, "it may serve"


def test_group_that_a_new_operator_has_not_observed_yet_keeps_its_place_as_a_canary() -> None:
    assert standing(with_condition(condition_of("ClusterReachable", "Unknown", "NotYetObserved"))).waits_for_image(NEW)


def with_condition(other: dict[str, Any]) -> dict[str, Any]:
    """The body of a whole group with one other condition."""
    body = whole()
    kept = [each for each in body["status"]["conditions"] if each["type"] != other["type"]]
    body["status"]["conditions"] = [*kept, other]
    return body


@pytest.mark.parametrize("told", [None, 7, "Rolling", {}, {"phase": "Else"}, {"phase": None}, {"phase": ["Rolling"]}])
def test_upgrade_that_cannot_be_read_is_none(told: Any) -> None:
    assert read_upgrade({"upgrade": told}) is None


def test_upgrade_reads_back_what_it_wrote() -> None:
    for upgrade in (ROLLING, Upgrade(Phase.FAILED, None, "d"), Upgrade(Phase.COMPLETE, NEW, "d")):
        assert read_upgrade({"upgrade": upgrade.document}) == upgrade


def test_group_on_its_way_takes_a_place_until_it_is_suspended() -> None:
    upgrade = {"phase": "Rolling", "image": NEW}
    assert standing(whole(image=NEW, upgrade=upgrade, conditions=[])).rolls
    assert not standing(whole(image=NEW, upgrade=upgrade, conditions=[], spec={"suspend": True})).rolls
    assert not standing(whole(image=NEW, upgrade=upgrade | {"phase": "Failed"})).rolls


def test_group_on_its_way_to_an_older_image_may_go_on_to_the_newest() -> None:
    stuck = standing(whole(image=NEW, upgrade={"phase": "Rolling", "image": NEW}, conditions=[]))
    assert stuck.waits_for_image("worker:3")
    assert not stuck.waits_for_image(NEW)
    other = standing(whole(upgrade={"phase": "Rolling", "connection": "c"}, conditions=[]))
    assert not other.waits_for_image(NEW), "it arrives with its connection first"
    assert other.waits_for_connection("d")


def with_upgrade(upgrade: Upgrade | None, **spec: Any) -> ConsumerGroup:
    status = {} if upgrade is None else {"upgrade": upgrade.document}
    return consumer_group(**spec).model_copy(update={"status": status})


def test_turn_begins_an_upgrade_and_adds_to_one_that_has_not_arrived() -> None:
    def begin(before: Upgrade | None, turn: Turn) -> Upgrade | None:
        return begin_upgrade(with_upgrade(before), turn, image=NEW, connection="d")

    assert begin(None, NO_TURN) is None
    assert begin(None, Turn(image=True)) == ROLLING
    assert begin(Upgrade(Phase.COMPLETE, "worker:1"), Turn(connection=True)) == Upgrade(Phase.ROLLING, None, "d")
    assert begin(ROLLING, Turn(connection=True)) == Upgrade(Phase.ROLLING, NEW, "d")
    assert begin(Upgrade(Phase.FAILED, "worker:1"), Turn(image=True)) == ROLLING
    assert begin(ROLLING, Turn(waves=True)) == ROLLING


def test_what_a_fleet_takes_over_alone_begins_no_upgrade_and_goes_on_with_one() -> None:
    def begin(before: Upgrade | None) -> Upgrade | None:
        alone = Turn(waves=True, connection=True, alone=True)
        return begin_upgrade(with_upgrade(before), alone, image=NEW, connection="d")

    done = Upgrade(Phase.COMPLETE, NEW)
    assert (begin(None), begin(done)) == (None, done)
    assert begin(Upgrade(Phase.FAILED, NEW, "c")) == Upgrade(Phase.ROLLING, NEW, "d")


def test_image_of_the_spec_takes_the_group_out_of_the_operators_hands() -> None:
    own = with_upgrade(Upgrade(Phase.FAILED, NEW), image="shop:1")
    assert begin_upgrade(own, NO_TURN, image=NEW, connection="d") is None
    both = with_upgrade(Upgrade(Phase.FAILED, NEW, "d"), image="shop:1")
    assert begin_upgrade(both, NO_TURN, image=NEW, connection="d") == Upgrade(Phase.FAILED, None, "d")


@pytest.mark.parametrize(
    ("before", "settled", "serving", "failed", "after"),
    [
        (Phase.ROLLING, False, True, False, Phase.ROLLING),
        (Phase.ROLLING, True, True, False, Phase.COMPLETE),
        (Phase.ROLLING, True, False, False, Phase.ROLLING),
        (Phase.ROLLING, False, True, True, Phase.FAILED),
        (Phase.FAILED, False, True, False, Phase.ROLLING),
        (Phase.FAILED, True, True, False, Phase.COMPLETE),
        (Phase.FAILED, True, False, False, Phase.FAILED),
        (Phase.COMPLETE, False, False, True, Phase.COMPLETE),
    ],
)
def test_upgrade_follows_its_rollout(before: Phase, settled: bool, serving: bool, failed: bool, after: Phase) -> None:
    found = advance(Upgrade(before, NEW), settled=settled, serving=serving, failed=failed)
    assert found == Upgrade(after, NEW)


def upgraded(rollout: RolloutDecision, upgrade: Upgrade = ROLLING, **changes: Any) -> dict[str, Any]:
    """The status of a group with an upgrade; its fleet is at the good revision."""
    found = facts(rollout=rollout, upgrade=upgrade, image=WorkerImage(NEW, "Operator", NEW), **changes)
    return project(found)


def test_status_shows_how_far_an_upgrade_has_come() -> None:
    going = upgraded(RolloutDecision(phase=RolloutPhase.CHECKING, target="aaaaaaaaaa"))
    assert going["upgrade"] == {"phase": "Rolling", "image": NEW}
    assert condition(going, "UpgradeAvailable") == ("False", "Upgrading")
    done = upgraded(settled())
    assert done["upgrade"] == {"phase": "Complete", "image": NEW}
    assert condition(done, "UpgradeAvailable") == ("False", "UpToDate")
    assert condition(upgraded(settled(), Upgrade(Phase.COMPLETE, NEW)), "UpgradeAvailable") == ("False", "UpToDate")


@pytest.mark.parametrize("phase", [RolloutPhase.REFUSED, RolloutPhase.CHECK_FAILED])
def test_refused_and_failed_checks_fail_the_upgrade(phase: RolloutPhase) -> None:
    found = upgraded(cause(phase, "HandlerNotCallable", target="aaaaaaaaaa"))
    assert found["upgrade"]["phase"] == "Failed"


def test_first_status_of_an_upgrade_says_that_it_has_begun_whatever_still_runs() -> None:
    begun = upgraded(settled(), turn=Turn(waves=True, image=True))
    assert begun["upgrade"] == {"phase": "Rolling", "image": NEW}
    failed_before = cause(RolloutPhase.REFUSED, "X", target="aaaaaaaaaa")
    assert upgraded(failed_before, turn=Turn(waves=True, image=True))["upgrade"]["phase"] == "Rolling"


def test_waiting_group_says_why_and_for_which_image() -> None:
    wait = Problem("UpgradeStopped", "it failed in ConsumerGroup shop/first")
    pinned = WorkerImage("worker:1", "Operator", NEW)
    found = project(facts(image=pinned, turn=Turn(waves=True, wait=wait), fleet=ready_fleet()))
    assert condition(found, "UpgradeAvailable") == ("True", "UpgradeStopped")
    for part in ("worker:1", NEW, "shop/first"):
        assert part in message(found, "UpgradeAvailable")
    assert "upgrade" not in found
