"""The memory of what was done to a Kafka group: when it began, and whether the group had commits then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.claims import Claim
from fleet_operator.planning.observation import GroupObservation
from fleet_operator.planning.offsets.expiry import ExpiryDecision
from fleet_operator.planning.retry.topics import GroupView
from fleet_operator.planning.state.group import GroupState, OffsetsState, UpgradeState
from fleet_operator.reconcilers.consumergroup.offsets import offsets_after
from tests.unit.planning.builders import NOW, kafka_cluster, observed_group
from tests.unit.reconcilers.consumergroup.test_decide import gathered

OLDER = Claim(cluster="cluster-a", group_id="orders", created_at="", namespace="former", name="orders")


def after(
    before: OffsetsState, seen: GroupObservation | None, *, known: bool = True, **changes: Any
) -> tuple[float | None, bool | None]:
    """The begin of the memory, and what is judged of it; `known` are all topics of the group."""
    state = GroupState(offsets=before, upgrade=UpgradeState(image="worker:1"))
    shown = GroupView(observed=seen, partition_counts={"orders": 4} if known else None)
    found = offsets_after(gathered(**{"state": state} | changes), shown, ExpiryDecision(), NOW)
    return found.began, found.inherited


def seen(at: float, *, commits: bool) -> GroupObservation:
    group = observed_group()
    return replace(group, observed_at=at, committed=group.committed if commits else {})


@pytest.mark.parametrize("commits", [True, False])
def test_memory_is_judged_by_an_observation_that_was_made_after_it_began(commits: bool) -> None:
    known = OffsetsState(began=NOW - 10)
    assert after(known, None) == (NOW - 10, None)
    assert after(known, seen(NOW - 11, commits=commits)) == (NOW - 10, None), "commits may have come since"
    assert after(known, seen(NOW - 9, commits=commits)) == (NOW - 10, commits)


def test_memory_is_not_judged_by_what_may_lack_commits() -> None:
    """Brokers leave out commits of topics that the operator may not see; another cluster has others."""
    known = OffsetsState(began=NOW - 10)
    assert after(known, seen(NOW - 9, commits=False), known=False) == (NOW - 10, None)
    other = kafka_cluster(status={"clusterId": "cluster-b"})
    assert after(known, seen(NOW - 9, commits=False), cluster=other) == (NOW - 10, None)


def test_memory_that_began_by_a_clock_that_was_ahead_begins_now() -> None:
    assert after(OffsetsState(began=NOW + 86_400), seen(NOW, commits=True)) == (NOW, True)
    assert after(OffsetsState(began=NOW + 86_400, inherited=False), seen(NOW, commits=True)) == (NOW + 86_400, False)


@pytest.mark.parametrize("commits", [True, False])
def test_judgement_stands(commits: bool) -> None:
    known = OffsetsState(began=NOW - 10, inherited=commits)
    assert after(known, seen(NOW, commits=not commits)) == (NOW - 10, commits)


@pytest.mark.parametrize("lost", [{"state": GroupState()}, {"own_state": False}])
def test_memory_of_a_new_object_begins_now(lost: dict[str, Any]) -> None:
    known = OffsetsState(began=NOW - 10, inherited=False)
    assert after(known, seen(NOW - 1, commits=True), **lost) == (NOW, None)


def test_memory_begins_when_the_object_becomes_the_owner_of_its_group() -> None:
    """Nothing is known of what the owner before has done to the group."""
    known = OffsetsState(began=NOW - 1000, inherited=False)
    assert after(known, seen(NOW, commits=False), older=OLDER) == (None, None)
    assert after(OffsetsState(), seen(NOW - 1, commits=True)) == (NOW, None)
