"""A RetryPolicy expanded, in the form that workers read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.contract import naming
from fleet_consumer.contract.policies import parse_policies
from fleet_operator.api.v1alpha1 import RetryPolicy
from fleet_operator.planning import times
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import DelayState, PolicyRevision, expand, read_policy
from fleet_operator.planning.retry.records import (
    Published,
    group_config_map,
    policy_config_map,
    read_policy_record,
    read_published,
)
from fleet_operator.planning.state.group import RetriesState
from fleet_operator.planning.status.retry import project_retrypolicy_status
from tests.unit.planning.builders import consumer_group

HEADLINE = ["5m", "5m", "30m", "30m", "30m", "1h"]


def policy(**spec: Any) -> RetryPolicy:
    metadata = {"name": "standard", "namespace": "shop", "uid": "p1"}
    return RetryPolicy.model_validate({"metadata": metadata, "spec": spec or {"sequence": HEADLINE}})


def refusal(**spec: Any) -> Problem:
    found = read_policy({"metadata": {"name": "standard", "namespace": "shop", "uid": "p1"}, "spec": spec})
    assert isinstance(found, Problem)
    return found


def published(*revisions: PolicyRevision, **changes: Any) -> Published:
    base = {"policy": "standard", "current": revisions[-1].hash, "known": revisions, "partitions": 4}
    return Published(**{**base, "max_message_bytes": 1_114_124, **changes})


EVERYTHING = policy(
    sequence=["90s", "60s", "1m", "24h"],
    classify=[
        {"when": {"exception": "shop.errors.OutOfStock"}, "then": "Retry"},
        {"when": {"httpStatus": "4xx"}, "then": "Fail"},
        {"when": {"messageRegex": "duplicate (key|row)"}, "then": "Drop"},
    ],
    undecodable="Drop",
    maxTotalSeconds=3600,
    headerProfile="Spring",
    budget={"action": "Fail"},
)


@pytest.mark.parametrize("made", [policy(), EVERYTHING, policy(generate={"initial": "1s", "count": 16, "max": "7d"})])
def test_workers_parse_the_published_file(made: RetryPolicy) -> None:
    """Their parser is strict: it refuses fields that it does not know."""
    revision = expand(made)
    policies = parse_policies(published(revision).file)
    assert policies.newest.revision == revision.hash
    assert [naming.canonical_delay(delay) for delay in policies.newest.sequence] == list(revision.sequence)


def test_too_many_different_delays_are_refused() -> None:
    problem = refusal(sequence=[f"{n}s" for n in range(1, 18)])
    assert problem.reason == "TooManyDelays"
    assert problem.message == (
        "RetryPolicy 'standard' has 17 different delays, and each needs its own topic: "
        "use at most 16 (the same delay may occur several times)"
    )


def test_pattern_that_re2_does_not_take_is_refused() -> None:
    problem = refusal(sequence=["1s"], classify=[{"when": {"messageRegex": "(?=a)b"}, "then": "Fail"}])
    assert problem.reason == "MessageRegexRefused"
    assert problem.message.startswith("RetryPolicy 'standard', spec.classify, messageRegex: '(?=a)b' is no")


def test_spec_that_only_another_crd_accepts_is_refused() -> None:
    problem = refusal(sequence=["1s"], generate={"initial": "1s", "count": 1})
    assert problem.reason == "SpecInvalid"
    assert problem.message.startswith("RetryPolicy 'standard': spec: must have exactly one of")


def shown_of(revision: PolicyRevision) -> dict[str, Any]:
    return project_retrypolicy_status(revision, generation=1, groups=0, previous={}, now=0.0)


def test_text_of_the_headline_sequence() -> None:
    revision = expand(policy())
    shown = shown_of(revision)
    assert (shown["delaysText"], shown["totalText"]) == ("5m,5m,30m,30m,30m,1h", "2h40m")
    assert times.duration_text(90) == "1m30s"
    assert times.duration_text(7 * 86_400 + 61) == "7d1m"
    many = replace(revision, content={**revision.content, "sequence": ["604799s"] * 200})
    assert len(shown_of(many)["delaysText"]) == 1024


@given(st.lists(st.integers(1, naming.DELAY_SECONDS_MAX), min_size=1, max_size=16))
def test_any_published_file_is_read_back(seconds: list[int]) -> None:
    revision = expand(policy(sequence=[f"{s}s" if s < 10**6 else "7d" for s in seconds]))
    older = replace(expand(policy(sequence=["5m"], maxTotalSeconds=77)), superseded_at=1_799_999_000.0)
    retiring = {"9s": DelayState.DRAINING, "11s": DelayState.LEAVING}
    retiring = {delay: state for delay, state in retiring.items() if delay not in revision.sequence}
    told = published(older, revision, retiring=retiring, published_at=1_800_000_000.0)
    body = group_config_map(consumer_group(retry={"policyRef": {"name": "standard"}}), told)
    read = read_published(json.loads(json.dumps(body)), told.state(RetriesState()))
    assert read is not None
    assert sorted(r.hash for r in read.known) == sorted(r.hash for r in told.known)
    assert (read.file, read.leaving, read.published_at) == (told.file, told.leaving, told.published_at)
    assert read.states == told.states
    assert {r.hash: r.superseded_at for r in read.known} == {r.hash: r.superseded_at for r in told.known}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', "null"])
def test_damaged_records_count_as_not_there(text: str) -> None:
    body = {"metadata": {"name": "orders-retry"}, "data": {"policies.json": text}}
    assert read_published(body, RetriesState()) is None
    assert read_policy_record({"metadata": {}, "data": {"policy.json": text}}) is None


def test_edited_policies_file_is_not_read_back() -> None:
    """Somebody edited the group's ConfigMap: it is written again, from the policy."""
    body = group_config_map(consumer_group(retry={"policyRef": {"name": "standard"}}), published(expand(policy())))
    body["data"]["policies.json"] = body["data"]["policies.json"].replace('"undecodable": "Fail"', '"undecodable": 7')
    assert '"undecodable": 7' in body["data"]["policies.json"]
    assert read_published(body, RetriesState()) is None


def test_policy_record_is_valid_only_if_its_hash_matches() -> None:
    revision = expand(policy())
    record = policy_config_map({"name": "standard", "namespace": "shop", "uid": "p1"}, revision)
    assert read_policy_record(record) == revision
    record["data"]["policy.json"] = record["data"]["policy.json"].replace("30m", "31m")
    assert read_policy_record(record) is None
