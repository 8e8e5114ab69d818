"""A RetryPolicy expanded into what workers are given, and what it shows of itself.

The API server has refused what its rules can see. What only code can judge is judged here: how many different delays
there are once written in one way, what a growing series comes to, and whether a pattern's matching is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.retrypolicy import Generate, RetryPolicy, RetryPolicySpec, Rule
from fleet_operator.planning.fleet.revision import content_hash
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import PolicyRevision
from fleet_operator.planning.topic_pattern import PatternRefused, compile_pattern

DISTINCT_DELAYS_MAX: Final = 16
"""Each different delay is a topic of its own in every group."""

DAY_SECONDS: Final = 86_400
DELAYS_TEXT_CHARACTERS_MAX: Final = 1024


class PolicyRefused(ValueError):
    """The policy cannot be used as it is written; `problem` says why to its author."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def expand(policy: RetryPolicy) -> PolicyRevision:
    """The revision that a policy's spec comes to. Raises PolicyRefused."""
    spec = policy.spec
    seconds = _sequence(spec)
    distinct = {naming.canonical_delay(delay) for delay in seconds}
    if len(distinct) > DISTINCT_DELAYS_MAX:
        raise PolicyRefused(
            Problem(
                conditions.TOO_MANY_DELAYS,
                f"RetryPolicy {policy.metadata.name!r} has {len(distinct)} different delays, and each needs a topic of "
                f"its own: use at most {DISTINCT_DELAYS_MAX} (repeats cost nothing)",
            )
        )
    content = {
        "sequence": [naming.canonical_delay(delay) for delay in seconds],
        "classify": [_rule(policy, rule) for rule in spec.classify],
        "undecodable": spec.undecodable,
        "maxTotalSeconds": spec.max_total_seconds or max(DAY_SECONDS, 2 * sum(seconds)),
        "headerProfile": spec.header_profile,
        "budget": _budget(spec),
    }
    return PolicyRevision(hash=content_hash(content), content=content)


def _sequence(spec: RetryPolicySpec) -> list[int]:
    """The delays in seconds, in order."""
    if spec.sequence is not None:
        return [naming.parse_delay(text) for text in spec.sequence]
    assert spec.generate is not None, "the API server requires one of the two"
    return list(_generated(spec.generate))


def _generated(wanted: Generate) -> Iterator[int]:
    """The series, in whole numbers throughout: the same everywhere."""
    longest = naming.parse_delay(wanted.max)
    delay = naming.parse_delay(wanted.initial)
    for _ in range(wanted.count):
        delay = min(delay, longest)
        yield delay
        delay = delay * wanted.factor_percent // 100


def _rule(policy: RetryPolicy, rule: Rule) -> dict[str, Any]:
    """One rule as workers read it."""
    regex = rule.when.message_regex
    if regex is not None:
        try:
            compile_pattern(regex)
        except PatternRefused as refused:
            message = f"RetryPolicy {policy.metadata.name!r}, spec.classify, messageRegex: {refused}"
            raise PolicyRefused(Problem(conditions.MESSAGE_REGEX_REFUSED, message)) from refused
    return {"when": rule.when.model_dump(by_alias=True, exclude_none=True), "then": rule.then}


def _budget(spec: RetryPolicySpec) -> dict[str, Any] | None:
    return None if spec.budget is None else spec.budget.model_dump(by_alias=True)


def delays_text(sequence: Sequence[str]) -> str:
    """The delays as a column shows them, `5m,5m,1h`; cut where a status could not hold them."""
    text = ",".join(sequence)
    return text if len(text) <= DELAYS_TEXT_CHARACTERS_MAX else text[: DELAYS_TEXT_CHARACTERS_MAX - 1] + "…"


def duration_text(seconds: int) -> str:
    """A time as people say it, in its two largest units: `2h40m`, `7d`, `90s` is `1m30s`."""
    parts = []
    for unit, size in reversed(naming.UNIT_SECONDS.items()):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"
