"""A RetryPolicy's spec expands to one content, within the bounds of the CRD, and is refused by its first bad field."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet_consumer.contract.naming import content_hash
from fleet_consumer.contract.policies import PolicyInvalid, TooManyDelays, parse_policies, render_policies
from fleet_consumer.contract.policy_expansion import expand_policy
from fleet_consumer.contract.section import PatternInvalid, SettingsInvalid
from fleet_operator.api.v1alpha1 import RetryPolicy
from fleet_operator.planning.retry.intent import expand

ROOT = Path(__file__).resolve().parents[3]
CRD = yaml.safe_load((ROOT / "crds" / "consumerfleet.io_retrypolicies.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
EVERYTHING: dict[str, Any] = {
    "sequence": ["90s", "60s", "1m", "24h"],
    "classify": [
        {"when": {"exception": "shop.errors.OutOfStock"}, "then": "Retry"},
        {"when": {"httpStatus": "4xx"}, "then": "Fail"},
        {"when": {"messageRegex": "duplicate (key|row)"}, "then": "Drop"},
    ],
    "undecodable": "Drop",
    "maxTotalSeconds": 3600,
    "headerProfile": "Spring",
    "budget": {"action": "Fail", "minRecords": 7},
}
SPECS: list[dict[str, Any]] = [
    {"sequence": ["5m", "5m", "30m", "30m", "30m", "1h"]},
    {"sequence": ["7d"] * 100},
    {"generate": {"initial": "1s", "count": 16, "max": "7d"}},
    {"generate": {"initial": "10s", "factorPercent": 150, "count": 6}},
    {"sequence": ["1s"], "budget": {"action": "Pause"}},
    EVERYTHING,
]


def refusal(spec: object) -> str:
    with pytest.raises(SettingsInvalid) as caught:
        expand_policy(spec, "spec")
    return str(caught.value)


def file(content: Mapping[str, Any]) -> dict[str, Any]:
    """The policies.json whose only revision has this content."""
    name, delays = content_hash(content), sorted(set(content["sequence"]))
    return render_policies(
        "standard", {name: content}, current=name, delays=delays, partitions=4, max_message_bytes=70_000
    )


def changed(path: str, value: object) -> dict[str, Any]:
    """EVERYTHING with one field set; parts of `path` are names or numbers, and `...` takes the field out."""
    spec = copy.deepcopy(EVERYTHING)
    *parents, last = path.split(".")
    target: Any = spec
    for part in parents:
        target = target[int(part) if part.isdigit() else part]
    if value is ...:
        del target[last]
    else:
        target[int(last) if last.isdigit() else last] = value
    return spec


@pytest.mark.parametrize("spec", SPECS)
def test_workers_read_what_a_spec_expands_to(spec: dict[str, Any]) -> None:
    """Their parser is strict: it refuses fields that it does not know."""
    content = expand_policy(spec, "spec")
    policies = parse_policies(file(content))
    assert policies.newest.label == f"standard@{content_hash(content)}"
    assert (policies.partitions, policies.max_message_bytes) == (4, 70_000)


@pytest.mark.parametrize("spec", SPECS)
def test_models_of_the_operator_give_the_content_of_the_manifest(spec: dict[str, Any]) -> None:
    policy = RetryPolicy.model_validate({"metadata": {"name": "standard"}, "spec": spec})
    assert expand(policy).content == expand_policy(spec, "spec")


def test_delays_are_written_in_one_way() -> None:
    assert expand_policy(EVERYTHING, "spec")["sequence"] == ["90s", "1m", "1m", "1d"]


def test_hash_is_of_the_content_in_one_spelling() -> None:
    contents = [expand_policy({"sequence": each}, "spec") for each in (["60s", "1h"], ["1m", "60m"], ["60m", "1m"])]
    canonical = json.dumps(contents[0], sort_keys=True, separators=(",", ":"))
    assert content_hash(contents[0]) == hashlib.sha256(canonical.encode()).hexdigest()[:10]
    assert content_hash(contents[1]) == content_hash(contents[0]) != content_hash(contents[2])


def test_record_can_be_tried_for_a_day_or_twice_the_sequence() -> None:
    assert expand_policy({"sequence": ["5m"]}, "spec")["maxTotalSeconds"] == 86_400
    assert expand_policy({"sequence": ["1d", "1d"]}, "spec")["maxTotalSeconds"] == 4 * 86_400
    assert expand_policy(EVERYTHING, "spec")["maxTotalSeconds"] == 3600


@pytest.mark.parametrize(
    ("generate", "sequence"),
    [
        ({"initial": "10s", "count": 6}, "10s,20s,40s,80s,160s,320s"),
        ({"initial": "10s", "count": 3, "factorPercent": 100}, "10s,10s,10s"),
        ({"initial": "3s", "count": 4, "factorPercent": 150}, "3s,4s,6s,9s"),
        ({"initial": "30m", "count": 4}, "30m,1h,1h,1h"),
        ({"initial": "2h", "count": 2, "max": "1h"}, "1h,1h"),
    ],
)
def test_series_is_written_out(generate: dict[str, Any], sequence: str) -> None:
    assert expand_policy({"generate": generate}, "spec")["sequence"] == sequence.split(",")


def test_too_many_different_delays_are_refused() -> None:
    expand_policy({"sequence": [f"{n}s" for n in range(1, 17)] * 6}, "spec")
    expand_policy({"sequence": [*(f"{n}m" for n in range(1, 17)), "60s", "120s"]}, "spec")
    with pytest.raises(TooManyDelays, match="spec: has 17 different delays, and each needs its own topic"):
        expand_policy({"sequence": [f"{n}s" for n in range(1, 18)]}, "spec")


def test_pattern_that_re2_does_not_take_is_refused() -> None:
    with pytest.raises(PatternInvalid):
        expand_policy(changed("classify.2.when.messageRegex", "(?=a)b"), "spec")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("sequence", ..., "spec: must have exactly one of sequence, generate"),
        ("generate", {"initial": "1s", "count": 1}, "spec: must have exactly one of sequence, generate"),
        ("sequence", [], "spec.sequence: must be a list of delays"),
        ("sequence", "5m", "spec.sequence: must be a list of delays"),
        ("sequence.1", "5x", "spec.sequence[1]: '5x' is not a delay; write a whole number and one of"),
        ("sequence.1", 60, "spec.sequence[1]: '60' is not a delay"),
        ("sequence.1", "05s", "spec.sequence[1]: '05s' is not a delay"),
        ("sequence.1", "200h", "spec.sequence[1]: '200h' is too long"),
        ("sequnce", [], "spec.sequnce: is not a setting that this version knows"),
        ("classify", {}, "spec.classify: must be a list of at most 50 rules"),
        ("classify.1.then", "Explode", "spec.classify[1].then: is 'Explode'; allowed are Retry, Fail, Drop"),
        ("classify.1.then", ..., "spec.classify[1].then: is missing"),
        ("classify.1.when", {}, "spec.classify[1].when: must have exactly one of exception, httpStatus"),
        ("classify.1.when.exception", "X", "spec.classify[1].when: must have exactly one of"),
        ("classify.0.when.exception", "not a class", "spec.classify[0].when.exception: is 'not a class'"),
        ("classify.1.when.httpStatus", 409, "spec.classify[1].when.httpStatus: must be a non-empty string"),
        ("classify.1.when.httpStatus", "600", "spec.classify[1].when.httpStatus: is '600'"),
        ("classify.2.when.messageRegex", "(?=a)a", "spec.classify[2].when.messageRegex: '(?=a)a' is no"),
        ("classify.2.when.messageRegex", "a" * 513, "spec.classify[2].when.messageRegex: has 513 characters"),
        ("undecodable", "Retry", "spec.undecodable: is 'Retry'; allowed are Fail, Drop"),
        ("maxTotalSeconds", 0, "spec.maxTotalSeconds: must be 1 to 2147483647, not 0"),
        ("maxTotalSeconds", 1.5, "spec.maxTotalSeconds: must be a whole number"),
        ("headerProfile", "Both", "spec.headerProfile: is 'Both'; allowed are Native, Spring"),
        ("budget.action", "Stop", "spec.budget.action: is 'Stop'; allowed are Pause, Fail, None"),
        ("budget.maxFailure", 5, "spec.budget.maxFailure: is not a setting"),
        ("budget", {7: 5}, "spec.budget: has the field 7, whose name is not a string"),
    ],
)
def test_first_bad_field_is_named(path: str, value: object, message: str) -> None:
    assert message in refusal(changed(path, value))


def test_null_is_absent_as_the_api_server_prunes_it() -> None:
    assert expand_policy(changed("budget", None), "spec")["budget"] is None
    assert expand_policy(changed("undecodable", None), "spec")["undecodable"] == "Fail"


def test_crd_expansion_and_workers_take_the_same_number_of_rules() -> None:
    limit = SCHEMA["properties"]["classify"]["maxItems"]
    rule = {"when": {"exception": "ValueError"}, "then": "Fail"}
    most = file(expand_policy(changed("classify", [rule] * limit), "spec"))
    assert len(parse_policies(most).newest.rules) == limit
    assert f"at most {limit} rules" in refusal(changed("classify", [rule] * (limit + 1)))
    most["revisions"][most["current"]]["classify"] *= 2
    with pytest.raises(PolicyInvalid, match=f"at most {limit} rules"):
        parse_policies(most)


def numbers(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, int, int]]:
    """Every whole number of the CRD with its bounds, by its path."""
    for name, field in schema.get("properties", {}).items():
        if field["type"] == "integer":
            yield f"{path}.{name}", field["minimum"], field["maximum"]
        elif field["type"] == "object":
            yield from numbers(field, f"{path}.{name}")


def test_numbers_have_the_bounds_of_the_crd() -> None:
    good = {"generate": {"initial": "1s", "max": "2s", "count": 3}, "budget": {"action": "Pause"}}
    checked = 0
    for path, least, most in numbers(SCHEMA, "spec"):
        for value, accepted in ((least - 1, False), (least, True), (most, True), (most + 1, False)):
            spec: dict[str, Any] = copy.deepcopy(good)
            _, *parents, last = path.split(".")
            target: Any = spec
            for part in parents:
                target = target[part]
            target[last] = value
            if accepted:
                expand_policy(spec, "spec")
            else:
                assert refusal(spec).startswith(f"{path}: must be {least} to {most}, not {value}")
            checked += 1
    assert checked == 4 * 7
