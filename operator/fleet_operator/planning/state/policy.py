"""The state of a RetryPolicy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyState:
    """`revision` is the hash of the last content that could be used; its record is kept."""

    revision: str | None = None
