"""A retry policy as workers follow it: revisions of one RetryPolicy, read from the file that the operator mounts.

A record that waits follows the revision that it names, so several are in force at once. The file is taken as a whole
or not at all: a worker that cannot read the newest keeps the one it has. No I/O here, and nothing that decides about a
record: that is for `failure` and `routing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from fleet_consumer.contract.naming import canonical_delay, parse_delay
from fleet_consumer.contract.patterns import Pattern
from fleet_consumer.contract.section import Section, SettingsInvalid

VERSION: Final = 1
"""The version of the file that this code reads."""

ATTEMPTS_MAX: Final = 100
"""The longest sequence. Enough for a day of quarter hours; a longer one is a mistake that costs a topic's space."""
DELAYS_MAX: Final = 16
"""How many different delays one policy may have: each is a topic of its own."""
RULES_MAX: Final = 50
"""The limit of `classify` in the RetryPolicy's CRD; a test holds both to each other."""

REVISION: Final = r"[0-9a-f]{10}"
"""A revision's name: the beginning of the SHA-256 of its content."""

HTTP_STATUS: Final = r"[1-5]([0-9]{2}|xx)"

FILE: Final = "policies.json"


class PolicyInvalid(Exception):
    """The policies cannot be used; the message names the field, what is there and what to change."""

    reason = "PolicyInvalid"


class Then(StrEnum):
    """What a rule decides."""

    RETRY = "Retry"
    FAIL = "Fail"
    DROP = "Drop"


class HeaderProfile(StrEnum):
    """Which headers a failed record carries besides the `kr-` family."""

    NATIVE = "Native"
    SPRING = "Spring"


class BudgetAction(StrEnum):
    """What workers do while too much fails."""

    PAUSE = "Pause"
    FAIL = "Fail"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of `classify`. Exactly one of the three conditions is set; `name` is how headers tell of it."""

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


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may fail: beyond `max_failure_percent` of at least `min_records` records within `window_s` seconds
    `action` is taken, and tried to be ended after `cooldown_s` seconds."""

    max_failure_percent: int
    window_s: int
    min_records: int
    action: BudgetAction
    cooldown_s: int


@dataclass(frozen=True, slots=True)
class Policy:
    """One revision. `sequence` holds the delays in seconds, in the order in which a record that keeps failing waits
    for them; `max_total_s` counts from the first failure, None: without end."""

    name: str
    revision: str
    sequence: tuple[int, ...]
    rules: tuple[Rule, ...] = ()
    undecodable: Then = Then.FAIL
    max_total_s: int | None = None
    header_profile: HeaderProfile = HeaderProfile.NATIVE
    budget: Budget | None = None

    @property
    def label(self) -> str:
        """The value of `kr-policy`."""
        return f"{self.name}@{self.revision}"


@dataclass(frozen=True, slots=True)
class Policies:
    """All that a worker needs to know. `delays` are canonical texts: the topics that retry workers consume besides the
    redrive topic. `partitions` is the partition count of the managed topics, `max_message_bytes` their limit."""

    name: str
    current: str
    revisions: Mapping[str, Policy]
    delays: tuple[str, ...]
    partitions: int
    max_message_bytes: int

    @property
    def newest(self) -> Policy:
        """The revision that new failures follow."""
        return self.revisions[self.current]

    def of(self, revision: str | None) -> tuple[Policy, bool]:
        """The revision that a record names, and whether it is known; the newest in place of an unknown one.

        None, for a record that names none, is the newest and known: that is no trouble to be counted.
        """
        if revision is None:
            return self.newest, True
        policy = self.revisions.get(revision)
        return (self.newest, False) if policy is None else (policy, True)


def parse_policies(document: Any) -> Policies:
    """The policies in a parsed `policies.json`. Raises PolicyInvalid for the first bad field found."""
    try:
        return _policies(Section(document, FILE))
    except SettingsInvalid as error:
        raise PolicyInvalid(str(error)) from error


def _policies(section: Section) -> Policies:
    section.integer("version", VERSION, VERSION)
    name = section.text("policy")
    current = section.text("current", pattern=REVISION)
    revisions = {revision: _policy(name, revision, each) for revision, each in _revisions(section)}
    if current not in revisions:
        raise SettingsInvalid(section.at("current"), f"is {current!r}, which is none of the revisions")
    delays = section.texts("delays", least=1)
    for index, delay in enumerate(delays):
        _seconds(delay, section.at(f"delays[{index}]"), canonical=True)
    # Of every revision: a record that follows an older one must not wait where nobody reads.
    used = {canonical_delay(seconds) for each in revisions.values() for seconds in each.sequence}
    unread = sorted(used - set(delays))
    if unread:
        raise SettingsInvalid(section.at("delays"), f"lacks {', '.join(unread)}, which a revision uses")
    policies = Policies(
        name,
        current,
        revisions,
        delays,
        section.integer("partitions", 1),
        section.integer("maxMessageBytes", 1),
    )
    section.end()
    return policies


def _revisions(section: Section) -> Iterator[tuple[str, Section]]:
    found = section.take("revisions")
    path = section.at("revisions")
    if not isinstance(found, dict) or not found:
        raise SettingsInvalid(path, "must map revisions to their contents")
    for revision in sorted(found):
        if re.fullmatch(REVISION, revision) is None:
            raise SettingsInvalid(path, f"has the key {revision!r}, which is no revision")
        yield revision, Section(found[revision], f"{path}.{revision}")


def _policy(name: str, revision: str, section: Section) -> Policy:
    texts = section.texts("sequence", least=1)
    path = section.at("sequence")
    if len(texts) > ATTEMPTS_MAX:
        raise SettingsInvalid(path, f"has {len(texts)} delays; at most {ATTEMPTS_MAX} are taken")
    sequence = tuple(_seconds(text, f"{path}[{index}]") for index, text in enumerate(texts))
    if len(set(sequence)) > DELAYS_MAX:
        raise SettingsInvalid(path, f"has {len(set(sequence))} different delays; at most {DELAYS_MAX} are taken")
    policy = Policy(
        name,
        revision,
        sequence,
        _rules(section),
        Then(section.choice("undecodable", *Then)),
        section.optional_integer("maxTotalSeconds", 1),
        HeaderProfile(section.choice("headerProfile", *HeaderProfile)),
        _budget(section.optional_section("budget")),
    )
    section.end()
    return policy


def _seconds(text: str, path: str, *, canonical: bool = False) -> int:
    try:
        seconds = parse_delay(text)
    except ValueError as error:
        raise SettingsInvalid(path, str(error)) from error
    if canonical and canonical_delay(seconds) != text:
        raise SettingsInvalid(path, f"is {text!r}; its topic is that of {canonical_delay(seconds)!r}")
    return seconds


def _rules(section: Section) -> tuple[Rule, ...]:
    found = section.take("classify")
    path = section.at("classify")
    if not isinstance(found, list) or len(found) > RULES_MAX:
        raise SettingsInvalid(path, f"must be a list of at most {RULES_MAX} rules")
    return tuple(_rule(Section(each, f"{path}[{index}]")) for index, each in enumerate(found))


def _rule(section: Section) -> Rule:
    when = section.section("when")
    then = Then(section.choice("then", *Then))
    section.end()
    condition = when.only("exception", "httpStatus", "messageRegex")
    if condition == "exception":
        rule = Rule(then, exception=when.text(condition))
    elif condition == "httpStatus":
        rule = Rule(then, http_status=when.text(condition, pattern=HTTP_STATUS))
    else:
        rule = Rule(then, message=when.pattern(condition))
    when.end()
    return rule


def _budget(section: Section | None) -> Budget | None:
    if section is None:
        return None
    budget = Budget(
        section.integer("maxFailurePercent", 1, 100),
        section.integer("windowSeconds", 1, 3600),
        section.integer("minRecords", 1),
        BudgetAction(section.choice("action", *BudgetAction)),
        section.integer("cooldownSeconds", 1),
    )
    section.end()
    return budget
