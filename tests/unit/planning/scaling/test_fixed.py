"""The number of main workers, and the limit that the status shows."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.state.sizing import SizingState
from tests.unit.planning.builders import consumer_group, scale_of

GIVEN = SizingState(replicas=3)


@pytest.mark.parametrize(
    ("spec", "partitions", "stopped", "wanted"),
    [
        ({}, 4, False, ScaleDecision(replicas=3, memory=GIVEN)),
        ({}, 2, False, ScaleDecision(replicas=3, limit="Partitions", memory=GIVEN)),
        ({}, None, False, ScaleDecision(replicas=3, memory=GIVEN)),
        ({}, 2, True, ScaleDecision(replicas=0)),
        ({"suspend": True}, 2, False, ScaleDecision(replicas=0, limit="Suspended")),
        ({"suspend": True}, 2, True, ScaleDecision(replicas=0, limit="Suspended")),
    ],
)
def test_replicas_are_those_of_the_spec_while_the_fleet_may_run(
    spec: dict[str, Any], partitions: int | None, stopped: bool, wanted: ScaleDecision
) -> None:
    counts = None if partitions is None else {"orders": partitions}
    assert scale_of(consumer_group(replicas=3, **spec), counts, stopped=stopped) == wanted
