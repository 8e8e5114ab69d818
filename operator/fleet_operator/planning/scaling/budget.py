"""The budget of rebalances: `maxRebalancesPerHour`, and what a step costs of it. Pure.

A step costs the part of the group that it stops. A fleet that shrinks leaves a third of the budget to growth. Growth
for a lag that rises waits for minutes at most: no rebalance costs as much as a fleet that falls behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fleet_operator.planning.scaling.dealing import Dealing
from fleet_operator.planning.scaling.facts import ScalingFacts

OVERDUE_S: Final = 180.0
"""Time after the last step from which workers that are behind get more of them beyond the budget."""
SHRINKING_SHARE: Final = 2.0 / 3.0
"""Share of the budget up to which a fleet shrinks."""
EAGER: Final = frozenset({"range", "roundrobin", "sticky"})
"""Assignors whose members give up everything for a rebalance."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The rest of the budget at a time, in epoch seconds. Without `dealing` nothing is known of who owns what."""

    facts: ScalingFacts
    dealing: Dealing | None
    now: float

    @property
    def spent(self) -> float:
        """Rebalances within the last hour; one that stopped a part of the group counts as that part."""
        return sum(step.cost for step in self.facts.memory.steps_within_hour(self.now))

    def allows_growth(self, count: int, *, is_urgent: bool = False) -> bool:
        """True if the fleet may grow to this number: within the budget, or as it is overdue under a lag that rises."""
        within = self.spent + self.cost_of(count) <= self.facts.spec.max_rebalances_per_hour
        return within or (is_urgent and self._is_overdue())

    def allows_shrinking(self, count: int) -> bool:
        """True if the fleet may shrink to this number. One rebalance an hour is always allowed."""
        most = max(1.0, self.facts.spec.max_rebalances_per_hour * SHRINKING_SHARE)
        return self.spent + self.cost_of(count) <= most

    def cost_of(self, count: int) -> float:
        """The part of a living group that a step to this number stops: all of it for an eager assignor, and what
        changes its owner for a cooperative one. Waking and falling asleep stop nobody."""
        if not count or not self.facts.current:
            return 0.0
        if self.dealing is None or self.facts.assignor in EAGER or not self.dealing.owned:
            return 1.0
        owners = {key: place for place, owned in enumerate(self.dealing.owned) for key in owned}
        after = {key: place for place, owned in enumerate(self.dealing.at(count)) for key in owned}
        moved = sum(owners.get(key) != place for key, place in after.items())
        return moved / len(after) if after else 1.0

    def _is_overdue(self) -> bool:
        steps = self.facts.memory.steps_within_hour(self.now)
        return all(self.now - step.at >= OVERDUE_S for step in steps)
