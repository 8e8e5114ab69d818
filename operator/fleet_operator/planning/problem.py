"""A root cause as it is shown to people: one reason word and one sentence to act on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong: a CamelCase `reason` from `api.v1alpha1.conditions`, and a `message` that says what to do."""

    reason: str
    message: str
