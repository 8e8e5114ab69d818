"""Policy files for tests: the smallest whole one, and ways to change it."""

from __future__ import annotations

import copy
from typing import Any

from fleet_consumer.contract.naming import canonical_delay, parse_delay
from fleet_consumer.contract.policies import Policies, Policy, parse_policies

REVISION = "a1b2c3d4e5"
OTHER = "0123456789"
UNKNOWN = "ffffffffff"
NO_BUDGET = {"maxFailurePercent": 50, "windowSeconds": 60, "minRecords": 100, "action": "None", "cooldownSeconds": 30}
"""Turned off; `budget=None` is the default."""


def revision(*delays: str, **fields: Any) -> dict[str, Any]:
    """The content of one revision."""
    content: dict[str, Any] = {
        "sequence": list(delays),
        "classify": [],
        "undecodable": "Fail",
        "maxTotalSeconds": None,
        "headerProfile": "Native",
        "budget": NO_BUDGET,
    }
    return content | fields


def document(*delays: str, others: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A policies.json whose current revision has these delays; `others` are further revisions."""
    revisions = {REVISION: revision(*delays, **fields), **(others or {})}
    used = {canonical_delay(parse_delay(delay)) for each in revisions.values() for delay in each["sequence"]}
    return {
        "version": 1,
        "policy": "standard",
        "current": REVISION,
        "revisions": copy.deepcopy(revisions),
        "delays": sorted(used),
        "partitions": 12,
        "maxMessageBytes": 1_114_124,
    }


def policies(*delays: str, others: dict[str, Any] | None = None, **fields: Any) -> Policies:
    return parse_policies(document(*delays, others=others, **fields))


def policy(*delays: str, **fields: Any) -> Policy:
    return policies(*delays, **fields).newest
