"""Decisions about scaled groups between reconciles: at each observation, so that a reconcile follows only a new one.

Rates need every sample, and a full reconcile for each would be most of the operator's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleet_consumer.clock import Clock
from fleet_operator.planning.lag import GroupLag
from fleet_operator.planning.observation import GroupObservation
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.scaling.facts import ScalingFacts
from fleet_operator.planning.scaling.trail import Trail
from fleet_operator.planning.status.scaling import entry_of, is_moved
from fleet_operator.reconcilers.consumergroup.scaling import decide_load
from fleet_operator.runtime.cache import Key


@dataclass(slots=True)
class _Followed:
    """The last reconcile's facts and decision, the entry in the status, and the trail up to now."""

    facts: ScalingFacts
    decision: ScaleDecision
    newest: ScaleDecision
    shown: Mapping[str, Any]
    trail: Trail


@dataclass(slots=True)
class ScalingWatch:
    """All scaled groups that were observed when they were reconciled last. Used on the event loop only."""

    clock: Clock
    _followed: dict[Key, _Followed] = field(default_factory=dict)

    def follow(
        self, key: Key, facts: ScalingFacts | None, decision: ScaleDecision, trail: Trail, shown: Mapping[str, Any]
    ) -> None:
        """Take in a reconcile's decision; `facts` are None for a fleet that is not scaled now."""
        if facts is None:
            self._followed.pop(key, None)
        else:
            self._followed[key] = _Followed(facts, decision, decision, shown, trail)

    def forget(self, key: Key) -> None:
        self._followed.pop(key, None)

    def trail(self, key: Key) -> Trail | None:
        """The trail of a group that is followed."""
        found = self._followed.get(key)
        return found.trail if found is not None else None

    def newest(self, key: Key) -> ScaleDecision | None:
        """The decision on the newest observation, which a reconcile may still have to carry out."""
        found = self._followed.get(key)
        return found.newest if found is not None else None

    def has_news(self, key: Key, observed: GroupObservation, lag: GroupLag) -> bool:
        """Decide on an observation in which no more than offsets has changed; True if the group has to be
        reconciled."""
        found = self._followed.get(key)
        if found is None:
            return False
        facts = replace(found.facts, observed=observed, lag=lag)
        if facts.awaits_rates:
            found.trail = found.trail.forgotten()
            return False
        decision, found.trail = decide_load(facts, found.trail, self.clock.wall())
        found.newest = decision
        before = found.decision
        if (decision.replicas, decision.limit) != (before.replicas, before.limit):
            return True
        noted, learnt = before.memory, decision.memory.capacity if decision.memory is not None else None
        if noted and learnt and noted.with_capacity(learnt.rate, learnt.revision) != noted:
            return True
        return decision.inputs is not None and is_moved(found.shown, entry_of(decision))
