"""The budget of rebalances (`maxRebalancesPerHour`), and the cost of a scaling step. Pure.

A scaling step causes a rebalance, and the rebalance stops partitions. The cost of the step is the share of the group's
partitions that stop, from 0 to 1. A third of the budget is reserved
for growth, so shrinking may not use it. Growth because of a rising lag waits at most a few minutes, because falling
behind costs more than any rebalance.
"""

from dataclasses import dataclass
from typing import Final

from fleet_operator.planning.scaling.dealing import Dealing
from fleet_operator.planning.scaling.facts import ScalingFacts

OVERDUE_S: Final = 180.0
"""Seconds after the last step until a fleet with a rising lag may grow beyond the budget."""
SHRINKING_SHARE: Final = 2.0 / 3.0
"""Share of the budget that shrinking may use."""
EAGER: Final = frozenset({"range", "roundrobin", "sticky"})
"""Assignors with the eager protocol: their members revoke all partitions in each rebalance."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget at the time `now`, in epoch seconds. `dealing` (the present and planned owners of the partitions) is
    None while the load is unknown."""

    facts: ScalingFacts
    dealing: Dealing | None
    now: float

    @property
    def spent(self) -> float:
        """Sum of the costs of the rebalances in the last hour. A rebalance that stopped only a share of the partitions
        counts as this share."""
        return sum(step.cost for step in self.facts.memory.steps_within_hour(self.now))

    def allows_growth(self, count: int, *, is_urgent: bool = False) -> bool:
        """True if the fleet may grow to `count` workers. `is_urgent`: the lag rises, so growth beyond the budget is
        allowed once the last step is `OVERDUE_S` seconds ago."""
        within = self.spent + self.cost_of(count) <= self.facts.spec.max_rebalances_per_hour
        steps = self.facts.memory.steps_within_hour(self.now)
        return within or (is_urgent and all(self.now - step.at >= OVERDUE_S for step in steps))

    def allows_shrinking(self, count: int) -> bool:
        """True if the shrinking share of the budget allows the step. One rebalance an hour is always allowed."""
        most = max(1.0, self.facts.spec.max_rebalances_per_hour * SHRINKING_SHARE)
        return self.spent + self.cost_of(count) <= most

    def cost_of(self, count: int) -> float:
        """The share of the group's partitions that a step to `count` workers stops. An eager assignor stops all
        partitions, a cooperative assignor only partitions that change their owner. A step from or to zero workers costs
        nothing."""
        if not count or not self.facts.current:
            return 0.0
        if self.dealing is None or self.facts.assignor in EAGER or not self.dealing.owned:
            return 1.0
        owners = {key: place for place, owned in enumerate(self.dealing.owned) for key in owned}
        after = {key: place for place, owned in enumerate(self.dealing.at(count)) for key in owned}
        moved = sum(owners.get(key) != place for key, place in after.items())
        return moved / len(after) if after else 1.0
