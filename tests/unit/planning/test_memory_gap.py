"""Runs that may be older than the memory of their group are refused, by the clock that stamped them."""

from __future__ import annotations

import pytest

from fleet_operator.api.v1alpha1 import OffsetReset
from fleet_operator.planning import times
from fleet_operator.planning.run import MEMORY_MARGIN_S, ReferencedGroup, find_memory_gap
from fleet_operator.planning.state.group import OffsetsState
from tests.unit.planning.builders import NOW


def has_memory_gap(created: float, *, began: float, made_at: float | None = None) -> bool:
    metadata = {"name": "again", "namespace": "shop", "uid": "uid", "creationTimestamp": times.to_text(created)}
    reset = OffsetReset.model_validate({"metadata": metadata, "spec": {"groupRef": {"name": "orders"}, "to": "Latest"}})
    offsets = OffsetsState(began=began, inherited=True)
    return find_memory_gap(reset, ReferencedGroup(offsets=offsets, memory_made_at=made_at), "", begun=False) is not None


@pytest.mark.parametrize("behind_s", [0.0, 900.0, 86_400.0])
def test_clock_of_the_operator_does_not_make_a_restored_run_seem_younger(behind_s: float) -> None:
    assert has_memory_gap(NOW + 1, began=NOW - behind_s, made_at=NOW)
    assert not has_memory_gap(NOW + MEMORY_MARGIN_S + 1, began=NOW - behind_s, made_at=NOW)


def test_memory_that_begins_later_than_its_object_counts_from_then_on() -> None:
    """Another object owned the Kafka group before."""
    assert has_memory_gap(NOW - 1, began=NOW, made_at=NOW - 86_400)
