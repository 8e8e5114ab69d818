"""A scripted cluster that is polled as an observer does, with the memory between polls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from fleet_operator.observe.poll import Poll
from fleet_operator.observe.poll_memory import ClusterMemory, PartMemory
from fleet_operator.observe.state_poll import StatePoll
from fleet_operator.observe.subscriptions import GroupSubscription
from fleet_operator.planning.observation import ClusterObservation, GroupObservation
from tests.support.clock import StillClock
from tests.unit.observe.scripted_cluster import ScriptedCluster


@dataclass
class Watched:
    """One part of the groups. With `forgetful` polls remember nothing but the retry flows and the last observation."""

    cluster: ScriptedCluster
    subscriptions: Mapping[str, GroupSubscription]
    clock: StillClock = field(default_factory=StillClock)
    memory: ClusterMemory = field(default_factory=ClusterMemory)
    part: PartMemory = field(default_factory=PartMemory)
    last: ClusterObservation | None = None
    forgetful: bool = False
    survey: bool = True

    def poll(self, after_s: float = 5.0) -> ClusterObservation:
        self.clock.now += after_s
        if self.forgetful:
            self.memory = ClusterMemory(configs=self.memory.configs)
            self.part = PartMemory(flow=self.part.flow, matches=self.part.matches)
        self.last = Poll(
            client=cast(Any, self.cluster),
            clock=self.clock,
            subscriptions=self.subscriptions,
            last=self.last,
            cluster=self.memory,
            part=self.part,
            stopping=lambda: False,
            survey=self.survey,
        ).run()
        return self.last

    def group(self, group_id: str, after_s: float = 5.0) -> GroupObservation:
        """The group as a poll finds it."""
        return self.poll(after_s).groups[group_id]

    def poll_states(self) -> ClusterObservation:
        """The newest observation after a state poll."""
        assert self.last is not None, "state polls come after polls"
        seen = StatePoll(client=cast(Any, self.cluster), clock=self.clock, last=self.last, stopping=lambda: False).run()
        self.last = seen or self.last
        return self.last
