"""Expansion of a RetryPolicy's spec into the content that workers follow.

Operator and local run expand with this module, so one spec has one content and one hash. Bounds and defaults are the
CRD's (a test compares them): the API server applies them in a cluster, nobody does before a local run. Only this code
checks the number of distinct delays, the values of a generated series, and regular expressions. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fleet_consumer.contract import fields
from fleet_consumer.contract.naming import DAY_SECONDS, canonical_delay
from fleet_consumer.contract.policies import (
    ATTEMPTS_MAX,
    DEFAULT_BUDGET,
    HTTP_STATUS,
    Budget,
    HeaderProfile,
    Then,
    check_sequence,
    list_rules,
    parse_seconds,
)
from fleet_consumer.contract.section import Section, SettingsInvalid, manifest_section, parse_pattern

DEFAULTS: Final[Mapping[str, Any]] = {
    "classify": [],
    "undecodable": "Fail",
    "maxTotalSeconds": None,
    "headerProfile": "Native",
    "budget": None,
}
GENERATE_DEFAULTS: Final = {"factorPercent": 200, "max": "1h"}

CLASS: Final = r"[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*"
CLASS_CHARACTERS_MAX: Final = 253
REGEX_CHARACTERS_MAX: Final = 512
INT32_MAX: Final = 2**31 - 1


def expand_policy(spec: object, path: str) -> dict[str, Any]:
    """Content of a spec in the form of its manifest; `path` is the spec's name in errors.

    Raises SettingsInvalid for the first bad field found: TooManyDelays and PatternInvalid for what the CRD cannot
    check.
    """
    given = manifest_section(spec, path, **DEFAULTS)
    if given.only("sequence", "generate") == "sequence":
        sequence = _delays(given.take("sequence"), given.at("sequence"))
    else:
        sequence = list(_series(manifest_section(given.take("generate"), given.at("generate"), **GENERATE_DEFAULTS)))
    return _content(given, sequence)


def expand_delays(delays: list[str], path: str) -> dict[str, Any]:
    """Content of a policy that names only its delays. Raises SettingsInvalid."""
    return _content(manifest_section({}, path, **DEFAULTS), _delays(delays, path))


def _delays(found: object, path: str) -> list[int]:
    if not isinstance(found, list) or not found:
        raise SettingsInvalid(path, "must be a list of delays, such as [5s, 5s, 1m]")
    return [parse_seconds(str(text), f"{path}[{index}]") for index, text in enumerate(found)]


def _series(generate: Section) -> Iterator[int]:
    """Growing delays in whole seconds: integer arithmetic gives the same values everywhere."""
    delay = parse_seconds(generate.text("initial"), generate.at("initial"))
    longest = parse_seconds(generate.text("max"), generate.at("max"))
    factor = generate.integer("factorPercent", 100, 10_000)
    count = generate.integer("count", 1, ATTEMPTS_MAX)
    generate.end()
    for _ in range(count):
        delay = min(delay, longest)
        yield delay
        delay = delay * factor // 100


def _content(given: Section, sequence: list[int]) -> dict[str, Any]:
    """Content of a spec whose delays were taken before."""
    check_sequence(sequence, given.path)
    content = {
        "sequence": [canonical_delay(seconds) for seconds in sequence],
        "classify": [_rule(manifest_section(each, path)) for each, path in list_rules(given)],
        "undecodable": given.choice("undecodable", Then.FAIL, Then.DROP),
        "maxTotalSeconds": given.optional_integer("maxTotalSeconds", 1, INT32_MAX)
        or max(DAY_SECONDS, 2 * sum(sequence)),
        "headerProfile": given.choice("headerProfile", *HeaderProfile),
        "budget": _budget(given.take("budget"), given.at("budget")),
    }
    given.end()
    return content


def _rule(section: Section) -> dict[str, Any]:
    when = manifest_section(section.take("when"), section.at("when"))
    then = section.choice("then", *Then)
    section.end()
    condition = when.only("exception", "httpStatus", "messageRegex")
    path, text = when.at(condition), when.text(condition)
    when.end()
    if condition == "exception":
        if len(text) > CLASS_CHARACTERS_MAX or re.fullmatch(CLASS, text) is None:
            raise SettingsInvalid(path, f"is {text!r}; it must name a Python class, such as ValueError")
    elif condition == "httpStatus":
        if re.fullmatch(HTTP_STATUS, text) is None:
            raise SettingsInvalid(path, f'is {text!r}; it must be a status such as "429", or a hundred such as "4xx"')
    elif len(text) > REGEX_CHARACTERS_MAX:
        raise SettingsInvalid(path, f"has {len(text)} characters; at most {REGEX_CHARACTERS_MAX} are allowed")
    else:
        parse_pattern(text, path)
    return {"when": {condition: text}, "then": then}


def _budget(found: object, path: str) -> Any:
    if found is None:
        return None
    section = manifest_section(found, path, **fields.rendered(DEFAULT_BUDGET))
    budget = fields.parse(Budget, section)
    section.end()
    return fields.rendered(budget)
