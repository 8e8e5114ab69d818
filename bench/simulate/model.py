"""A model of a consumer group, second by second: arrivals, workers that start, rebalances, records, commits. Pure.

Workers take time to start; a change of the members stops all of them for a rebalance, and the group's own assignor
deals the partitions. Commits come in intervals, and the group is observed in intervals that begin at another second, as
in a cluster: records that are handled and not committed yet are lag for every observer. In a steady state, that lag in
flight is the rate, times half of the interval of commits and the time that a record takes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bench.simulate.dealing import TOPIC, deal, worker_name
from bench.simulate.work import Second, Worker, Workload
from bench.simulate.world import World
from fleet_operator.observe.group_aggregation import extend_samples
from fleet_operator.planning.observation import UNKNOWN_STATE, GroupObservation, GroupTransition, MemberObservation

GROUP: Final = "simulated"
EPOCH: Final = 1_800_000_000.0
"""The time at which a simulation begins, epoch seconds: any that is not zero."""
STABLE: Final = "Stable"
PREPARING: Final = "PreparingRebalance"
EMPTY: Final = "Empty"
TRANSITIONS_MAX: Final = 10
RATES_KNOWN_S: Final = 30.0
"""Age of a group from which its members report rates of their partitions; plans keep them from then on."""

Key = tuple[str, int]


@dataclass(slots=True)
class Group:
    """The state of the group and of its fleet.

    `pods` are the times at which each worker is ready, by ordinal. `kept_back` are records that producers could not
    send yet. `observed` is what the operator knows.
    """

    world: World
    pods: list[float] = field(default_factory=list)
    now: float = 0.0
    work: Workload = field(init=False)
    committed: list[int] = field(init=False)
    keys: Sequence[Key] = field(init=False)
    kept_back: float = 0.0
    workers: list[Worker] = field(default_factory=list)
    rebalance_until: float = 0.0
    rebalances: int = 0
    transitions: tuple[GroupTransition, ...] = ()
    observed: GroupObservation | None = None
    _chance: random.Random | None = None

    def __post_init__(self) -> None:
        count = self.world.partitions
        self.work, self.committed = Workload(count), [0] * count
        self.keys = [(TOPIC, number) for number in range(count)]
        self._chance = None if self.world.seed is None else random.Random(self.world.seed)

    @property
    def lag(self) -> float:
        """Records that are not committed."""
        return sum(int(end) - done for end, done in zip(self.work.ends, self.committed, strict=True))

    @property
    def state(self) -> str:
        if not self.workers:
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
        world = self.world
        self.now += 1.0
        self.arrive()
        self._join()
        if self.state == STABLE and not world.is_unseen(self.now):
            self._handle()
        if (self.now - world.commit_phase_s) % world.commit_s == 0.0:
            self.committed = [max(done, int(to)) for done, to in zip(self.committed, self.work.handled, strict=True)]
        if self.now % world.poll_s == 0.0 and not world.is_unseen(self.now):
            self._observe()

    def arrive(self) -> None:
        """Append what producers send in the second that has begun."""
        world, ends = self.world, self.work.ends
        rate = world.arrivals(self.now)
        if world.is_unseen(self.now):
            self.kept_back += rate
            return
        late = min(self.kept_back, rate * (world.flush - 1.0))
        self.kept_back -= late
        sent = rate + late
        shares = world.shares_of(self.now)
        if self._chance is not None:
            drawn = _poisson(sent, self._chance)
            for number in self._chance.choices(range(world.partitions), shares, k=drawn):
                ends[number] += 1.0 if world.has_leader(number, self.now) else 0.0
            return
        for number, share in enumerate(shares):
            if not world.leaderless or world.has_leader(number, self.now):
                ends[number] += sent * share

    def _join(self) -> None:
        ready = sum(ready_at <= self.now for ready_at in self.pods)
        before, members = self.state, len(self.workers)
        if ready != members:
            if ready and members:
                self.rebalance_until = self.now + self.world.rebalance_s
            self.rebalances += bool(ready)
            del self.workers[ready:]
            self.workers.extend(Worker(self.now) for _ in range(ready - members))
            self._deal()
        self._note(before)

    def _deal(self) -> None:
        if not self.workers:
            return
        owned = tuple(worker.owned for worker in self.workers)
        rate = self.world.arrivals(self.now)
        rates = [rate * share for share in self.world.shares_of(self.now)] if self.now >= RATES_KNOWN_S else []
        dealt = deal(self.world.assignor, self.world.partitions, owned, len(self.workers), rates)
        for worker, numbers in zip(self.workers, dealt, strict=True):
            worker.own(numbers)

    def _note(self, before: str) -> None:
        known = self.transitions[-1].after if self.transitions else UNKNOWN_STATE
        if self.state != known:
            transition = GroupTransition(before=before if self.transitions else known, after=self.state, at=self.at)
            self.transitions = (*self.transitions, transition)[-TRANSITIONS_MAX:]

    def _handle(self) -> None:
        world, now = self.world, self.now
        moves = world.moves(now)
        pace = world.pace(now)
        limit = 1.0
        if world.downstream is not None and pace > 0.0:
            busy = sum(self.work.waits(worker.owned, moves) for worker in self.workers)
            limit = min(1.0, world.downstream(now) / max(busy, 1) / pace)
        second = Second(
            moves=moves,
            pace=pace,
            speed=limit,
            record_s=None if world.record_s is None else world.record_s(now),
            slots=world.slots,
            batch=world.batch,
        )
        cold = replace(second, speed=min(limit, world.cold_share)) if world.cold_s else second
        for worker in self.workers:
            worker.handle(self.work, cold if now - worker.since < world.cold_s else second)

    def _observe(self) -> None:
        stable = self.state == STABLE
        members = tuple(
            MemberObservation(
                member_id=worker_name(ordinal),
                instance_id=worker_name(ordinal),
                client_id=worker_name(ordinal),
                host="",
                partitions={TOPIC: worker.owned} if stable else {},
            )
            for ordinal, worker in enumerate(self.workers)
        )
        seen = GroupObservation(
            group_id=GROUP,
            observed_at=self.at,
            state=self.state,
            members=members,
            transitions=self.transitions,
            committed=dict(zip(self.keys, self.committed, strict=True)),
            end_offsets={
                key: int(end)
                for key, end in zip(self.keys, self.work.ends, strict=True)
                if self.world.has_leader(key[1], self.now)
            },
            log_starts=dict.fromkeys(self.keys, 0),
        )
        samples = extend_samples(seen, self.observed)
        self.observed = replace(seen, samples=samples)


def _poisson(mean: float, chance: random.Random) -> int:
    """The number of arrivals in a second, if each is independent of the others."""
    count, at = 0, chance.expovariate(mean) if mean > 0.0 else 1.0
    while at < 1.0:
        count += 1
        at += chance.expovariate(mean)
    return count
