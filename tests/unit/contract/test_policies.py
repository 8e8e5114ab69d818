"""The policies file is taken as a whole or refused with the place and the reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.contract.policies import (
    Budget,
    BudgetAction,
    HeaderProfile,
    PolicyInvalid,
    Rule,
    Then,
    parse_policies,
)
from tests.unit.retry.policies import OTHER, REVISION, UNKNOWN, document, policies, revision

BUDGET = {"maxFailurePercent": 50, "windowSeconds": 60, "minRecords": 100, "action": "Pause", "cooldownSeconds": 30}


def changed(path: str, value: Any) -> dict[str, Any]:
    """A good file with one field replaced; `path` is dotted, and `-` in place of a value takes the field away."""
    found = document("5s", "30s", classify=[{"when": {"exception": "ValueError"}, "then": "Fail"}], budget=dict(BUDGET))
    place: Any = found
    *steps, last = path.split(".")
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if value == "-":
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return found


def test_every_field_of_the_file_is_read() -> None:
    rules = [
        {"when": {"exception": "shop.OutOfStock"}, "then": "Retry"},
        {"when": {"httpStatus": "4xx"}, "then": "Fail"},
        {"when": {"messageRegex": "duplicate key"}, "then": "Drop"},
    ]
    found = policies("5s", "300s", "5s", classify=rules, budget=BUDGET, maxTotalSeconds=86_400, headerProfile="Spring")
    newest = found.newest
    assert (newest.sequence, newest.label, found.delays) == ((5, 300, 5), f"standard@{REVISION}", ("5m", "5s"))
    assert [rule.then for rule in newest.rules] == [Then.RETRY, Then.FAIL, Then.DROP]
    assert [rule.name for rule in newest.rules] == [
        "exception=shop.OutOfStock",
        "httpStatus=4xx",
        "messageRegex=duplicate key",
    ]
    assert newest.rules[0] == Rule(Then.RETRY, exception="shop.OutOfStock")
    assert newest.budget == Budget(
        max_failure_percent=50, window_s=60, min_records=100, action=BudgetAction.PAUSE, cooldown_s=30
    )
    assert (newest.max_total_s, newest.header_profile) == (86_400, HeaderProfile.SPRING)


def test_record_follows_its_own_revision_and_an_unknown_one_follows_the_newest() -> None:
    found = policies("5s", others={OTHER: revision("1h", "1h")})
    assert found.find_revision(OTHER)[0].sequence == (3600, 3600)
    assert found.find_revision(OTHER)[1]
    assert found.find_revision(UNKNOWN) == (found.newest, False)
    assert found.find_revision(None) == (found.newest, True)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("version", 2, "policies.json.version: must be 1 to 1"),
        ("policy", "", "policies.json.policy: must be a non-empty string"),
        ("current", UNKNOWN, "not one of the revisions"),
        ("current", "../../etc", "does not match"),
        ("delays", [], "at least 1 entry"),
        ("delays", ["5s", "60s", "30s"], "delays[1]: is '60s'; write the canonical form '1m'"),
        ("delays", ["5s"], "lacks 30s, which a revision uses"),
        ("partitions", 0, "at least 1"),
        ("maxMessageBytes", True, "must be a whole number"),
        ("surprise", 1, "surprise: is not a setting"),
        (f"revisions.{REVISION}.sequence", [], "at least 1 entry"),
        (f"revisions.{REVISION}.sequence", ["5s"] * 101, "at most 100"),
        (f"revisions.{REVISION}.sequence", [f"{n}s" for n in range(1, 18)], "17 different delays, and each"),
        (f"revisions.{REVISION}.sequence", ["5s", "5 minutes"], "sequence[1]: '5 minutes' is not a delay"),
        (f"revisions.{REVISION}.undecodable", "Perhaps", "allowed are Retry, Fail, Drop"),
        (f"revisions.{REVISION}.headerProfile", "Share", "allowed are Native, Spring"),
        (f"revisions.{REVISION}.maxTotalSeconds", 0, "at least 1"),
        (f"revisions.{REVISION}.maxTotalSeconds", "-", "maxTotalSeconds: is missing"),
        (f"revisions.{REVISION}.classify.0.when", {}, "exactly one of exception, httpStatus, messageRegex"),
        (f"revisions.{REVISION}.classify.0.when", {"exception": "A", "httpStatus": "500"}, "exactly one of"),
        (f"revisions.{REVISION}.classify.0.when", {"httpStatus": "5x"}, "does not match"),
        (f"revisions.{REVISION}.classify.0.when", {"messageRegex": "("}, "not a usable regular expression"),
        (f"revisions.{REVISION}.classify.0.when", {"messageRegex": "(?=a)a"}, "the syntax is RE2's"),
        (f"revisions.{REVISION}.classify.0.when", {"exception": "A", "unless": "B"}, "unless: is not a setting"),
        (f"revisions.{REVISION}.classify.0.then", "Block", "allowed are Retry, Fail, Drop"),
        (f"revisions.{REVISION}.classify", "all", "must be a list of at most 50 rules"),
        (f"revisions.{REVISION}.budget.maxFailurePercent", 0, "1 to 100"),
        (f"revisions.{REVISION}.budget.action", "Explode", "allowed are Pause, Fail, None"),
        ("revisions", {}, "must map revisions"),
        ("revisions", {"x": {}}, "'x', which is not a revision"),
    ],
)
def test_bad_field_is_refused_with_its_place_and_the_reason(path: str, value: Any, told: str) -> None:
    with pytest.raises(PolicyInvalid) as refused:
        parse_policies(changed(path, value))
    assert told in str(refused.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=12,
    )
)
def test_anything_that_is_json_is_read_or_refused(anything: Any) -> None:
    with pytest.raises(PolicyInvalid):
        parse_policies(anything)


@given(st.sampled_from(sorted(document("5s"))), st.none() | st.integers() | st.lists(st.integers(), max_size=2))
def test_damaged_field_never_crashes_the_reader(name: str, value: Any) -> None:
    damaged = document("5s") | {name: value}
    try:
        parse_policies(damaged)
    except PolicyInvalid:
        return
    assert name in ("partitions", "maxMessageBytes", "version")
