"""Status of a RetryPolicy, projected from its expanded spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.conditions import Condition
from fleet_operator.planning import times
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import PolicyRevision

DELAYS_TEXT_CHARACTERS_MAX: Final = 1024
KEPT: Final = ("revision", "delaysText", "attempts", "totalText")


def project_retrypolicy_status(
    outcome: PolicyRevision | Problem, *, generation: int, groups: int, previous: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """The whole status. An unusable policy shows its last usable content."""
    if isinstance(outcome, PolicyRevision):
        shown: dict[str, Any] = {
            "revision": outcome.hash,
            "delaysText": delays_text(outcome.sequence),
            "attempts": len(outcome.sequence),
            "totalText": duration_text(outcome.total_seconds),
        }
    else:
        shown = {key: previous[key] for key in KEPT if key in previous}
    ready = _ready(outcome, previous.get("revision"))
    return c.with_conditions({**shown, "groupCount": groups}, [ready], times.to_text(now), generation, previous)


def _ready(outcome: PolicyRevision | Problem, good: str | None) -> Condition:
    if isinstance(outcome, PolicyRevision):
        total = duration_text(outcome.total_seconds)
        message = f"{len(outcome.sequence)} attempts after the first, over {total}"
        return Condition(c.READY, "True", c.POLICY_ACCEPTED, message)
    stays = f"; groups keep revision {good}" if good else "; groups that refer to it wait"
    return Condition(c.READY, "False", outcome.reason, f"{outcome.message}{stays}")


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
