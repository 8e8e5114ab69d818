"""Plans of retries: obstacles, settings that topics share, and the end of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fleet_consumer.contract import naming
from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_operator.planning.fleet.parts import RETRY, FleetPart
from fleet_operator.planning.observation import (
    BrokerSettings,
    ClusterObservation,
    ManagedTopic,
    RetryObservation,
    TopicObservation,
)
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import DelayState
from fleet_operator.planning.retry.plan import RetryFacts, RetryPlan, plan_retry
from fleet_operator.planning.retry.published_policies import SUPERSEDED_S, plan_intent
from fleet_operator.planning.retry.records import Published
from fleet_operator.planning.retry.scaling import RetryMemory
from fleet_operator.planning.retry.topics import view_group, wanted_topics
from fleet_operator.planning.state.group import RetrySizing
from tests.unit.planning.builders import NOW, consumer_group, observation, observed_group, ready_fleet, unreachable
from tests.unit.planning.retry.test_published_policies import DAY, OLD, revision

GROUP = consumer_group(retry={"policyRef": {"name": "standard"}})
CAREFUL = revision("5s", "30s", budget={"action": "Pause"})
TOLD = Published(policy="standard", current=OLD.hash, known=(OLD,), partitions=4, max_message_bytes=1_114_124)


def wanted() -> list[WantedTopic]:
    intent = plan_intent(GROUP, OLD, None)
    return list(
        wanted_topics(
            GROUP, intent, {"orders": 4}, RetryObservation(observed_at=NOW, source_max_message_bytes=1_048_588)
        )
    )


def flow(**changes: Any) -> RetryObservation:
    """A retry flow in which all topics are as they should be, and nothing waits."""
    topics = {
        topic.name: ManagedTopic(partitions=4, configs=dict(topic.configs), waiting=0)
        for topic in wanted()
        if topic.name != "_fleet.orders.failed"
    }
    base: dict[str, Any] = {"observed_at": NOW, "topics": topics, "waiting": 0, "due_lag": 0}
    return RetryObservation(**{**base, "source_max_message_bytes": 1_048_588, **changes})


def cluster(
    retry: RetryObservation | None = None, topics: Mapping[str, TopicObservation] | None = None
) -> ClusterObservation:
    """The cluster; `topics` replaces those of these delays."""
    there = {topic.name: TopicObservation(partitions=4) for topic in wanted()}
    there |= {naming.retry_topic("orders", delay): seen for delay, seen in (topics or {}).items()}
    seen = observation(observed_group(retry=retry or flow()))
    return replace(seen, topics={**seen.topics, **there})


def plan(facts_changes: dict[str, Any] | None = None, **changes: Any) -> RetryPlan:
    """The plan for a new group; `changes` may give the policy, the observation, and the workers' `fleet`."""
    base: dict[str, Any] = {"group": GROUP, "published": None, **changes}
    changed = dict(facts_changes or {})
    intent = plan_intent(base["group"], base.pop("policy", OLD), base["published"])
    assert intent is not None
    view = view_group(base["group"], base.pop("observation", cluster()), intent)
    fleet, at = base.pop("fleet", None), changed.pop("changed_at", None)
    if at is not None:
        count = fleet.replicas if fleet is not None else None
        changed["memory"] = RetryMemory(kept=RetrySizing(count=count, changed_at=at))
    workers = FleetPart(part=RETRY, body=None, fleet=fleet)
    return plan_retry(RetryFacts(intent=intent, view=view, workers=workers, **base, **changed), NOW)


def test_policy_is_published_once_its_topics_are_there() -> None:
    made = plan()
    assert made.published is not None
    assert (made.published.current, made.published.partitions, made.problem) == (OLD.hash, 4, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"policy": Problem("RetryPolicyNotFound", "it is not there")}, "RetryPolicyNotFound"),
        ({"observation": None}, "NotYetObserved"),
        ({"observation": unreachable()}, "BrokerUnreachable"),
        (
            {"observation": cluster(topics={"30s": TopicObservation(partitions=0, error="TopicNotFound")})},
            "TopicNotCreated",
        ),
        (
            {"observation": cluster(topics={"30s": TopicObservation(partitions=0, error="AuthorizationFailed")})},
            "AuthorizationFailed",
        ),
    ],
)
def test_workers_wait_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    made = plan(**changes)
    assert made.published is None
    assert made.problem is not None
    assert made.problem.reason == reason


def test_missing_source_topic_is_the_reason_before_the_retry_topics_that_follow_from_it() -> None:
    """Their number of partitions is the source's, so they are not being created."""
    gone = replace(
        observation(observed_group()), topics={"orders": TopicObservation(partitions=0, error="TopicNotFound")}
    )
    problem = plan(observation=gone).problem
    assert problem is not None
    assert problem.reason == "TopicNotFound"
    assert "topics missing on the cluster: orders; create them" in problem.message


def test_records_without_a_key_find_their_partition_in_every_topic() -> None:
    """The smallest count is what workers may reckon with; larger ones stay as they are."""
    made = plan(observation=cluster(topics={"30s": TopicObservation(partitions=12)}))
    assert made.published is not None
    assert made.published.partitions == 4


def test_retries_are_over_when_the_end_is_old_enough_and_nothing_waits() -> None:
    group = consumer_group()
    ending = replace(TOLD, ending_since=NOW - SUPERSEDED_S)
    before = {"memory": RetryMemory(drained_at=NOW - 5)}
    assert plan(before, group=group, published=ending).over
    assert not plan(before, group=group, published=ending, observation=cluster(flow(waiting=1))).over
    assert not plan(before, group=group, published=ending, observation=cluster(flow(waiting=None))).over
    assert not plan(before, group=group, published=ending, observation=unreachable()).over
    assert not plan(before, group=group, published=replace(TOLD, ending_since=NOW - 1)).over
    assert not plan(before, published=ending).over, "retries are wanted again"


def test_retries_are_over_only_when_two_observations_in_a_row_saw_nothing_wait() -> None:
    """Commits and ends of one poll are asked at once: a record that is published again meanwhile is in none of the two
    topics."""
    ending: dict[str, Any] = {"group": consumer_group(), "published": replace(TOLD, ending_since=NOW - DAY)}
    first = plan(**ending)
    assert (first.over, first.memory.drained_at) == (False, NOW)
    assert not plan({"memory": first.memory}, **ending).over, "the same observation"
    later = cluster(flow(observed_at=NOW + 5))
    assert plan({"memory": first.memory}, **ending, observation=later).over
    busy = plan({"memory": first.memory}, **ending, observation=cluster(flow(observed_at=NOW + 5, waiting=1)))
    assert (busy.over, busy.memory.drained_at) == (False, None)
    fed = plan({"memory": first.memory, "fed": True}, **ending, observation=later)
    assert (fed.over, fed.memory.drained_at) == (False, None)


def test_kept_topic_of_a_drained_delay_neither_wakes_workers_nor_has_the_plan_repeated() -> None:
    hour = revision("1h")
    told = replace(
        TOLD, current=hour.hash, known=(hour,), retiring={"5s": DelayState.DRAINING, "30s": DelayState.DRAINING}
    )
    topics = {"1h": TopicObservation(partitions=4), "30s": TopicObservation(partitions=0, error="TopicNotFound")}
    asleep: dict[str, Any] = {"policy": hour, "published": told, "fleet": ready_fleet(0)}
    made = plan({"fed": True}, **asleep, observation=cluster(topics=topics))
    assert made.scale.replicas == 0, "no record fails into 5s any more"
    assert made.published is not None
    assert (made.published.drained, made.published.partitions) == (("5s", "30s"), 4)
    assert made.requeue_after is None


def test_retry_topics_stay_in_use_while_a_writer_may_exist() -> None:
    """Main workers of a revision that knows retries, or a Redrive: what they write next would have no reader."""
    ending = replace(TOLD, ending_since=NOW - SUPERSEDED_S)
    facts = {"fed": True, "memory": RetryMemory(drained_at=NOW - 5)}
    assert not plan(facts, group=consumer_group(), published=ending).over


def test_nothing_runs_while_the_fleet_is_stopped() -> None:
    busy = cluster(flow(waiting=5, due_lag=5, oldest_due_at=NOW - 100))
    running: dict[str, Any] = {"published": TOLD, "fleet": ready_fleet(2), "observation": busy}
    assert plan(**running).scale.replicas >= 2
    assert plan({"stopped": True}, **running).scale.replicas == 0


def test_partially_observed_flow_wakes_its_workers() -> None:
    part = cluster(flow(waiting=None, due_lag=None, oldest_due_at=NOW - 100, error="NotObserved"))
    assert plan(published=TOLD, fleet=ready_fleet(0), observation=part).scale.replicas == 1


def test_sleeping_group_is_joined_after_half_the_time_that_brokers_keep_its_commits() -> None:
    asleep: dict[str, Any] = {"published": TOLD, "fleet": ready_fleet(0)}
    told = {broker.id: BrokerSettings(retention_s=1000.0) for broker in observation().brokers}
    kept = replace(cluster(flow(state="Empty")), broker_settings=told)
    old, new = {"changed_at": NOW - 501}, {"changed_at": NOW - 499}
    assert plan(old, **asleep, observation=kept).scale.replicas == 1
    assert plan(new, **asleep, observation=kept).scale.replicas == 0
    unsaid = cluster(flow(state="Empty"))
    assert plan(old, **asleep, observation=unsaid).scale.replicas == 0
    assert plan({"changed_at": NOW - 43_201}, **asleep, observation=unsaid).scale.replicas == 1
    assert plan({"changed_at": NOW - 43_201}, **asleep).scale.replicas == 0, "a group that does not exist"


def test_calm_is_remembered_until_something_is_due() -> None:
    quiet: dict[str, Any] = {"published": TOLD, "fleet": ready_fleet(2)}
    before = {"memory": RetryMemory(calm_since=NOW - 30)}
    assert plan(**quiet).memory.calm_since == NOW
    assert plan(before, **quiet).memory.calm_since == NOW - 30
    assert plan(before, **quiet, observation=unreachable()).memory.calm_since == NOW - 30
    due = cluster(flow(waiting=1, due_lag=1, oldest_due_at=NOW - 1))
    assert plan(before, **quiet, observation=due).memory.calm_since is None


def test_number_of_retry_workers_outlives_the_loss_of_the_state() -> None:
    quiet: dict[str, Any] = {"published": TOLD, "fleet": ready_fleet(3)}
    for seen in (cluster(), unreachable(), None):
        made = plan({"memory": RetryMemory()}, **quiet, observation=seen)
        assert (made.scale.replicas, made.memory.kept) == (3, RetrySizing(count=3, changed_at=NOW))


def test_most_workers_of_the_spec_hold_until_retries_are_over() -> None:
    late: dict[str, Any] = {"observation": cluster(flow(waiting=50, due_lag=50, oldest_due_at=NOW - 600))}
    late |= {"published": TOLD, "fleet": ready_fleet(2)}
    bounded = consumer_group(retry={"policyRef": {"name": "standard"}, "worker": {"maxReplicas": 2}})
    kept = plan({"breaker_open": False}, group=bounded, **late).memory.kept
    assert kept.most == 2
    before = {"memory": RetryMemory(kept=replace(kept, changed_at=NOW - 600)), "breaker_open": False}
    ending = plan(before, group=consumer_group(), **late)
    assert (ending.scale.replicas, ending.memory.kept.most) == (2, 2)


def test_time_of_the_last_change_is_kept_until_the_number_changes() -> None:
    before = {"memory": RetryMemory(kept=RetrySizing(count=3, changed_at=NOW - 500))}
    running: dict[str, Any] = {"published": TOLD, "fleet": ready_fleet(3)}
    assert plan(before, **running).memory.kept == RetrySizing(count=3, changed_at=NOW - 500)
    late = cluster(flow(waiting=50, due_lag=50, oldest_due_at=NOW - 600))
    grown = plan({**before, "breaker_open": False}, **running, observation=late)
    assert grown.memory.kept == RetrySizing(count=grown.scale.replicas, changed_at=NOW)
    assert grown.scale.replicas > 3


def test_removal_that_was_regretted_is_not_tried_again_after_a_restart() -> None:
    """The state has the number that was too small."""
    due = cluster(flow(waiting=1, due_lag=1, oldest_due_at=NOW - 1))
    for short, replicas in ((0, 2), (2, 3)):
        kept = RetrySizing(count=4, changed_at=NOW - 600, short=short, short_at=NOW - 300)
        before = {"memory": RetryMemory(keeping_up_since=NOW - 300, kept=kept)}
        assert plan(before, published=TOLD, fleet=ready_fleet(4), observation=due).scale.replicas == replicas


def test_retry_workers_are_not_doubled_while_breakers_are_unknown() -> None:
    """After a restart, or where pods cannot be reached, an outage looks like too few workers."""
    late = cluster(flow(waiting=5000, due_lag=5000, oldest_due_at=NOW - 600))
    told = replace(TOLD, current=CAREFUL.hash, known=(CAREFUL,))
    running: dict[str, Any] = {"policy": CAREFUL, "published": told, "fleet": ready_fleet(2), "observation": late}
    for known, replicas in ((None, 2), (True, 2), (False, 4)):
        facts = {"breaker_open": known, "changed_at": NOW - 600}
        assert plan(facts, **running).scale.replicas == replicas, known
    assert plan({"breaker_open": None}, **{**running, "fleet": ready_fleet(0)}).scale.replicas == 1
    free: dict[str, Any] = {**running, "policy": OLD, "published": TOLD}
    assert plan({"breaker_open": None, "changed_at": NOW - 600}, **free).scale.replicas == 4, "there are no breakers"


def test_worker_stays_where_the_shortest_delay_is_shorter_than_a_start() -> None:
    """Records of a 5 s delay would be late by a pod's start each time; as long as somebody may fail one."""
    asleep: dict[str, Any] = {"published": TOLD, "fleet": ready_fleet(0)}
    assert plan({"fed": True}, **asleep).scale.replicas == 1
    assert plan({"fed": False}, **asleep).scale.replicas == 0


def test_flow_that_could_not_be_asked_is_not_seen() -> None:
    assert view_group(GROUP, cluster(), None).flow is not None
    assert view_group(GROUP, None, None).flow is None
    assert view_group(GROUP, unreachable(), None).flow is None
    assert view_group(GROUP, cluster(flow(error="NotObserved")), None).flow is None
