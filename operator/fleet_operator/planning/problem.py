"""Root cause in a status: one reason word and one sentence, in which few names stand for many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.model import TOO_LARGE

NAMED_MAX: Final = 3
"""Number of names in a sentence; the others are counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Reason word (of `api.v1alpha1.conditions`), and a message with the object, the finding and the action."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that can never be carried out as it is written."""

    problem: Problem


def name_some(names: Sequence[str], count: int | None = None) -> str:
    """A few names, and how many more there are: of `count`, by default of the names."""
    shown = ", ".join(names[:NAMED_MAX])
    more = (len(names) if count is None else count) - min(len(names), NAMED_MAX)
    return f"{shown} and {more} more" if more > 0 else shown


def spec_problem(error: ValidationError) -> Problem:
    """The problem of a spec that cannot be read: it is too large, or of another version of the CRD."""
    first = error.errors(include_url=False)[0]
    if first["type"] == TOO_LARGE:
        return Problem(conditions.SPEC_TOO_LARGE, first["msg"])
    return Problem(conditions.SPEC_INVALID, str(error))
