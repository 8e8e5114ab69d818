"""Examples for the rules of `spec.offsets`; `test_crd_rules` tries them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.api.crd_objects import JsonObject, consumer_group

RESET_IMMUTABLE_WORDS = "spec.offsets.reset is done once for its id"

OFFSETS_REFUSED: list[tuple[str, JsonObject, str]] = [
    (
        "a reset to a time without the time",
        consumer_group({"spec.offsets": {"reset": {"id": "a", "to": "Time"}}}),
        "spec.offsets.reset.time goes with to: Time",
    ),
    (
        "a reset to offsets without offsets",
        consumer_group({"spec.offsets": {"reset": {"id": "a", "to": "Offsets"}}}),
        "spec.offsets.reset.offsets goes with to: Offsets",
    ),
    (
        "a reset to offsets of chosen topics",
        consumer_group(
            {
                "spec.offsets": {
                    "reset": {"id": "a", "to": "Offsets", "offsets": {"orders": {"0": 5}}, "topics": ["orders"]}
                }
            }
        ),
        "spec.offsets.reset.topics cannot be given with to: Offsets",
    ),
]

OFFSETS_REFUSED.append(
    (
        "more offsets than a status holds",
        consumer_group(
            {
                "spec.offsets": {
                    "reset": {
                        "id": "a",
                        "to": "Offsets",
                        "offsets": {topic: {str(n): 1 for n in range(2501)} for topic in ("orders", "returns")},
                    }
                }
            }
        ),
        "spec.offsets.reset.offsets must not name more than 5000 partitions",
    )
)

OFFSETS_IMMUTABLE: list[tuple[str, Mapping[str, Any], Mapping[str, Any], str]] = [
    (
        "a reset under a used id",
        {"spec.offsets": {"reset": {"id": "a", "to": "Earliest"}}},
        {"spec.offsets": {"reset": {"id": "a", "to": "Latest"}}},
        RESET_IMMUTABLE_WORDS,
    ),
    (
        "a time under a used id",
        {"spec.offsets": {"reset": {"id": "a", "to": "Time", "time": "2026-11-23T08:00:00Z"}}},
        {"spec.offsets": {"reset": {"id": "a", "to": "Time", "time": "2026-11-23T09:00:00Z"}}},
        RESET_IMMUTABLE_WORDS,
    ),
    (
        "offsets under a used id",
        {"spec.offsets": {"reset": {"id": "a", "to": "Offsets", "offsets": {"orders": {"0": 5}}}}},
        {"spec.offsets": {"reset": {"id": "a", "to": "Offsets", "offsets": {"orders": {"0": 6}}}}},
        RESET_IMMUTABLE_WORDS,
    ),
    (
        "topics under a used id",
        {"spec.offsets": {"reset": {"id": "a", "to": "Earliest"}}},
        {"spec.offsets": {"reset": {"id": "a", "to": "Earliest", "topics": ["orders"]}}},
        RESET_IMMUTABLE_WORDS,
    ),
    (
        "a real reset made a dry run",
        {"spec.offsets": {"reset": {"id": "a", "to": "Earliest"}}},
        {"spec.offsets": {"reset": {"id": "a", "to": "Earliest", "dryRun": True}}},
        RESET_IMMUTABLE_WORDS,
    ),
]
