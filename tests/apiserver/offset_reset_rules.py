"""OffsetResets that the API server refuses, for test_crd_rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.api.crd_objects import REMOVED, JsonObject, changed

PLACES = [{"topic": "orders", "partition": 0, "offset": 5}, {"topic": "orders", "partition": 1, "offset": 7}]
OFFSET_RESET_IMMUTABLE_WORDS = "spec is immutable except notAfter and ttlSecondsAfterFinished"


def offset_reset(changes: Mapping[str, Any] | None = None) -> JsonObject:
    """A good OffsetReset, changed; see `changed`."""
    body = {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "OffsetReset",
        "metadata": {"name": "again"},
        "spec": {"groupRef": {"name": "orders"}, "to": "Earliest"},
    }
    return changed(body, changes or {})


def reset_to_a_time() -> JsonObject:
    """A good OffsetReset of one topic."""
    return offset_reset({"spec.to": "Time", "spec.time": "2026-11-23T08:00:00Z", "spec.topics": ["orders"]})


def full_offset_reset() -> JsonObject:
    """Every field of an OffsetReset that goes with `offsets`."""
    given = {"to": "Offsets", "offsets": PLACES, "dryRun": True, "notAfter": "2027-01-01T00:00:00Z"}
    given["ttlSecondsAfterFinished"] = 60
    return offset_reset({f"spec.{name}": value for name, value in given.items()})


OFFSET_RESET_RULES: list[tuple[str, JsonObject, str]] = [
    ("a reset with a long name", offset_reset({"metadata.name": "a" * 64}), "metadata.name must be a DNS label of at"),
    ("a reset to a time without it", offset_reset({"spec.to": "Time"}), "spec.time is required with to: Time"),
    (
        "a reset to offsets without them",
        offset_reset({"spec.to": "Offsets"}),
        "spec.offsets is required with to: Offsets",
    ),
    (
        "offsets and topics",
        offset_reset({"spec.to": "Offsets", "spec.offsets": PLACES, "spec.topics": ["orders"]}),
        "spec.topics cannot be given with to: Offsets",
    ),
]

OFFSET_RESET_SCHEMA: list[tuple[str, JsonObject, str]] = [
    (
        "more offsets than a status holds",
        offset_reset(
            {
                "spec.to": "Offsets",
                "spec.offsets": [{"topic": "orders", "partition": number, "offset": 5} for number in range(5001)],
            }
        ),
        "spec.offsets",
    ),
    ("a negative offset", offset_reset({"spec.to": "Offsets", "spec.offsets": [PLACES[0] | {"offset": -1}]}), "offset"),
]

OFFSET_RESET_IMMUTABLE: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
    ("another end", {}, {"spec.to": "Latest"}),
    ("another group", {}, {"spec.groupRef": {"name": "returns"}}),
    ("a dry run that becomes a real one", {"spec.dryRun": True}, {"spec.dryRun": False}),
    ("topics that are removed", {"spec.topics": ["orders"]}, {"spec.topics": REMOVED}),
    ("topics that are added", {}, {"spec.topics": ["orders"]}),
    ("another time", {"spec.to": "Time", "spec.time": "2026-11-23T08:00:00Z"}, {"spec.time": "2026-11-23T09:00:00Z"}),
    ("another offset", {"spec.to": "Offsets", "spec.offsets": PLACES}, {"spec.offsets": PLACES[:1]}),
]
