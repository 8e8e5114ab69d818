"""RetryPolicies and Redrives that the API server refuses, for test_crd_rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.api.crd_objects import REMOVED, JsonObject, redrive, retry_policy


def classified(when: JsonObject, then: str = "Fail") -> JsonObject:
    """A RetryPolicy with this one rule."""
    return retry_policy({"spec.classify": [{"when": when, "then": then}]})


RETRY_RULES: list[tuple[str, JsonObject, str]] = [
    (
        "a Redrive with a long name",
        redrive({"metadata.name": "a" * 41}),
        "metadata.name must be a DNS label of at most 40",
    ),
    (
        "a Redrive of no time at all",
        redrive({"spec.filter": {"fromTime": "2026-01-31T12:00:00Z", "toTime": "2026-01-31T13:00:00+01:00"}}),
        "spec.filter.fromTime must be before spec.filter.toTime",
    ),
    (
        "an error pattern that is none",
        redrive({"spec.filter": {"errorRegex": "("}}),
        "spec.filter.errorRegex must be a regular expression",
    ),
    (
        "a key pattern with look-ahead",
        redrive({"spec.filter": {"keyRegex": "a(?=b)"}}),
        "spec.filter.keyRegex must be a regular expression",
    ),
    ("a policy with a long name", retry_policy({"metadata.name": "a" * 64}), "metadata.name must be a DNS label of at"),
    (
        "a policy with two ways of telling delays",
        retry_policy({"spec.generate": {"initial": "1s", "count": 1}}),
        "spec needs exactly one of sequence",
    ),
    ("a policy without delays", retry_policy({"spec.sequence": REMOVED}), "spec needs exactly one of sequence"),
    ("a delay in words", retry_policy({"spec.sequence": ["5m", "soon"]}), "a delay is a whole number"),
    ("a delay with a leading zero", retry_policy({"spec.sequence": ["05m"]}), "a delay is a whole number"),
    ("a delay in milliseconds", retry_policy({"spec.sequence": ["500ms"]}), "a delay is a whole number"),
    ("no delay at all", retry_policy({"spec.sequence": ["0s"]}), "a delay is a whole number"),
    ("a delay of more than a week", retry_policy({"spec.sequence": ["169h"]}), "a delay may be 7d at most"),
    (
        "a series that begins with more than a week",
        retry_policy({"spec.sequence": REMOVED, "spec.generate": {"initial": "8d", "count": 2}}),
        "a delay may be 7d at most",
    ),
    (
        "a rule of two conditions",
        classified({"exception": "ValueError", "httpStatus": "500"}),
        "a rule of spec.classify matches by exactly one",
    ),
    ("a rule without a condition", classified({}), "a rule of spec.classify matches by exactly one"),
    ("an exception that is not a name", classified({"exception": "a-b"}), "spec.classify.when.exception is"),
    ("a status that is none", classified({"httpStatus": "6xx"}), "spec.classify.when.httpStatus is"),
    ("a message pattern that is none", classified({"messageRegex": "("}), "spec.classify.when.messageRegex must be"),
]

RETRY_SCHEMA: list[tuple[str, JsonObject, str]] = [
    ("a policy of no attempts", retry_policy({"spec.sequence": []}), "spec.sequence"),
    ("a policy of too many attempts", retry_policy({"spec.sequence": ["1s"] * 101}), "spec.sequence"),
    ("an unknown decision", classified({"httpStatus": "500"}, "Ignore"), "spec.classify[0].then"),
    ("a retry of what cannot be decoded", retry_policy({"spec.undecodable": "Retry"}), "spec.undecodable"),
    (
        "more failures than records",
        retry_policy({"spec.budget": {"action": "Pause", "maxFailurePercent": 101}}),
        "spec.budget.maxFailurePercent",
    ),
    ("a budget without an action", retry_policy({"spec.budget": {}}), "spec.budget.action"),
    ("a filter of no reasons", redrive({"spec.filter": {"reasons": []}}), "spec.filter.reasons"),
    ("a rate without a number", redrive({"spec.rate": {}}), "spec.rate.recordsPerSecond"),
    ("a Redrive of nothing", redrive({"spec.groupRef": REMOVED}), "spec.groupRef"),
    ("an unknown reason", redrive({"spec.filter": {"reasons": ["bad-luck"]}}), "spec.filter.reasons[0]"),
    ("a time that is none", redrive({"spec.filter": {"fromTime": "yesterday"}}), "spec.filter.fromTime"),
    ("no records at all", redrive({"spec.maxRecords": 0}), "spec.maxRecords"),
    ("none of the records", redrive({"spec.records": []}), "spec.records"),
    ("a record of nowhere", redrive({"spec.records": [{"offset": 5}]}), "spec.records[0].partition"),
    ("a record below zero", redrive({"spec.records": [{"partition": 0, "offset": -1}]}), "spec.records[0].offset"),
    ("no records in a second", redrive({"spec.rate": {"recordsPerSecond": 0}}), "spec.rate.recordsPerSecond"),
    (
        "a record named twice",
        redrive({"spec.records": [{"partition": 1, "offset": 5}, {"partition": 1, "offset": 5}]}),
        "spec.records[1]",
    ),
]

REDRIVE_IMMUTABLE: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
    ("another group", {}, {"spec.groupRef": {"name": "other"}}),
    ("a filter added", {}, {"spec.filter": {"reasons": ["Fatal"]}}),
    ("a filter changed", {"spec.filter": {"keyRegex": "a"}}, {"spec.filter": {"keyRegex": "b"}}),
    ("a filter taken away", {"spec.filter": {"keyRegex": "a"}}, {"spec.filter": REMOVED}),
    ("a limit added", {}, {"spec.maxRecords": 5}),
    ("a limit changed", {"spec.maxRecords": 5}, {"spec.maxRecords": 6}),
    ("another loop guard", {}, {"spec.maxRedrives": 9}),
    ("records added", {}, {"spec.records": [{"partition": 0, "offset": 5}]}),
    (
        "another record",
        {"spec.records": [{"partition": 0, "offset": 5}]},
        {"spec.records": [{"partition": 0, "offset": 6}]},
    ),
    ("a dry run made real", {"spec.dryRun": True}, {"spec.dryRun": False}),
]
REDRIVE_IMMUTABLE_WORDS = "spec is immutable except suspend, rate and ttlSecondsAfterFinished"
