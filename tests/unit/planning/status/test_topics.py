"""Topics in the status of a group: named ones, those of a pattern, outputs and the failed topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fleet_operator.planning.observation import (
    TopicObservation,
)
from fleet_operator.planning.problem import Problem
from tests.unit.planning.builders import (
    consumer_group,
    facts,
    observation,
    observed_group,
)
from tests.unit.planning.status.projecting import (
    FAILED_TOPIC,
    MISSING,
    condition,
    message,
    project,
)


@pytest.mark.parametrize(
    ("topics", "verdict"),
    [
        ({"orders": MISSING} | FAILED_TOPIC, ("False", "TopicNotFound")),
        ({"orders": TopicObservation(partitions=4)}, ("Unknown", "NotYetObserved")),
        ({"orders": TopicObservation(partitions=4), "_fleet.orders.failed": MISSING}, ("False", "TopicNotCreated")),
        (FAILED_TOPIC, ("Unknown", "NotYetObserved")),
        (
            {"orders": TopicObservation(partitions=0, error="AuthorizationFailed")} | FAILED_TOPIC,
            ("False", "AuthorizationFailed"),
        ),
    ],
)
def test_topics(topics: Mapping[str, TopicObservation], verdict: tuple[str, str]) -> None:
    assert condition(project(facts(observation=observation(topics=topics))), "TopicsReady") == verdict


PATTERN: dict[str, Any] = {"topics": None, "topicPattern": "^orders.*"}


TWO_MATCH = {
    "orders": TopicObservation(partitions=4),
    "orders.eu": TopicObservation(partitions=2),
    "payments": TopicObservation(partitions=9),
    "_fleet.orders.failed": TopicObservation(partitions=4),
}


def test_pattern_counts_the_topics_that_match_and_no_other() -> None:
    group = consumer_group(replicas=2, **PATTERN)
    ends = {("orders", n): 100 for n in range(4)} | {("orders.eu", n): 7 for n in range(2)}
    seen = observation(
        observed_group(end_offsets=ends, log_starts=dict.fromkeys(ends, 0)),
        topics=TWO_MATCH,
        matches={"^orders.*": ("orders", "orders.eu")},
    )
    status = project(facts(group=group, observation=seen))
    assert (status["partitions"], status["lagApproximate"]) == (6, 8)
    assert condition(status, "TopicsReady") == ("True", "TopicsExist")


def test_pattern_without_a_match_is_reported() -> None:
    group = consumer_group(topics=None, topicPattern="^invoices")
    seen = observation(topics=TWO_MATCH, matches={"^invoices": ()})
    status = project(facts(group=group, observation=seen))
    assert condition(status, "TopicsReady") == ("False", "TopicNotFound")
    assert "'^invoices'" in message(status, "TopicsReady")


def test_topics_of_a_pattern_are_unknown_until_a_poll_was_made_with_it() -> None:
    group = consumer_group(**PATTERN)
    status = project(facts(group=group, observation=observation(topics=TWO_MATCH, matches={"^others": ()})))
    assert condition(status, "TopicsReady") == ("Unknown", "NotYetObserved")
    assert "partitions" not in status


def test_missing_output_topic_is_named() -> None:
    group = consumer_group(handler={"python": {"callable": "a:b"}, "outputs": ["done"]})
    topics = {"orders": TopicObservation(partitions=4), "done": MISSING} | FAILED_TOPIC
    status = project(facts(group=group, observation=observation(topics=topics)))
    assert condition(status, "TopicsReady") == ("False", "TopicNotFound")
    assert "done" in message(status, "TopicsReady")


def test_failed_topic_that_cannot_be_created_is_reported() -> None:
    problem = Problem("AuthorizationFailed", "grant Create on topic _fleet.orders.failed")
    given = facts(observation=observation(topics={"orders": TopicObservation(partitions=4)}), topic_problem=problem)
    assert condition(project(given), "TopicsReady") == ("False", "AuthorizationFailed")
