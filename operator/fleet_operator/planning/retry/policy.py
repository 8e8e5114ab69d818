"""A RetryPolicy expanded into the revision that workers follow, and its texts in the status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from fleet_consumer.contract import naming
from fleet_consumer.contract.policies import TooManyDelays
from fleet_consumer.contract.policy_expansion import expand_policy
from fleet_consumer.contract.section import PatternInvalid, SettingsInvalid
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.retrypolicy import RetryPolicy
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import PolicyRevision

DELAYS_TEXT_CHARACTERS_MAX: Final = 1024


def expand(policy: RetryPolicy) -> PolicyRevision:
    """The revision of a policy's spec. Raises SettingsInvalid."""
    content = expand_policy(policy.spec.model_dump(mode="json", by_alias=True, exclude_none=True), "spec")
    return PolicyRevision(hash=naming.content_hash(content), content=content)


def read_policy(body: Mapping[str, Any]) -> PolicyRevision | Problem:
    """The content of a RetryPolicy, or the problem with its spec."""
    name = f"RetryPolicy {body['metadata']['name']!r}"
    try:
        return expand(RetryPolicy.model_validate(body))
    except TooManyDelays as refused:
        return Problem(conditions.TOO_MANY_DELAYS, f"{name} {refused.problem}")
    except PatternInvalid as refused:
        message = f"{name}, spec.classify, messageRegex: {refused.problem}"
        return Problem(conditions.MESSAGE_REGEX_REFUSED, message)
    except (SettingsInvalid, ValidationError) as refused:  # the API server accepts these if its CRD is another version
        return Problem(conditions.SPEC_INVALID, f"{name}: {refused}")


def delays_text(sequence: Sequence[str]) -> str:
    """The delays as a column shows them, `5m,5m,1h`; cut to what a status can hold."""
    text = ",".join(sequence)
    return text if len(text) <= DELAYS_TEXT_CHARACTERS_MAX else text[: DELAYS_TEXT_CHARACTERS_MAX - 1] + "…"


def duration_text(seconds: int) -> str:
    """A duration in its two largest units: `2h40m`, `7d`; 90 seconds are `1m30s`."""
    parts = []
    for unit, size in reversed(naming.UNIT_SECONDS.items()):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"
