"""policies.json: the revisions of one RetryPolicy that a group's workers follow.

A waiting record follows the revision named in its headers, so several revisions are in force at the same time. Each
file is used completely or not at all: a worker that cannot read the newest file keeps the previous file. Pure
functions. The modules `retry/failure.py` and `retry/routing.py` apply the policies to records.
"""

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

ATTEMPTS_MAX: Final = 100
"""Maximum length of a sequence: a retry every 15 minutes for a day. A longer sequence is a mistake that fills
topics."""
DELAYS_MAX: Final = 16
"""Maximum number of distinct delays in a policy, because each delay needs a topic in every group."""
RULES_MAX: Final = 50
"""Maximum number of rules in a policy, the same as the CRD's limit for `classify`."""

REVISION: Final = rf"[0-9a-f]{{{HASH_CHARACTERS}}}"
"""Pattern of a revision's name, which is `naming.content_hash` of the revision's content."""

HTTP_STATUS: Final = r"[1-5]([0-9]{2}|xx)"


class PolicyInvalid(Exception):
    """Unusable policies. The message names the invalid field, its value and the necessary change."""

    reason = "PolicyInvalid"


class TooManyDelays(SettingsInvalid):
    """A sequence has more distinct delays than DELAYS_MAX."""


class Then(StrEnum):
    RETRY = "Retry"
    FAIL = "Fail"
    DROP = "Drop"


class HeaderProfile(StrEnum):
    """The headers that a failed record gets in addition to the `kr-` headers."""

    NATIVE = "Native"
    SPRING = "Spring"


class BudgetAction(StrEnum):
    PAUSE = "Pause"
    FAIL = "Fail"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of `classify`. Exactly one of `exception`, `http_status` and `message` is set: the condition under which
    `then` applies. `name` is the rule's name in headers."""

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
    """Failure budget. Bounds and defaults are those of the CRD.

    Workers start `action` if two conditions hold: at least `min_records` records were handled in the last `window_s`
    seconds, and more than `max_failure_percent` of them failed. After `cooldown_s` seconds, workers try to end the
    action.
    """

    max_failure_percent: int = fields.integer(1, 100, default=50)
    window_s: int = fields.integer(1, 3600, name="windowSeconds", default=60)
    min_records: int = fields.integer(1, 1_000_000, default=100)
    action: BudgetAction = fields.one_of(BudgetAction, default=BudgetAction.PAUSE)
    cooldown_s: int = fields.integer(1, 3600, name="cooldownSeconds", default=30)


DEFAULT_BUDGET: Final = Budget()
"""The main workers' budget if their policy has none."""


def _sequence(section: Section, name: str) -> tuple[int, ...]:
    strings, path = section.strings(name, least=1), section.at(name)
    sequence = tuple(parse_seconds(text, f"{path}[{index}]") for index, text in enumerate(strings))
    check_sequence(sequence, path)
    return sequence


def _rules(section: Section, name: str) -> tuple[Rule, ...]:
    return tuple(whole(each, path, _rule) for each, path in list_rules(section))


@fields.settings
class Policy:
    """One revision of a policy. `sequence` has the delay in seconds before each retry. `max_total_s` counts from a
    record's first failure (None: no limit). `name` and `revision` are not in the revision's content in the file."""

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
        """The value of the header `kr-policy`."""
        return f"{self.name}@{self.revision}"


@dataclass(frozen=True, slots=True)
class Policies:
    """A parsed policies.json. `delays` (canonical) name the topics that retry workers consume in addition to the
    redrive topic. `partitions` is the partition count of the managed topics, `max_message_bytes` their size limit."""

    name: str
    current: str
    revisions: Mapping[str, Policy]
    delays: tuple[str, ...]
    partitions: int
    max_message_bytes: int

    @property
    def newest(self) -> Policy:
        return self.revisions[self.current]

    def find_revision(self, revision: str | None) -> tuple[Policy, bool]:
        """Return the policy revision that a record follows, and True if the revision is known.

        For an unknown revision, returns the newest revision and False. If `revision` is None (not in the record's
        headers), returns the newest revision and True.
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
    """Return the JSON object of a policies.json. `revisions` maps hashes to contents, `delays` are canonical."""
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
    """Parse the content of a policies.json. Raises PolicyInvalid for the first invalid field."""
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
        raise SettingsInvalid(section.at("current"), f"is {current!r}, which is not one of the revisions")
    delays = section.strings("delays", least=1)
    for index, delay in enumerate(delays):
        path = section.at(f"delays[{index}]")
        canonical = canonical_delay(parse_seconds(delay, path))
        if canonical != delay:
            raise SettingsInvalid(path, f"is {delay!r}; write the canonical form {canonical!r}")
    # The delays of older revisions are also required, because their records must not wait in a topic that nobody reads.
    used = {canonical_delay(seconds) for each in revisions.values() for seconds in each.sequence}
    unread = sorted(used - set(delays))
    if unread:
        raise SettingsInvalid(section.at("delays"), f"lacks {', '.join(unread)}, which a revision uses")
    partitions, max_message_bytes = section.integer("partitions", 1), section.integer("maxMessageBytes", 1)
    section.end()
    return Policies(name, current, revisions, delays, partitions, max_message_bytes)


def _revisions(name: str, section: Section) -> Iterator[Policy]:
    found = section.pop("revisions")
    path = section.at("revisions")
    if not isinstance(found, dict) or not found:
        raise SettingsInvalid(path, "must map revisions to their contents")
    for revision in sorted(found):
        if re.fullmatch(REVISION, revision) is None:
            raise SettingsInvalid(path, f"has the key {revision!r}, which is not a revision")
        parse = partial(fields.parse, Policy, name=name, revision=revision)
        yield whole(found[revision], f"{path}.{revision}", parse)


def parse_seconds(delay: str, path: str) -> int:
    """Return the seconds of a delay. Raises SettingsInvalid, which names `path`."""
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
        problem = f"has {distinct} different delays, and each needs its own topic"
        raise TooManyDelays(path, f"{problem}: use at most {DELAYS_MAX} (the same delay may occur several times)")


def list_rules(section: Section) -> list[tuple[object, str]]:
    """Return the unparsed entries of `classify`, each with its path. Raises SettingsInvalid."""
    found, path = section.pop("classify"), section.at("classify")
    if not isinstance(found, list) or len(found) > RULES_MAX:
        raise SettingsInvalid(path, f"must be a list of at most {RULES_MAX} rules")
    return [(each, f"{path}[{index}]") for index, each in enumerate(found)]


def _rule(section: Section) -> Rule:
    then = Then(section.choice("then", *Then))
    return section.nested("when", lambda when: _rule_when(when, then))


def _rule_when(when: Section, then: Then) -> Rule:
    condition = when.only("exception", "httpStatus", "messageRegex")
    if condition == "exception":
        return Rule(then, exception=when.text(condition))
    if condition == "httpStatus":
        return Rule(then, http_status=when.text(condition, pattern=HTTP_STATUS))
    return Rule(then, message=when.pattern(condition))
