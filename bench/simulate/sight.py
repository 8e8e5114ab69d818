"""A view of a simulated group, of all that brokers, Kubernetes and the pages of workers tell a rule of scaling.

Rules get this instead of the group, as that has the curves of what is still to come.
"""

from __future__ import annotations

from typing import NamedTuple

from bench.simulate.model import Group
from fleet_operator.planning.observation import GroupObservation


class Offsets(NamedTuple):
    """Commits and ends of all partitions, as brokers tell them to whoever asks."""

    committed: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def lag(self) -> int:
        return sum(max(0, end - done) for done, end in zip(self.committed, self.ends, strict=True))


class WorkerPage(NamedTuple):
    """A worker's page: its counters, and the partitions of the records in hand. `since` is its start, by which
    counters that begin again are known."""

    ordinal: int
    since: float
    busy_s: float
    records: float
    in_hand: tuple[int, ...]


class Sight:
    """A view of a group in the second in which it is asked. Times are seconds since the beginning, but for `at`."""

    __slots__ = ("_group",)

    def __init__(self, group: Group) -> None:
        self._group = group

    @property
    def now(self) -> float:
        return self._group.now

    @property
    def at(self) -> float:
        """The time as epoch seconds."""
        return self._group.at

    @property
    def pods(self) -> int:
        """Workers that are wanted: the number of `spec.replicas`."""
        return len(self._group.pods)

    @property
    def ready(self) -> int:
        return len(self._group.workers)

    @property
    def partitions(self) -> int:
        return self._group.world.partitions

    @property
    def assignor(self) -> str:
        return self._group.world.assignor

    @property
    def commit_s(self) -> float:
        return self._group.world.commit_s

    @property
    def is_rolling(self) -> bool:
        """True while workers of a new revision are on their way."""
        return self._group.world.is_rolling(self._group.now)

    @property
    def revision(self) -> str | None:
        """The workers' revision; None while one replaces another."""
        if self.is_rolling:
            return None
        return str(1 + sum(at <= self._group.now for at in self._group.world.releases))

    @property
    def polls(self) -> bool:
        """True in the seconds in which the operator polls the group, whether brokers answer or not."""
        return self._group.now % self._group.world.poll_s == 0.0

    @property
    def observed(self) -> GroupObservation | None:
        """The operator's last observation; None before the first, and at a poll to which no broker answers."""
        if self.polls and self._group.world.is_unseen(self._group.now):
            return None
        return self._group.observed

    def offsets(self) -> Offsets | None:
        """Ask the brokers; None unless they tell about all partitions."""
        group, world = self._group, self._group.world
        if world.is_unseen(group.now):
            return None
        if world.leaderless and not all(world.has_leader(number, group.now) for number in range(world.partitions)):
            return None
        return Offsets(tuple(group.committed), tuple(map(int, group.work.ends)))

    def is_stable(self) -> bool:
        """True if all workers have joined and none waits for a rebalance."""
        return self.ready == self.pods > 0 and self._group.now >= self._group.rebalance_until

    def pages(self) -> tuple[WorkerPage, ...]:
        """The pages of all workers."""
        return tuple(
            WorkerPage(ordinal, worker.since, worker.busy_s, worker.records, worker.holds)
            for ordinal, worker in enumerate(self._group.workers)
        )
