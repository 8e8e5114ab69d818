"""Root cause in a status: one reason word and one sentence. The sentence names a few objects and counts the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.model import TOO_LARGE

NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason word (from `api.v1alpha1.conditions`), and a message that names the object, the finding and the
    remedy."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that can never be carried out as written."""

    problem: Problem


def name_some(names: Sequence[str], count: int | None = None) -> str:
    """Join names as 'a, b and 7 more'. `count`: the total number, if `names` is incomplete."""
    shown = ", ".join(names[:NAMED_MAX])
    more = (len(names) if count is None else count) - min(len(names), NAMED_MAX)
    return f"{shown} and {more} more" if more > 0 else shown


def spec_problem(error: ValidationError) -> Problem:
    """The problem of an unreadable spec: the spec is too large, or the API server accepted it with another version of
    the CRD."""
    first = error.errors(include_url=False)[0]
    if first["type"] == TOO_LARGE:
        return Problem(conditions.SPEC_TOO_LARGE, first["msg"])
    return Problem(conditions.SPEC_INVALID, str(error))
