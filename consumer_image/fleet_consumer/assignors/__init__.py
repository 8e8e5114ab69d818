"""Assignors: pure functions from a cluster's partitions and the members' subscriptions to an assignment.

The group's leader runs one of them; custom ones implement `Assignor` and are named as `module:Class`. `load` finds
both kinds. No I/O and no clock. A slow assignor is fine: it runs beside the heartbeats.
"""

from fleet_consumer.assignors.interface import (
    COOPERATIVE,
    EAGER,
    Assignment,
    Assignor,
    ClusterView,
    RebalanceProtocol,
    Subscription,
    TakesRates,
)
from fleet_consumer.assignors.loading import BUILT_IN, AssignorInvalid, AssignorUnknown, complete, load

__all__ = [
    "BUILT_IN",
    "COOPERATIVE",
    "EAGER",
    "Assignment",
    "Assignor",
    "AssignorInvalid",
    "AssignorUnknown",
    "ClusterView",
    "RebalanceProtocol",
    "Subscription",
    "TakesRates",
    "complete",
    "load",
]
