"""Root cause in a status: one reason word and one sentence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """Reason word (of `api.v1alpha1.conditions`), and a message with the object, the finding and the action."""

    reason: str
    message: str
