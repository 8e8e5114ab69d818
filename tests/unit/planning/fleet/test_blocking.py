"""Reasons why a spec cannot become a revision, in the order of correction; and the owner of a Kafka group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.api.v1alpha1.kafkacluster import ClusterIdentity
from fleet_operator.planning.claims import Claim, Use, inherits, owns_before
from fleet_operator.planning.fleet.blocking import (
    cluster_invalid,
    cluster_not_found,
    find_blocking_problem,
    find_changed_id,
)
from fleet_operator.planning.observation import ClusterObservation
from tests.unit.planning.builders import consumer_group, kafka_cluster, observation, unreachable, with_containers

FROM_CONFIG_MAP = {"python": {"callable": "shop:handle", "configMapRef": {"name": "source"}}}
OLDER = Claim(cluster="c", group_id="orders", created_at="2026", namespace="shop", name="first")
KNOWN = ClusterIdentity(cluster_id="cluster-b")
CHANGED = replace(KNOWN, other="was b")


MANY_FILES = {f"part{number}.py": "" for number in range(251)}


@pytest.mark.parametrize(
    ("spec", "arguments", "reason", "named"),
    [
        ({}, {"cluster": cluster_not_found("shop", "main")}, "ClusterNotFound", "create it there"),
        ({}, {"cluster": cluster_invalid("shop", "main")}, "ClusterInvalid", "have the operator's version"),
        ({"topics": None, "topicPattern": "("}, {}, "TopicPatternRefused", "spec.topicPattern: '('"),
        ({"topics": None, "topicPattern": "(?=a)a"}, {}, "TopicPatternRefused", "the syntax is RE2's"),
        ({"handler": {"http": {}}}, {}, "HandlerContainerNotFound", "'handler'"),
        ({}, {"older": OLDER}, "GroupIdTaken", "shop/first"),
        ({}, {"cluster": kafka_cluster(identity=KNOWN), "observation": observation()}, "ClusterIdChanged", "cluster-b"),
        ({}, {"observation": unreachable("SecretNotLabelled", "secret `x`")}, "SecretNotLabelled", "secret `x`"),
        ({}, {"observation": unreachable("SecretForbidden", "secret `x`")}, "SecretForbidden", "secret `x`"),
        ({"handler": FROM_CONFIG_MAP}, {}, "HandlerSourceNotFound", "'source'"),
        ({"handler": FROM_CONFIG_MAP}, {"handler_files": {}}, "HandlerSourceNotFound", "data"),
        ({"handler": FROM_CONFIG_MAP}, {"handler_files": MANY_FILES}, "HandlerSourceTooLarge", "more than 250 files"),
    ],
)
def test_blocking_problem_names_the_object_and_the_cause(
    spec: dict[str, Any], arguments: dict[str, Any], reason: str, named: str
) -> None:
    given: dict[str, Any] = {"cluster": kafka_cluster()} | arguments
    problem = find_blocking_problem(consumer_group(**spec), given.pop("cluster"), **given)
    assert problem is not None
    assert problem.reason == reason
    assert named in problem.message


def test_nothing_blocks_a_plain_group() -> None:
    assert find_blocking_problem(consumer_group(), kafka_cluster()) is None
    assert find_blocking_problem(consumer_group(topics=None, topicPattern="^orders\\..*"), kafka_cluster()) is None
    served = consumer_group(handler={"http": {}}, template=with_containers({"name": "handler", "image": "shop"}))
    assert find_blocking_problem(served, kafka_cluster()) is None
    with_source = consumer_group(handler=FROM_CONFIG_MAP)
    assert find_blocking_problem(with_source, kafka_cluster(), handler_files={"shop.py": ""}) is None


def test_first_cause_comes_first() -> None:
    group = consumer_group(handler=FROM_CONFIG_MAP)
    problem = find_blocking_problem(group, cluster_not_found("shop", "main"), older=OLDER)
    assert problem is not None
    assert problem.reason == "ClusterNotFound"


@pytest.mark.parametrize(
    ("identity", "seen", "changed"),
    [
        (ClusterIdentity(), observation(), False),
        (ClusterIdentity(cluster_id="cluster-a"), observation(), False),
        (KNOWN, observation(), True),
        (KNOWN, unreachable(), True),
        (KNOWN, replace(unreachable(), cluster_id=None), False),
        (KNOWN, None, False),
        (CHANGED, None, True),
        (CHANGED, replace(unreachable("AuthenticationFailed"), cluster_id=None), True),
        (CHANGED, unreachable(), True),
        (CHANGED, replace(unreachable(), cluster_id="cluster-b", identified=False), True),
        (CHANGED, replace(observation(), cluster_id="cluster-b"), False),
        (KNOWN, replace(unreachable(), cluster_id="cluster-b", identified=False), False),
    ],
)
def test_fleet_stops_only_when_another_cluster_is_seen_for_sure(
    identity: ClusterIdentity, seen: ClusterObservation | None, changed: bool
) -> None:
    """Its offsets mean nothing there. A cluster that does not answer proves nothing, on either side: where another one
    answered last, workers do not start because it is silent now, nor because another observer has not heard of it."""
    problem = find_changed_id(kafka_cluster(identity=identity), seen)
    assert (problem.reason if problem else None) == ("ClusterIdChanged" if changed else None)


def test_recorded_verdict_keeps_its_message_until_an_id_is_seen() -> None:
    cluster = kafka_cluster(identity=CHANGED)
    recorded, seen = find_changed_id(cluster, None), find_changed_id(cluster, observation())
    assert recorded is not None
    assert recorded.message == "was b"
    assert seen is not None
    assert "report cluster-a" in seen.message


def claim(name: str, created_at: str = "2026-01-02T00:00:00Z", **changes: Any) -> Claim:
    base: dict[str, Any] = {"cluster": "c", "group_id": "orders", "namespace": "shop"}
    return Claim(name=name, created_at=created_at, **(base | changes))


def older_owner(mine: Claim, others: Iterable[Claim]) -> Claim | None:
    return min((other for other in others if owns_before(mine, other)), key=lambda other: other.rank, default=None)


def test_older_object_owns_the_group() -> None:
    older, younger = claim("b", "2026-01-01T00:00:00Z"), claim("a")
    assert older_owner(younger, [older]) == older
    assert older_owner(older, [younger]) is None


def test_objects_of_the_same_second_are_ordered_by_name() -> None:
    """Every operator must come to the same answer, and exactly one object may go on."""
    first, second, third = claim("a"), claim("b"), claim("b", namespace="zoo")
    assert older_owner(second, [first, third]) == first
    assert older_owner(third, [second, first]) == first
    assert older_owner(first, [second, third]) is None


@pytest.mark.parametrize("other", [{"cluster": "d"}, {"group_id": "returns"}])
def test_other_groups_and_clusters_are_no_rivals(other: dict[str, str]) -> None:
    assert older_owner(claim("b"), [claim("a", **other)]) is None


def test_claim_of_another_namespace_counts_only_where_the_same_brokers_answered() -> None:
    """Anybody's own broker can report any cluster id: an object that came first would own every group's name."""
    mine = claim("mine", answered=frozenset({"kafka-1:9092", "kafka-2:9092"}))
    foreign = claim("first", "2026-01-01T00:00:00Z", namespace="foreign", answered=frozenset({"10.6.6.6:9092"}))
    silent = replace(foreign, answered=frozenset())
    backed = replace(foreign, answered=frozenset({"kafka-2:9092"}))
    assert [older_owner(mine, [other]) for other in (foreign, silent, backed)] == [None, None, backed]
    sibling, before = replace(foreign, namespace="shop"), replace(foreign, answered=None)
    assert [older_owner(mine, [other]) for other in (sibling, before)] == [sibling, before]


OLD = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize("use", [Use.RAN, Use.NONE, Use.ASLEEP])
@pytest.mark.parametrize("right", [True, None])
def test_older_claim_without_workers_takes_no_group_from_a_fleet_that_runs(use: Use, right: bool | None) -> None:
    mine, other = claim("mine", use=Use.RUNS), claim("x", OLD, namespace="evil", use=use, may_read=right)
    assert older_owner(mine, [other]) is None
    assert older_owner(other, [mine]) == mine, "two fleets never run in one Kafka group"


def test_login_without_the_right_to_be_a_member_claims_nothing_in_another_namespace() -> None:
    mine = claim("mine")
    for use in Use:
        other = claim("x", OLD, namespace="evil", use=use, may_read=False)
        assert older_owner(mine, [other]) is None
        assert older_owner(other, [replace(mine, use=Use.RUNS, may_read=True)]) is not None


def test_what_is_unknown_stops_no_fleet_and_starts_none_next_to_one_that_runs() -> None:
    unknown = claim("x", OLD, namespace="other", use=Use.RUNS)
    for right in (True, None):
        assert older_owner(claim("mine", use=Use.RUNS, may_read=right), [unknown]) is None
        assert older_owner(claim("mine", use=Use.NONE, may_read=right), [unknown]) == unknown
    asleep = replace(unknown, use=Use.RAN)
    assert older_owner(claim("mine", may_read=True), [asleep]) == asleep, "a new operator knows no rights yet"
    never = replace(unknown, use=Use.NONE)
    assert older_owner(claim("mine", may_read=True), [never]) is None
    assert older_owner(claim("mine"), [never]) == never


def test_of_claims_in_other_namespaces_with_an_unknown_right_those_of_fleets_inherit() -> None:
    """A sleeper keeps nobody in another namespace from deleting; a fleet may need its commits."""
    mine = claim("mine", may_read=True)
    for use in Use:
        other = claim("x", namespace="other", use=use)
        rights = [inherits(mine, replace(other, may_read=right)) for right in (True, None, False)]
        assert rights == [True, use in (Use.RUNS, Use.RAN), False]
        assert inherits(mine, replace(other, namespace="shop"))
        assert not inherits(mine, replace(other, may_read=True, group_id="returns"))


def test_where_everybody_may_read_what_ran_goes_first_and_then_the_oldest_that_is_not_suspended() -> None:
    uses = (Use.RUNS, Use.RAN, Use.NONE, Use.ASLEEP)
    ranked = [
        claim(f"{use}", at, namespace=f"{use}", use=use, may_read=True)
        for use in uses
        for at in (OLD, "2026-01-02T00:00:00Z")
    ]
    for place, each in enumerate(ranked):
        assert older_owner(each, ranked) == (ranked[0] if place else None)
        assert [older_owner(each, [other]) is None for other in ranked] == [n >= place for n in range(len(ranked))]


def test_fleet_waits_for_an_offsets_topic_that_the_operator_creates() -> None:
    """A worker's first join would have a broker create it, with the broker's settings and for good."""
    provision = kafka_cluster(offsetsTopic={"manage": "Provision"})
    absent = observation(offsets_topic=None)
    problem = find_blocking_problem(consumer_group(), provision, observation=absent)
    assert problem is not None
    assert problem.reason == "OffsetsTopicAbsent"
    assert "OffsetsTopicSized of the KafkaCluster" in problem.message
    forbidden = observation(offsets_topic=None, offsets_topic_error="AuthorizationFailed")
    never = ClusterObservation(observed_at=0.0, reachable=False, connection=provision.spec.connection)
    for unsure in (replace(absent, reachable=False, unconfirmed=True), never):
        found = find_blocking_problem(consumer_group(), provision, observation=unsure)
        assert found is not None
        assert found.reason == "OffsetsTopicAbsent", "nobody knows: a worker could have it created"
    seen_before = kafka_cluster(offsetsTopic={"manage": "Provision"}, identity=ClusterIdentity(had_offsets_topic=True))
    for cluster, seen in (
        (seen_before, never),
        (kafka_cluster(), absent),
        (provision, observation()),
        (provision, forbidden),
        (provision, unreachable()),
        (provision, None),
    ):
        assert find_blocking_problem(consumer_group(), cluster, observation=seen) is None
