"""Settings of topics: asked about once a minute, in parts, and never guessed."""

from __future__ import annotations

from fleet_consumer.wire.admin import (
    TOPIC_RESOURCE,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_operator.observe.flow import (
    FRESH_SECONDS,
    TOPICS_PER_POLL_MAX,
    TOPICS_PER_REQUEST_MAX,
    TopicConfigs,
)


def names(requests: list[DescribeConfigsRequest]) -> list[str]:
    return [resource.resource_name for request in requests for resource in request.resources]


def answer(*topics: str, error: ErrorCode = ErrorCode.NONE, value: str = "delete") -> DescribeConfigsResponse:
    entry = DescribeConfigsResourceResult(
        name="cleanup.policy", value=value, read_only=False, is_sensitive=False, synonyms=()
    )
    results = tuple(
        DescribeConfigsResult(
            error_code=error, error_message=None, resource_type=TOPIC_RESOURCE, resource_name=topic, configs=(entry,)
        )
        for topic in topics
    )
    return DescribeConfigsResponse(throttle_time_ms=0, results=results)


def test_answer_counts_for_a_minute() -> None:
    facts = TopicConfigs()
    assert names(facts.requests({"a", "b"}, 0.0)) == ["a", "b"]
    facts.record_response(answer("a"), 0.0)
    assert facts.known("a") == {"cleanup.policy": "delete"}
    assert facts.known("b") is None
    assert names(facts.requests({"a", "b"}, 1.0)) == ["b"]
    assert names(facts.requests({"a", "b"}, FRESH_SECONDS)) == ["a", "b"]


def test_topic_that_was_changed_is_asked_at_once_and_unknown_until_then() -> None:
    facts = TopicConfigs()
    facts.record_response(answer("a", "b"), 0.0)
    facts.invalidate(["a"])
    assert facts.known("a") is None
    assert names(facts.requests({"a", "b"}, 1.0)) == ["a"]


def test_settings_that_may_not_be_read_are_unknown_and_not_asked_all_the_time() -> None:
    facts = TopicConfigs()
    facts.record_response(answer("a"), 0.0)
    facts.record_response(answer("a", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED), FRESH_SECONDS)
    assert facts.known("a") is None
    assert names(facts.requests({"a"}, FRESH_SECONDS + 1)) == []


def test_topic_that_the_asked_broker_does_not_know_yet_is_asked_in_the_next_poll() -> None:
    facts = TopicConfigs()
    facts.record_response(answer("a", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 0.0)
    assert names(facts.requests({"a"}, 1.0)) == ["a"]


def test_flood_of_topics_is_spread_over_polls_the_new_ones_first() -> None:
    facts = TopicConfigs()
    old = [f"old-{n:05}" for n in range(TOPICS_PER_POLL_MAX)]
    facts.record_response(answer(*old), 0.0)
    new = {f"new-{n}" for n in range(10)}
    requests = facts.requests({*old, *new}, FRESH_SECONDS)
    asked = names(requests)
    assert new < set(asked)
    assert len(asked) == TOPICS_PER_POLL_MAX
    assert max(len(request.resources) for request in requests) <= TOPICS_PER_REQUEST_MAX


def test_unwanted_topic_is_forgotten() -> None:
    facts = TopicConfigs()
    facts.record_response(answer("a"), 0.0)
    assert facts.requests(set(), 1.0) == []
    assert facts.known("a") is None
