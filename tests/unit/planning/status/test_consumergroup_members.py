"""Members and transitions in the status of a ConsumerGroup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from fleet_operator.planning.fleet.rollout import RolloutPhase
from fleet_operator.planning.observation import (
    BrokerInfo,
    GroupTransition,
    MemberName,
    MemberObservation,
    StuckPartition,
    WorkerObservation,
)
from tests.unit.planning.builders import (
    NOW,
    facts,
    member,
    observation,
    observed_group,
    unreachable,
)
from tests.unit.planning.status.projecting import (
    cause,
    condition,
    message,
    project,
)


def foreign(name: str = "other-1") -> MemberObservation:
    return MemberObservation(member_id=name, instance_id=None, client_id=name, host="/10.9.9.9")


def test_foreign_members_are_reported_and_listed_last() -> None:
    shared = observed_group(members=(foreign(), member(0, {"orders": (0,)}), member(1, {"orders": (1,)})))
    status = project(facts(observation=observation(shared)))
    assert condition(status, "GroupShared") == ("True", "ForeignMembers")
    assert "other-1" in message(status, "GroupShared")
    assert [entry["pod"] for entry in status["members"]] == ["orders-fleet-0", "orders-fleet-1", ""]
    assert status["memberCount"] == 3


def too_long(value: object, schema: Mapping[str, Any], path: str = "") -> list[str]:
    """Strings of a status that the CRD refuses, and with them the whole status."""
    if isinstance(value, Mapping):
        fields = schema.get("properties", {})
        return [found for key in value for found in too_long(value[key], fields[key], f"{path}.{key}")]
    if isinstance(value, list):
        return [found for entry in value for found in too_long(entry, schema["items"], f"{path}[]")]
    limits = schema.get("minLength", 0), schema.get("maxLength", float("inf"))
    return [path] if isinstance(value, str) and not limits[0] <= len(value) <= limits[1] else []


def test_foreign_texts_never_make_an_invalid_status() -> None:
    """Kafka allows a client.id of any length, workers and brokers may say anything; one refused field freezes all."""
    long = "x" * 600
    alien = [foreign(f"{long}-{number}") for number in range(5)]
    alien.append(MemberObservation(member_id=long, instance_id=long, client_id=long, host=f"/{long}", partitions={}))
    stuck = StuckPartition(topic="orders", partition=0, offset=1, since=NOW, reason=long, message=long)
    workers = (WorkerObservation(pod="orders-fleet-0", stuck=(stuck,), error_reason=long, error_message=long),)
    came = tuple(MemberName(each.member_id, each.instance_id, each.client_id) for each in alien[:4])
    seen = GroupTransition(before=long, after="Stable", at=NOW, joined=came, joined_count=5, left=came, left_count=5)
    group = observed_group(members=(*alien, member(0)), assignor=long, transitions=(replace(seen, before="Empty"),))
    for reason in (long, ""):
        given = facts(
            observation=observation(group, brokers=(BrokerInfo(1, long, 9092),)),
            workers=workers,
            rollout=cause(RolloutPhase.CHECK_FAILED, reason),
        )
        first = project(given, project(facts()))
        empty = replace(given.view, observed=replace(group, state="Empty", members=()))
        status = project(replace(given, view=empty), first)
        path = Path(__file__).parents[4] / "crds" / "consumerfleet.io_consumergroups.yaml"
        schema = yaml.safe_load(path.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for projected in (first, status):
            assert too_long(projected, schema["properties"]["status"]) == []
    shown = [entry["id"] for entry in first["members"] if entry["pod"] == ""]
    assert len(set(shown)) == len(alien), "they are still told apart"


def test_members_of_a_recreated_namesake_are_foreign() -> None:
    """Its instance ids carry another uid: they must not be taken for ours."""
    ghost = replace(member(0), instance_id="shop.orders.ffffffff-0")
    status = project(facts(observation=observation(observed_group(members=(ghost, member(1))))))
    assert condition(status, "GroupShared") == ("True", "ForeignMembers")


def test_dynamic_members_are_matched_by_worker_reports() -> None:
    dynamic = replace(member(0), instance_id=None, member_id="x-1", client_id="orders-fleet-0")
    worker = WorkerObservation(pod="orders-fleet-0", member_id="x-1", generation=1)
    group = observed_group(members=(dynamic,))
    status = project(facts(observation=observation(group), workers=(worker,)))
    assert condition(status, "GroupShared") == ("False", "OnlyOurMembers")
    assert status["members"][0]["pod"] == "orders-fleet-0"


def test_dynamic_members_are_known_by_their_pods_names_when_no_worker_can_be_asked() -> None:
    """Workers call themselves after their pods, and an operator outside the pod network cannot ask them."""
    dynamic = replace(member(0), instance_id=None, member_id="x-1", client_id="orders-fleet-1")
    status = project(facts(observation=observation(observed_group(members=(dynamic, foreign())))))
    assert [entry["pod"] for entry in status["members"]] == ["orders-fleet-1", ""]
    assert condition(status, "GroupShared") == ("True", "ForeignMembers")


def test_members_keep_their_partitions_while_the_group_rebalances() -> None:
    """Kafka tells assignments only while Stable."""
    before = project(facts())
    bare = observed_group(state="PreparingRebalance", members=(member(0), member(1)))
    status = project(facts(observation=observation(bare)), before, NOW + 5)
    assert [(m["partitions"], m["partitionCount"], m["state"]) for m in status["members"]] == [
        ([{"topic": "orders", "ranges": "0-1"}], 2, "Rebalancing"),
        ([{"topic": "orders", "ranges": "2-3"}], 2, "Rebalancing"),
    ]


def test_member_without_partitions_is_idle() -> None:
    group = observed_group(members=(member(0, {"orders": (0, 1, 2, 3)}), member(1)))
    status = project(facts(observation=observation(group)))
    assert [m["state"] for m in status["members"]] == ["Active", "Idle"]


def test_members_partitions_are_counted_also_where_they_are_not_listed() -> None:
    group = observed_group(members=(member(0, {"orders": tuple(range(0, 20_000, 2))}),))
    (entry,) = project(facts(observation=observation(group)))["members"]
    assert entry["partitionCount"] == 10_000
    assert len(entry["partitions"][0]["ranges"]) < 1024


def test_big_group_lists_a_hundred_members_and_counts_all() -> None:
    group = observed_group(members=tuple(member(n, {"orders": (n,)}) for n in range(250)))
    status = project(facts(observation=observation(group)))
    assert (len(status["members"]), status["memberCount"]) == (100, 250)


def test_unknown_state_is_no_transition() -> None:
    """A cluster that cannot be asked says nothing about the group."""
    seen = observed_group(transitions=(GroupTransition(before="Unknown", after="Stable", at=NOW - 1),))
    before = project(facts(observation=observation(seen)))
    away = project(facts(observation=unreachable()), before, NOW + 5)
    back = project(facts(observation=observation(replace(seen, observed_at=NOW + 9))), away, NOW + 10)
    assert back["transitions"] == before["transitions"]
    assert len(back["transitions"]) == 1
    assert (back["state"], back["stateSince"]) == ("Stable", "2027-01-15T07:59:59Z")
