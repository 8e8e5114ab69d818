"""The state of a ConsumerGroup: one part for each concern of its reconcile."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet_operator.planning.state.fleet import FleetState
from fleet_operator.planning.state.offsets import OffsetsState
from fleet_operator.planning.state.retries import RetriesState
from fleet_operator.planning.state.sizing import SizingState
from fleet_operator.planning.state.upgrade import UpgradeState


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """The operator's memory of a ConsumerGroup."""

    upgrade: UpgradeState = field(default_factory=UpgradeState)
    fleet: FleetState = field(default_factory=FleetState)
    sizing: SizingState = field(default_factory=SizingState)
    retries: RetriesState = field(default_factory=RetriesState)
    offsets: OffsetsState = field(default_factory=OffsetsState)
