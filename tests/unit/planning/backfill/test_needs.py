"""Obstacles and refusals of a Backfill."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.backfill.needs import (
    find_handler_refusal,
    find_obstacle,
    find_refusal,
    missing_topic,
    other_topics,
    source_topic,
)
from fleet_operator.planning.claims import Claim
from fleet_operator.planning.fleet.worker_config import worker_config
from fleet_operator.planning.problem import Problem
from tests.unit.planning import builders
from tests.unit.planning.backfill.things import backfill, surroundings

OAUTH = {"mechanism": "OAUTHBEARER", "secretRef": {"name": "s"}, "oauth": {"tokenEndpoint": "https://x/token"}}
PAUSED = {"consumerfleet.io/paused": "true"}
CLAIM = Claim(cluster="cluster-a", group_id="orders", created_at="2026", namespace="shop", name="first")
OBSTACLES: dict[str, tuple[dict[str, Any], str]] = {
    "no group": ({"group": None}, "GroupNotFound"),
    "a paused group": ({"group": builders.consumer_group(annotations=PAUSED)}, "PausedByAnnotation"),
    "no cluster": ({"cluster": Problem("ClusterNotFound", "create it")}, "ClusterNotFound"),
    "an older owner": ({"older": CLAIM}, "GroupIdTaken"),
    "another cluster": ({"cluster": builders.kafka_cluster(status={"clusterId": "cluster-z"})}, "ClusterIdChanged"),
    "no observation": ({"seen": None}, "NotYetObserved"),
    "an old observation": ({"seen": builders.observation(current=False)}, "NotYetObserved"),
    "brokers that do not answer": ({"seen": builders.unreachable()}, "BrokerUnreachable"),
    "a cluster without an id": ({"seen": builders.observation(identified=False)}, "NotYetObserved"),
}


def obstacle(**changes: Any) -> Problem | None:
    return find_obstacle(backfill(), surroundings(**changes))


def test_nothing_keeps_a_good_one_from_beginning() -> None:
    assert obstacle() is None
    assert find_refusal(backfill(), builders.consumer_group()) is None


@pytest.mark.parametrize("case", OBSTACLES)
def test_obstacle_has_a_reason_and_says_what_to_do(case: str) -> None:
    changes, reason = OBSTACLES[case]
    problem = obstacle(**changes)
    assert problem is not None
    assert (problem.reason, bool(problem.message)) == (reason, True)


def test_first_obstacle_is_the_root_cause() -> None:
    problem = obstacle(group=builders.consumer_group(annotations=PAUSED), seen=None)
    assert problem is not None
    assert problem.reason == "PausedByAnnotation"


def refusal(group: dict[str, Any] | None = None, **spec: Any) -> str | None:
    problem = find_refusal(backfill(**spec), builders.consumer_group(**(group or {})))
    return problem.reason if problem is not None else None


def test_specs_that_can_never_be_carried_out() -> None:
    assert refusal(filter={"keyRegex": "("}) == "FilterRefused"
    assert refusal(spark={"sparkConf": {"spark.kubernetes.namespace": "x"}}) == "SparkConfRefused"
    assert refusal({"topics": ["a", "b"]}) == "SourceTopicRequired"
    assert refusal({"topics": None, "topicPattern": "^orders"}) == "SourceTopicRequired"
    assert refusal({"topics": ["a", "b"]}, source={"topic": "b"}) is None


@pytest.mark.parametrize("name", ["orders", "_fleet.orders.failed", "__consumer_offsets", "orders-done"])
def test_live_topics_are_no_sink(name: str) -> None:
    handler = {"python": {"callable": "shop:handle"}, "outputs": ["orders-done"]}
    assert refusal({"handler": handler}, sink={"topic": {"name": name}}) == "SinkTopicRefused"


def test_topic_of_the_groups_pattern_is_no_sink() -> None:
    group = {"topics": None, "topicPattern": "^orders.*"}
    wanted = {"source": {"topic": "archive"}}
    assert refusal(group, **wanted, sink={"topic": {"name": "orders-2"}}) == "SinkTopicRefused"
    assert refusal(group, **wanted, sink={"topic": {"name": "archive"}}) == "SinkTopicRefused", "the source itself"
    assert refusal(group, **wanted, sink={"topic": {"name": "results"}}) is None


def test_topics_that_are_written_to_must_exist() -> None:
    group = builders.consumer_group()
    body = backfill(sink={"topic": {"name": "results"}}, onError="FailedTopic")
    assert other_topics(body, group) == ("results", "_fleet.orders.failed")
    assert other_topics(backfill(dryRun=True, onError="FailedTopic"), group) == ()
    assert missing_topic(group, ()) is None
    reasons = [missing_topic(group, (name,)) for name in other_topics(body, group)]
    assert [problem.reason for problem in reasons if problem] == ["SinkTopicNotFound", "FailedTopicNotFound"]


def handler(spec: dict[str, Any], **more: Any) -> str | None:
    group = builders.consumer_group(handler=spec)
    worker = worker_config(group, builders.kafka_cluster()) | {"revision": "r"}
    problem = find_handler_refusal(backfill(**more), worker)
    return problem.reason if problem is not None else None


def test_handlers_that_spark_can_run() -> None:
    mounted = {"python": {"callable": "shop:handle", "configMapRef": {"name": "source"}}}
    assert handler(mounted) is None
    assert handler({"http": {}}) is None
    candidate = {"callable": "shop:next", "image": "candidate:1"}
    assert handler({"http": {}}, compare=candidate) == "HandlerUnsupported"
    assert handler({"python": {"callable": "shop:handle"}}) == "SparkImageRequired"
    assert handler({"python": {"callable": "shop:handle"}}, spark={"image": "shop-spark:1"}) is None


def test_source_is_the_only_topic() -> None:
    assert source_topic(backfill(), builders.consumer_group()) == "orders"
    assert source_topic(backfill(source={"topic": "old"}), builders.consumer_group()) == "old"


def test_template_that_no_pod_may_have_is_an_obstacle() -> None:
    template = {"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}}
    around = surroundings()
    problem = find_obstacle(backfill(), replace(around, group=builders.consumer_group(template=template)))
    assert problem is not None
    assert problem.reason == "TemplateRefused"
