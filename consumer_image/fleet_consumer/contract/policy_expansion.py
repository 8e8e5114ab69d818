"""Expansion of a RetryPolicy's spec into the content that workers follow. Pure functions.

The operator and local runs both use this module, so a spec always has the same content and hash. Bounds and defaults
are copies of the CRD's (a test compares them), because local runs have no API server to apply them. The number of
distinct delays, the values of a generated series, and regular expressions are checked only here.
"""

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
    """Expand a manifest's spec to a policy's content; `path` names the spec in errors.

    Raises SettingsInvalid for the first invalid field. Raises the subclasses TooManyDelays and PatternInvalid for
    problems that the CRD cannot detect.
    """
    given = manifest_section(spec, path, **DEFAULTS)
    if given.only("sequence", "generate") == "sequence":
        sequence = _delays(given.pop("sequence"), given.at("sequence"))
    else:
        sequence = list(_series(manifest_section(given.pop("generate"), given.at("generate"), **GENERATE_DEFAULTS)))
    return _content(given, sequence)


def expand_delays(delays: list[str], path: str) -> dict[str, Any]:
    """Return the content of a policy that has only delays. Raises SettingsInvalid."""
    return _content(manifest_section({}, path, **DEFAULTS), _delays(delays, path))


def _delays(found: object, path: str) -> list[int]:
    if not isinstance(found, list) or not found:
        raise SettingsInvalid(path, "must be a list of delays, such as [5s, 5s, 1m]")
    return [parse_seconds(str(text), f"{path}[{index}]") for index, text in enumerate(found)]


def _series(generate: Section) -> Iterator[int]:
    """Yield growing delays in whole seconds. Integer arithmetic gives the same values on every machine."""
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
    """Return a policy's content from its sequence and the remaining fields of its spec (the delays are already
    removed)."""
    check_sequence(sequence, given.path)
    content = {
        "sequence": [canonical_delay(seconds) for seconds in sequence],
        "classify": [_rule(manifest_section(each, path)) for each, path in list_rules(given)],
        "undecodable": given.choice("undecodable", Then.FAIL, Then.DROP),
        "maxTotalSeconds": given.optional_integer("maxTotalSeconds", 1, INT32_MAX)
        or max(DAY_SECONDS, 2 * sum(sequence)),
        "headerProfile": given.choice("headerProfile", *HeaderProfile),
        "budget": _budget(given.pop("budget"), given.at("budget")),
    }
    given.end()
    return content


def _rule(section: Section) -> dict[str, Any]:
    when = manifest_section(section.pop("when"), section.at("when"))
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
            raise SettingsInvalid(path, f'is {text!r}; it must be a status such as "429", or a class such as "4xx"')
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
