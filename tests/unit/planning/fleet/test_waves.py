"""Rollout status of a group in upgrades by waves, as its object shows it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.fleet.image import WorkerImage
from fleet_operator.planning.fleet.rollout import RolloutDecision, RolloutPhase
from fleet_operator.planning.fleet.waves import (
    NO_SLOT,
    RolloutStatus,
    Slot,
    advance,
    begin_upgrade,
    read_rollout_status,
)
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.state.group import Phase, Upgrade, UpgradeState
from fleet_operator.planning.status.rollout import advanced_upgrade
from tests.unit.planning.builders import consumer_group, facts, ready_fleet, settled
from tests.unit.planning.status.projecting import cause, condition, message, project

CLUSTER = ("shop", "main")
NEW = "worker:2"
ROLLING = Upgrade(Phase.ROLLING, NEW)


def condition_of(kind: str, status: str, reason: str, generation: int = 1) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "observedGeneration": generation}


WHOLE = (
    condition_of("Progressing", "False", "Complete"),
    condition_of("Serving", "True", "NewestRevision"),
    condition_of("ClusterReachable", "True", "Reached"),
)


def status(
    conditions: Sequence[dict[str, Any]] = WHOLE,
    *,
    metadata: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    canaries: Collection[str] = (),
    **state: Any,
) -> RolloutStatus:
    """The rollout status of a group that is whole, apart from these changes."""
    body = {"metadata": {"name": "orders", "namespace": "shop"} | (metadata or {}), "spec": spec or {}}
    pinned: dict[str, Any] = {"image": "worker:1", "source": "Operator", "connection": "c"}
    return read_rollout_status(body, conditions, UpgradeState(**pinned | state), CLUSTER, canaries)


def test_whole_group_that_is_pinned_may_go_over() -> None:
    found = status()
    assert found == RolloutStatus(cluster=CLUSTER, whole=True, image="worker:1", connection="c")
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
        {"source": "Spec"},
        {"image": None},
        {"conditions": []},
    ],
)
def test_group_at_rest_of_its_own_image_or_in_a_rollout_does_not(changes: dict[str, Any]) -> None:
    found = status(**changes)
    assert not found.waits_for_image(NEW)
    assert not found.rolls


def test_group_without_workers_or_without_kafka_does_not() -> None:
    for wrong in (condition_of("Serving", "False", "NoWorkerReady"), condition_of("ClusterReachable", "False", "X")):
        assert not status(with_condition(wrong)).waits_for_image(NEW)


def test_label_of_canaries_counts_in_the_namespaces_that_may_have_some() -> None:
    labelled = {"labels": {"consumerfleet.io/canary": "true"}}
    found = [status(metadata=labelled, canaries=names).canary for names in ((), {"shop"}, {"other"})]
    assert found == [True, True, False]


def test_group_without_a_ready_worker_is_down_and_one_whose_pods_die_or_is_refused_fails() -> None:
    down = condition_of("Serving", "False", "NoWorkerReady")
    asleep, kafka = condition_of("Serving", "False", "NoWorkersWanted"), condition_of("Serving", "Unknown", "X")
    assert [status(with_condition(each)).down for each in (down, asleep, kafka)] == [True, True, False]
    for extra, fails in (
        (condition_of("Degraded", "True", "WorkersFailing"), True),
        (condition_of("Stalled", "True", "Refused"), True),
        (condition_of("Degraded", "True", "BrokerUnreachable"), False),
        (condition_of("Degraded", "True", "WorkerReportsError"), False),
        (condition_of("Degraded", "False", "WorkersFailing"), False),
    ):
        assert status([*with_condition(down), extra]).fails is fails
        assert not status([extra]).fails, "it may serve"


def test_group_that_a_new_operator_has_not_observed_yet_keeps_its_place_as_a_canary() -> None:
    assert status(with_condition(condition_of("ClusterReachable", "Unknown", "NotYetObserved"))).waits_for_image(NEW)


def with_condition(other: dict[str, Any]) -> list[dict[str, Any]]:
    """The conditions of a whole group, one of them another one."""
    return [*(each for each in WHOLE if each["type"] != other["type"]), other]


def test_group_on_its_way_takes_a_place_until_it_is_suspended() -> None:
    assert status([], image=NEW, last=ROLLING).rolls
    assert not status([], image=NEW, last=ROLLING, spec={"suspend": True}).rolls
    assert not status(image=NEW, last=Upgrade(Phase.FAILED, NEW)).rolls


def test_group_on_its_way_to_an_older_image_may_go_on_to_the_newest() -> None:
    stuck = status([], image=NEW, last=ROLLING)
    assert stuck.waits_for_image("worker:3")
    assert not stuck.waits_for_image(NEW)
    other = status([], last=Upgrade(Phase.ROLLING, None, "c"))
    assert not other.waits_for_image(NEW), "it arrives with its connection first"
    assert other.waits_for_connection("d")


def test_slot_begins_an_upgrade_and_adds_to_one_that_has_not_arrived() -> None:
    def begin(before: Upgrade | None, slot: Slot) -> Upgrade | None:
        return begin_upgrade(consumer_group(), before, slot, image=NEW, connection="d")

    assert begin(None, NO_SLOT) is None
    assert begin(None, Slot(image=True)) == ROLLING
    assert begin(Upgrade(Phase.COMPLETE, "worker:1"), Slot(connection=True)) == Upgrade(Phase.ROLLING, None, "d")
    assert begin(ROLLING, Slot(connection=True)) == Upgrade(Phase.ROLLING, NEW, "d")
    assert begin(Upgrade(Phase.FAILED, "worker:1"), Slot(image=True)) == ROLLING
    assert begin(ROLLING, Slot(waves=True)) == ROLLING


def test_what_a_fleet_takes_over_alone_begins_no_upgrade_and_goes_on_with_one() -> None:
    def begin(before: Upgrade | None) -> Upgrade | None:
        alone = Slot(waves=True, connection=True, alone=True)
        return begin_upgrade(consumer_group(), before, alone, image=NEW, connection="d")

    done = Upgrade(Phase.COMPLETE, NEW)
    assert (begin(None), begin(done)) == (None, done)
    assert begin(Upgrade(Phase.FAILED, NEW, "c")) == Upgrade(Phase.ROLLING, NEW, "d")


def test_image_of_the_spec_takes_the_group_out_of_the_operators_hands() -> None:
    own = consumer_group(image="shop:1")
    assert begin_upgrade(own, Upgrade(Phase.FAILED, NEW), NO_SLOT, image=NEW, connection="d") is None
    both = Upgrade(Phase.FAILED, NEW, "d")
    assert begin_upgrade(own, both, NO_SLOT, image=NEW, connection="d") == Upgrade(Phase.FAILED, None, "d")


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
    return project(replace(found, upgrade=advanced_upgrade(found)))


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
    begun = upgraded(settled(), slot=Slot(waves=True, image=True))
    assert begun["upgrade"] == {"phase": "Rolling", "image": NEW}
    failed_before = cause(RolloutPhase.REFUSED, "X", target="aaaaaaaaaa")
    assert upgraded(failed_before, slot=Slot(waves=True, image=True))["upgrade"]["phase"] == "Rolling"


def test_waiting_group_says_why_and_for_which_image() -> None:
    wait = Problem("UpgradeStopped", "it failed in ConsumerGroup shop/first")
    pinned = WorkerImage("worker:1", "Operator", NEW)
    found = project(facts(image=pinned, slot=Slot(waves=True, wait=wait), fleet=ready_fleet()))
    assert condition(found, "UpgradeAvailable") == ("True", "UpgradeStopped")
    for part in ("worker:1", NEW, "shop/first"):
        assert part in message(found, "UpgradeAvailable")
    assert "upgrade" not in found
