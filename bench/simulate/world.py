"""Surroundings of a simulated fleet: arrivals, what a worker can do, and the intervals of the cluster. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

Curve = Callable[[float], float]
"""A value by the second since the beginning."""
Shares = Callable[[float], Sequence[float]]
"""The part of the arrivals that goes to each partition, by the second since the beginning."""
Stretch = tuple[float, float]
"""Seconds from one up to another."""
START_S: Final = 8.0
REBALANCE_S: Final = 4.0
COMMIT_S: Final = 5.0
POLL_S: Final = 5.0
ASSIGNOR: Final = "cooperative-sticky"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Surroundings of a fleet; times in seconds, rates in records per second.

    - `arrivals`, `capacity` (of one worker), `record_s` (the time that a record takes, None for a stream of them) and
      `downstream` (of what all workers depend on, None without such a limit) are curves. With `record_s`, a worker has
      `slots` records in hand at most, each of another partition, or batches of up to `batch` records of one.
    - `shares`: the part of the arrivals of each partition; they add up to 1. `shares_at` replaces it if they change.
    - `seed`: arrivals are single records, drawn at random about the rate; None for an even flow.
    - `stuck`: partitions that do not move from a time on. `leaderless`: partitions that have no leader from a time on:
      nothing is written to them and read from them, and nobody can tell their end.
    - `unseen`: stretches in which no broker answers. Nothing arrives and nothing is handled then, and producers send
      afterwards what they have kept, as fast as `flush` times their rate.
    - `rolling`: stretches in which workers of a new revision are on their way and wait for room. `releases`: times from
      which all workers have another revision.
    - `cold_s`: time after its start in which a worker does `cold_share` of its work.
    - `commit_phase_s`: seconds from an observation to the next commit.
    """

    arrivals: Curve
    capacity: Curve
    shares: tuple[float, ...]
    shares_at: Shares | None = None
    record_s: Curve | None = None
    slots: int = 1
    batch: int = 1
    seed: int | None = None
    downstream: Curve | None = None
    stuck: Mapping[int, float] = field(default_factory=dict)
    leaderless: Mapping[int, float] = field(default_factory=dict)
    unseen: tuple[Stretch, ...] = ()
    rolling: tuple[Stretch, ...] = ()
    releases: tuple[float, ...] = ()
    flush: float = 4.0
    start_s: float = START_S
    cold_s: float = 0.0
    cold_share: float = 1.0
    rebalance_s: float = REBALANCE_S
    commit_s: float = COMMIT_S
    commit_phase_s: float = 3.0
    poll_s: float = POLL_S
    assignor: str = ASSIGNOR

    @property
    def partitions(self) -> int:
        return len(self.shares)

    def is_unseen(self, at: float) -> bool:
        return _within(self.unseen, at)

    def is_rolling(self, at: float) -> bool:
        return _within(self.rolling, at)

    def has_leader(self, number: int, at: float) -> bool:
        return at < self.leaderless.get(number, at + 1.0)

    def moves(self, at: float) -> list[bool]:
        """For each partition, whether its records can be handled."""
        if not self.stuck and not self.leaderless:
            return [True] * self.partitions
        return [
            self.has_leader(number, at) and at < self.stuck.get(number, at + 1.0) for number in range(self.partitions)
        ]

    def shares_of(self, at: float) -> Sequence[float]:
        """The part of the arrivals of each partition."""
        return self.shares if self.shares_at is None else self.shares_at(at)

    def pace(self, at: float) -> float:
        """Records per second of one warm worker that has enough to do."""
        return self.capacity(at) if self.record_s is None else self.slots / self.record_s(at)

    def moved_in_a_second(self, at: float) -> float:
        """Records of one partition that can be handled in a second: they are taken one after the other."""
        return self.capacity(at) if self.record_s is None else 1.0 / self.record_s(at)


def _within(stretches: Sequence[Stretch], at: float) -> bool:
    return any(begin <= at < end for begin, end in stretches)


def constant(value: float) -> Curve:
    """A curve that never changes."""
    return lambda at: value


def even_shares(partitions: int) -> tuple[float, ...]:
    """Equal parts for all partitions."""
    return (1.0 / partitions,) * partitions


def hot_shares(partitions: int, *shares: float) -> tuple[float, ...]:
    """Some hot partitions, the first ones, and equal parts for the others."""
    return placed_shares(partitions, dict(enumerate(shares)))


def placed_shares(partitions: int, shares: Mapping[int, float]) -> tuple[float, ...]:
    """Hot partitions by number, and equal parts of the rest for the others."""
    others = partitions - len(shares)
    if not others:
        return tuple(shares[number] / sum(shares.values()) for number in range(partitions))
    rest = (1.0 - sum(shares.values())) / others
    return tuple(shares.get(number, rest) for number in range(partitions))
