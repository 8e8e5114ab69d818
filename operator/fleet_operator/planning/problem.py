"""Root cause in a status: one reason word and one sentence, in which few names stand for many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NAMED_MAX: Final = 3
"""Number of names in a sentence; the others are counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Reason word (of `api.v1alpha1.conditions`), and a message with the object, the finding and the action."""

    reason: str
    message: str


def name_some(names: Sequence[str], count: int | None = None) -> str:
    """A few names, and how many more there are: of `count`, by default of the names."""
    shown = ", ".join(names[:NAMED_MAX])
    more = (len(names) if count is None else count) - min(len(names), NAMED_MAX)
    return f"{shown} and {more} more" if more > 0 else shown
