"""policies.json: the revisions of one RetryPolicy that a group's workers follow.

A waiting record follows the revision that it names, so several are in force at once. A file is used whole or not at
all: a worker that cannot read the newest keeps the one it has. Pure; `failure` and `routing` decide about records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from fleet_consumer.contract import fields
from fleet_consumer.contract.naming import HASH_CHARACTERS, canonical_delay, parse_delay
from fleet_consumer.contract.patterns import Pattern
from fleet_consumer.contract.pod import POLICIES_FILE
from fleet_consumer.contract.section import Section, SettingsInvalid, whole

VERSION: Final = 1
"""Version of the file format."""

ATTEMPTS_MAX: Final = 100
"""Delays in a sequence: enough for a day of quarter hours; a longer one is a mistake that costs a topic's space."""
DELAYS_MAX: Final = 16
"""Distinct delays in a policy: each needs a topic in every group."""
RULES_MAX: Final = 50
"""Rules in a policy: the CRD's limit of `classify`."""

REVISION: Final = rf"[0-9a-f]{{{HASH_CHARACTERS}}}"
"""A revision's name: `naming.content_hash` of its content."""

HTTP_STATUS: Final = r"[1-5]([0-9]{2}|xx)"


class PolicyInvalid(Exception):
    """The policies cannot be used; the message names the field, what is there and what to change."""

    reason = "PolicyInvalid"


class TooManyDelays(SettingsInvalid):
    """A sequence has more distinct delays than DELAYS_MAX."""


class Then(StrEnum):
    """Decision of a rule."""

    RETRY = "Retry"
    FAIL = "Fail"
    DROP = "Drop"


class HeaderProfile(StrEnum):
    """Headers of a failed record besides the `kr-` family."""

    NATIVE = "Native"
    SPRING = "Spring"


class BudgetAction(StrEnum):
    """Reaction of workers while more fails than the budget allows."""

    PAUSE = "Pause"
    FAIL = "Fail"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of `classify`: exactly one of the three conditions is set. `name` is its name in headers."""

    then: Then
    exception: str | None = None
    http_status: str | None = None
    message: Pattern | None = None

    @property
    def name(self) -> str:
        if self.exception is not None:
            return f"exception={self.exception}"
        if self.http_status is not None:
            return f"httpStatus={self.http_status}"
        assert self.message is not None, "a rule has a condition"
        return f"messageRegex={self.message.text}"


@fields.settings
class Budget:
    """Failure budget: beyond `max_failure_percent` of at least `min_records` records within `window_s` seconds
    workers take `action`, and try to end it after `cooldown_s` seconds. Bounds and defaults are those of the CRD."""

    max_failure_percent: int = fields.integer(1, 100, default=50)
    window_s: int = fields.integer(1, 3600, name="windowSeconds", default=60)
    min_records: int = fields.integer(1, 1_000_000, default=100)
    action: BudgetAction = fields.one_of(BudgetAction, default=BudgetAction.PAUSE)
    cooldown_s: int = fields.integer(1, 3600, name="cooldownSeconds", default=30)


DEFAULT_BUDGET: Final = Budget()
"""The budget of main workers where a policy has none."""


def _sequence(section: Section, name: str) -> tuple[int, ...]:
    texts, path = section.texts(name, least=1), section.at(name)
    sequence = tuple(parse_seconds(text, f"{path}[{index}]") for index, text in enumerate(texts))
    check_sequence(sequence, path)
    return sequence


def _rules(section: Section, name: str) -> tuple[Rule, ...]:
    return tuple(whole(each, path, _rule) for each, path in list_rules(section))


@fields.settings
class Policy:
    """One revision. `sequence` holds the delays before each further attempt, in seconds; `max_total_s` counts from the
    first failure, None is unlimited. The file has the content under its revision, and the name once for all."""

    name: str
    revision: str
    sequence: tuple[int, ...] = fields.read_by(_sequence)
    rules: tuple[Rule, ...] = fields.read_by(_rules, name="classify", default=())
    undecodable: Then = fields.one_of(Then, default=Then.FAIL)
    max_total_s: int | None = fields.integer(1, name="maxTotalSeconds", null=True, default=None)
    header_profile: HeaderProfile = fields.one_of(HeaderProfile, default=HeaderProfile.NATIVE)
    budget: Budget | None = fields.nested(Budget, null=True, default=None)

    @property
    def label(self) -> str:
        """Value of the header `kr-policy`."""
        return f"{self.name}@{self.revision}"


@dataclass(frozen=True, slots=True)
class Policies:
    """A parsed policies.json. `delays` (canonical texts) name the topics that retry workers consume besides the redrive
    topic. `partitions` is the partition count of the managed topics, `max_message_bytes` their size limit."""

    name: str
    current: str
    revisions: Mapping[str, Policy]
    delays: tuple[str, ...]
    partitions: int
    max_message_bytes: int

    @property
    def newest(self) -> Policy:
        return self.revisions[self.current]

    def of(self, revision: str | None) -> tuple[Policy, bool]:
        """The revision that a record names, and whether it is known; an unknown one is replaced by the newest.

        None (the record names no revision) is the newest and counts as known: it is no error.
        """
        if revision is None:
            return self.newest, True
        policy = self.revisions.get(revision)
        return (self.newest, False) if policy is None else (policy, True)


def render_policies(
    name: str,
    revisions: Mapping[str, Mapping[str, Any]],
    *,
    current: str,
    delays: Sequence[str],
    partitions: int,
    max_message_bytes: int,
) -> dict[str, Any]:
    """The JSON object of a policies.json; `revisions` maps hashes to contents, `delays` are canonical texts."""
    return {
        "version": VERSION,
        "policy": name,
        "current": current,
        "revisions": {revision: dict(content) for revision, content in revisions.items()},
        "delays": list(delays),
        "partitions": partitions,
        "maxMessageBytes": max_message_bytes,
    }


def parse_policies(document: Any) -> Policies:
    """Policies of a parsed policies.json. Raises PolicyInvalid for the first bad field found."""
    try:
        return _policies(Section(document, POLICIES_FILE))
    except SettingsInvalid as error:
        raise PolicyInvalid(str(error)) from error


def _policies(section: Section) -> Policies:
    section.integer("version", VERSION, VERSION)
    name = section.text("policy")
    current = section.text("current", pattern=REVISION)
    revisions = {policy.revision: policy for policy in _revisions(name, section)}
    if current not in revisions:
        raise SettingsInvalid(section.at("current"), f"is {current!r}, which is none of the revisions")
    delays = section.texts("delays", least=1)
    for index, delay in enumerate(delays):
        path = section.at(f"delays[{index}]")
        canonical = canonical_delay(parse_seconds(delay, path))
        if canonical != delay:
            raise SettingsInvalid(path, f"is {delay!r}; its topic is that of {canonical!r}")
    # Of every revision: a record that follows an older one must not wait where nobody reads.
    used = {canonical_delay(seconds) for each in revisions.values() for seconds in each.sequence}
    unread = sorted(used - set(delays))
    if unread:
        raise SettingsInvalid(section.at("delays"), f"lacks {', '.join(unread)}, which a revision uses")
    partitions, max_message_bytes = section.integer("partitions", 1), section.integer("maxMessageBytes", 1)
    section.end()
    return Policies(name, current, revisions, delays, partitions, max_message_bytes)


def _revisions(name: str, section: Section) -> Iterator[Policy]:
    found = section.take("revisions")
    path = section.at("revisions")
    if not isinstance(found, dict) or not found:
        raise SettingsInvalid(path, "must map revisions to their contents")
    for revision in sorted(found):
        if re.fullmatch(REVISION, revision) is None:
            raise SettingsInvalid(path, f"has the key {revision!r}, which is no revision")
        parse = partial(fields.parse, Policy, name=name, revision=revision)
        yield whole(found[revision], f"{path}.{revision}", parse)


def parse_seconds(delay: str, path: str) -> int:
    """Seconds of a delay. Raises SettingsInvalid."""
    try:
        return parse_delay(delay)
    except ValueError as error:
        raise SettingsInvalid(path, str(error)) from error


def check_sequence(seconds: Sequence[int], path: str) -> None:
    """Raise SettingsInvalid if a sequence is too long, TooManyDelays if it has too many distinct delays."""
    if len(seconds) > ATTEMPTS_MAX:
        raise SettingsInvalid(path, f"has {len(seconds)} delays; at most {ATTEMPTS_MAX} are allowed")
    distinct = len(set(seconds))
    if distinct > DELAYS_MAX:
        problem = f"has {distinct} different delays, and each needs a topic of its own"
        raise TooManyDelays(path, f"{problem}: use at most {DELAYS_MAX} (repeats cost nothing)")


def list_rules(section: Section) -> list[tuple[object, str]]:
    """The entries of `classify`, unread, each with its path. Raises SettingsInvalid."""
    found, path = section.take("classify"), section.at("classify")
    if not isinstance(found, list) or len(found) > RULES_MAX:
        raise SettingsInvalid(path, f"must be a list of at most {RULES_MAX} rules")
    return [(each, f"{path}[{index}]") for index, each in enumerate(found)]


def _rule(section: Section) -> Rule:
    then = Then(section.choice("then", *Then))
    return section.read("when", lambda when: _rule_when(when, then))


def _rule_when(when: Section, then: Then) -> Rule:
    condition = when.only("exception", "httpStatus", "messageRegex")
    if condition == "exception":
        return Rule(then, exception=when.text(condition))
    if condition == "httpStatus":
        return Rule(then, http_status=when.text(condition, pattern=HTTP_STATUS))
    return Rule(then, message=when.pattern(condition))
