"""The number of main workers, and the limit that the status shows."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.planning.fleet.parts import ScaleDecision, decide_scale
from tests.unit.planning.builders import consumer_group


@pytest.mark.parametrize(
    ("spec", "partitions", "stopped", "wanted"),
    [
        ({}, 4, False, ScaleDecision(3)),
        ({}, 2, False, ScaleDecision(3, "Partitions")),
        ({}, None, False, ScaleDecision(3)),
        ({}, 2, True, ScaleDecision(0)),
        ({"suspend": True}, 2, False, ScaleDecision(0, "Suspended")),
        ({"suspend": True}, 2, True, ScaleDecision(0, "Suspended")),
    ],
)
def test_replicas_are_those_of_the_spec_while_the_fleet_may_run(
    spec: dict[str, Any], partitions: int | None, stopped: bool, wanted: ScaleDecision
) -> None:
    counts = None if partitions is None else {"orders": partitions}
    assert decide_scale(consumer_group(replicas=3, **spec), counts, stopped=stopped) == wanted
