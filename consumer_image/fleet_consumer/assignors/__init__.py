"""Assignors: pure functions that compute an assignment from a cluster's partitions and the members' subscriptions.

The group's leader runs an assignor. Custom assignors implement `Assignor` and are named as `module:Class`; `load` finds
built-in and custom assignors. An assignor does no I/O and reads no clock. It may be slow, because the member sends
heartbeats while it runs.
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
