"""A model of a consumer group, second by second: arrivals, workers that start, rebalances, commits. Pure.

Workers are equal and take time to start; a change of the members stops all of them for a rebalance. Commits come in
intervals, and the group is observed in intervals, as in a cluster. Partitions are dealt evenly, in ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from fleet_operator.observe.group_aggregation import extend_samples
from fleet_operator.planning.observation import UNKNOWN_STATE, GroupObservation, GroupTransition, MemberObservation

TOPIC: Final = "records"
GROUP: Final = "simulated"
EPOCH: Final = 1_800_000_000.0
"""The time at which a simulation begins, epoch seconds: any that is not zero."""
STABLE: Final = "Stable"
PREPARING: Final = "PreparingRebalance"
EMPTY: Final = "Empty"
TRANSITIONS_MAX: Final = 10

Key = tuple[str, int]
Curve = Callable[[float], float]
"""Records per second, by the second since the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Surroundings of a fleet; times in seconds, rates in records per second.

    - `capacity`: of one worker; `downstream`: of what all of them depend on, None without such a limit.
    - `shares`: the part of the arrivals that goes to each partition; they add up to 1.
    - `stuck`: partitions that do not move from a time on.
    - `unseen`: stretches (from, to) in which the group cannot be observed; nothing arrives and nothing is handled then,
      and producers send afterwards what they have kept, as fast as `flush` times their rate.
    """

    arrivals: Curve
    capacity: float
    shares: tuple[float, ...]
    downstream: float | None = None
    stuck: dict[int, float] = field(default_factory=dict)
    unseen: tuple[tuple[float, float], ...] = ()
    flush: float = 4.0
    start_s: float = 8.0
    rebalance_s: float = 4.0
    commit_s: float = 5.0
    look_s: float = 5.0

    def is_unseen(self, at: float) -> bool:
        return any(begin <= at < end for begin, end in self.unseen)


@dataclass(slots=True)
class Group:
    """The state of the group and of its fleet. `pods` are the times at which each worker is ready, by ordinal."""

    world: World
    pods: list[float] = field(default_factory=list)
    now: float = 0.0
    ends: list[float] = field(default_factory=list)
    handled: list[float] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    kept_back: float = 0.0
    members: int = 0
    rebalance_until: float = 0.0
    rebalances: int = 0
    transitions: tuple[GroupTransition, ...] = ()
    observed: GroupObservation | None = None

    def __post_init__(self) -> None:
        count = len(self.world.shares)
        self.ends, self.handled, self.committed = [0.0] * count, [0.0] * count, [0] * count

    @property
    def lag(self) -> float:
        """Records that are not committed."""
        return sum(int(end) - done for end, done in zip(self.ends, self.committed, strict=True))

    @property
    def state(self) -> str:
        if not self.members:
            return EMPTY
        return PREPARING if self.now < self.rebalance_until else STABLE

    @property
    def at(self) -> float:
        """The time as epoch seconds."""
        return EPOCH + self.now

    def scale(self, count: int) -> None:
        """Set the number of workers; those that are removed leave at once."""
        del self.pods[count:]
        self.pods.extend([self.now + self.world.start_s] * (count - len(self.pods)))

    def advance(self) -> None:
        """Let one second pass."""
        self.now += 1.0
        self._arrive()
        self._join()
        if self.state == STABLE and not self.world.is_unseen(self.now):
            self._handle()
        if self.now % self.world.commit_s == 0.0:
            self.committed = [max(done, int(to)) for done, to in zip(self.committed, self.handled, strict=True)]
        if self.now % self.world.look_s == 0.0 and not self.world.is_unseen(self.now):
            self._observe()

    def _arrive(self) -> None:
        rate = self.world.arrivals(self.now)
        if self.world.is_unseen(self.now):
            self.kept_back += rate
            return
        late = min(self.kept_back, rate * (self.world.flush - 1.0))
        self.kept_back -= late
        for number, share in enumerate(self.world.shares):
            self.ends[number] += (rate + late) * share

    def _join(self) -> None:
        ready = sum(ready_at <= self.now for ready_at in self.pods)
        before = self.state
        if ready != self.members:
            if ready and self.members:
                self.rebalance_until = self.now + self.world.rebalance_s
                self.rebalances += 1
            elif ready:
                self.rebalances += 1
            self.members = ready
        self._note(before)

    def _note(self, before: str) -> None:
        known = self.transitions[-1].after if self.transitions else UNKNOWN_STATE
        if self.state != known:
            transition = GroupTransition(before=before if self.transitions else known, after=self.state, at=self.at)
            self.transitions = (*self.transitions, transition)[-TRANSITIONS_MAX:]

    def owned(self) -> list[range]:
        """The partitions of each member."""
        count, members = len(self.world.shares), self.members
        small, larger = divmod(count, members)
        starts = [number * small + min(number, larger) for number in range(members + 1)]
        return [range(begin, end) for begin, end in pairwise(starts)]

    def _handle(self) -> None:
        world, owned = self.world, self.owned()
        pace = world.capacity
        if world.downstream is not None:
            busy = sum(any(self._waits(number) for number in numbers) for numbers in owned)
            pace = min(pace, world.downstream / max(busy, 1))
        for numbers in owned:
            left = pace
            waiting = [number for number in numbers if self._waits(number)]
            for place, number in enumerate(sorted(waiting, key=lambda each: self.ends[each] - self.handled[each])):
                done = min(self.ends[number] - self.handled[number], left / (len(waiting) - place))
                self.handled[number] += done
                left -= done

    def _waits(self, number: int) -> bool:
        stands = self.world.stuck.get(number)
        return self.ends[number] > self.handled[number] and (stands is None or self.now < stands)

    def _observe(self) -> None:
        stable = self.state == STABLE
        members = tuple(
            MemberObservation(
                member_id=f"worker-{ordinal}",
                instance_id=f"worker-{ordinal}",
                client_id=f"worker-{ordinal}",
                host="",
                partitions={TOPIC: tuple(numbers)} if stable else {},
            )
            for ordinal, numbers in enumerate(self.owned() if self.members else ())
        )
        keys = self.keys
        seen = GroupObservation(
            group_id=GROUP,
            observed_at=self.at,
            state=self.state,
            members=members,
            transitions=self.transitions,
            committed=dict(zip(keys, self.committed, strict=True)),
            end_offsets={key: int(end) for key, end in zip(keys, self.ends, strict=True)},
            log_starts=dict.fromkeys(keys, 0),
        )
        samples = extend_samples(seen, self.observed)
        self.observed = replace(seen, samples=samples)

    @property
    def keys(self) -> Sequence[Key]:
        return [(TOPIC, number) for number in range(len(self.world.shares))]


def even_shares(partitions: int) -> tuple[float, ...]:
    """Equal parts for all partitions."""
    return (1.0 / partitions,) * partitions


def hot_shares(partitions: int, share: float) -> tuple[float, ...]:
    """One hot partition, and equal parts for the others."""
    return (share, *((1.0 - share) / (partitions - 1),) * (partitions - 1)) if partitions > 1 else (1.0,)
