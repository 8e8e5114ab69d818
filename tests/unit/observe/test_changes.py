"""Event in an observation: who is notified, and how urgently."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from fleet_consumer.contract.patterns import compile_pattern
from fleet_operator.observe.changes import Observed, compare
from fleet_operator.observe.subscriptions import GroupSubscription
from fleet_operator.planning.observation import (
    BrokerInfo,
    BrokerSettings,
    ClusterObservation,
    GroupObservation,
    OffsetsTopicInfo,
    TopicObservation,
)

SUBSCRIPTIONS = {
    "a": GroupSubscription(group_id="a", topics=("t",), other_topics=("out",)),
    "b": GroupSubscription(group_id="b", pattern=compile_pattern("p.*")),
}
BEFORE = ClusterObservation(
    observed_at=1.0,
    reachable=True,
    cluster_id="c",
    groups={name: GroupObservation(group_id=name, observed_at=1.0, state="Stable") for name in SUBSCRIPTIONS},
    topics={name: TopicObservation(partitions=1) for name in ("t", "out", "p1", "other")},
    matches={"p.*": ("p1",)},
    last_good_at=1.0,
)


def changed(**changes: object) -> ClusterObservation:
    return replace(BEFORE, observed_at=6.0, last_good_at=6.0, **changes)  # type: ignore[arg-type]


def group(name: str, **changes: object) -> dict[str, GroupObservation]:
    """All groups, this one with changes."""
    return {**BEFORE.groups, name: replace(BEFORE.groups[name], observed_at=6.0, **changes)}  # type: ignore[arg-type]


def observed(
    after: ClusterObservation, before: ClusterObservation | None = BEFORE, *, first: Iterable[str] = ()
) -> Observed:
    return compare(before, after, SUBSCRIPTIONS, 0.1, first=first)


def test_nothing_is_new_but_the_time() -> None:
    after = changed(groups={name: replace(group, observed_at=6.0) for name, group in BEFORE.groups.items()})
    found = observed(after)
    assert (found.observation, found.seconds) == (after, 0.1)
    assert (found.cluster, found.lost, found.groups) == (False, False, {})


def test_only_groups_that_changed_are_notified_and_of_offsets_not_urgently() -> None:
    assert observed(changed(groups=group("a", state="Empty"))).groups == {"a": True}
    assert observed(changed(groups=group("a", committed={("t", 0): 7}))).groups == {"a": False}
    assert observed(changed(groups=group("b", end_offsets={("p1", 0): 7}))).groups == {"b": False}


def test_only_groups_that_were_polled_are_compared() -> None:
    after = changed(groups=group("b", state="Empty"))
    assert compare(BEFORE, after, {"a": SUBSCRIPTIONS["a"]}, 0.1).groups == {}


@pytest.mark.parametrize(
    ("changes", "notified"),
    [
        ({"topics": {**BEFORE.topics, "t": TopicObservation(partitions=2)}}, {"a": True}),
        ({"topics": {**BEFORE.topics, "out": TopicObservation(partitions=0, error="TopicNotFound")}}, {"a": True}),
        ({"topics": {**BEFORE.topics, "t": TopicObservation(partitions=1, topic_id="again")}}, {"a": True}),
        ({"topics": {**BEFORE.topics, "p1": TopicObservation(partitions=2)}}, {"b": True}),
        ({"matches": {"p.*": ("p1", "p2")}}, {"b": True}),
        ({"topics": {**BEFORE.topics, "other": TopicObservation(partitions=2)}}, {}),
        ({"topics": dict(BEFORE.topics), "matches": dict(BEFORE.matches)}, {}),
    ],
)
def test_topics_that_changed_are_reported_to_the_groups_that_name_or_match_them(
    changes: dict[str, object], notified: dict[str, bool]
) -> None:
    assert observed(changed(**changes)).groups == notified


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster_id": "other"},
        {"brokers": (BrokerInfo(1, "b", 9092),)},
        {"offsets_topic": OffsetsTopicInfo(partitions=50, replication_factor=3)},
        {"broker_settings": {1: BrokerSettings(partitions=50)}},
        {"group_count": 3},
        {"groups_per_coordinator": {1: 3}},
    ],
)
def test_facts_of_the_cluster_are_reported_to_it_alone(changes: dict[str, object]) -> None:
    found = observed(changed(**changes))
    assert (found.cluster, found.lost, found.groups) == (True, False, {})


def test_first_observation_is_reported_to_all_that_were_polled() -> None:
    found = observed(BEFORE, None)
    assert (found.cluster, found.lost, found.groups) == (True, False, {"a": True, "b": True})
    assert observed(changed(), first="ab").groups == {"a": True, "b": True}


def test_cluster_that_is_lost_is_reported_once_and_again_for_another_reason() -> None:
    lost = changed(reachable=False, reason="BrokerUnreachable")
    assert (observed(lost).cluster, observed(lost).lost, observed(lost).groups) == (True, True, {})
    later = observed(replace(lost, observed_at=11.0), lost)
    assert (later.cluster, later.lost) == (False, False)
    assert observed(replace(lost, reason="TlsFailed"), lost).lost
    assert observed(lost, None).lost, "never reached at all"


def test_failed_poll_that_proves_nothing_wakes_nobody() -> None:
    found = observed(changed(reachable=False, unconfirmed=True, reason="BrokerUnreachable"))
    assert (found.cluster, found.lost, found.groups) == (False, False, {})
    assert found.observation.unconfirmed


def test_group_that_is_not_in_the_observation_is_not_reported() -> None:
    assert observed(changed(groups={"a": BEFORE.groups["a"]})).groups == {}
