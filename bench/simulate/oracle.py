"""The oracle: the least fleet for somebody who knows all arrivals in advance.

It deals partitions by the group's own assignor, as everybody has to: where that gives one worker more than it can do, a
larger number helps only if it deals otherwise. A number is enough if no larger one leaves less undone. The workers are
there when they are needed, and fewer run only where the present number is not needed again soon.

How soon, and how fast to work off what waits, is a matter of taste, and each rebalance stops everybody. So the oracle
tries some such plans and takes the one with the fewest pod-seconds among those that have little more lag than any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bench.simulate.dealing import Owned, deal
from bench.simulate.model import RATES_KNOWN_S, Group
from bench.simulate.rules import Choice
from bench.simulate.run import Figures, drive
from bench.simulate.world import World

NAME: Final = "oracle"
SLICE_S: Final = 10.0
WINDOW_S: Final = 30.0
"""Time over which arrivals are averaged: bursts that are shorter are worked off in it."""
RECORDS_IN_WINDOW: Final = 5.0
MORE_LAG: Final = 1.25
UNDONE: Final = 1e-6


class Plan(NamedTuple):
    """Seconds in which what waits is worked off, and for which workers are kept that will be needed again."""

    drain_s: float
    keep_s: float


PLANS: Final = (Plan(20.0, 600.0), Plan(30.0, 60.0), Plan(60.0, 300.0), Plan(120.0, 120.0), Plan(300.0, 600.0))


@dataclass(slots=True)
class Forecast:
    """The arrivals in each slice of a run, by partition; exact."""

    world: World
    seconds: float
    ends: list[tuple[float, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        group = Group(self.world)
        self.ends.append(tuple(group.work.ends))
        while group.now < self.seconds:
            group.now += 1.0
            group.arrive()
            if group.now % SLICE_S == 0.0:
                self.ends.append(tuple(group.work.ends))

    def rates(self, begin: int, slices: int) -> list[float]:
        """Records per second of each partition in so many slices; none after the end of the run."""
        last = len(self.ends) - 1
        first, after = min(begin, last), min(begin + slices, last)
        seconds = max(after - first, 1) * SLICE_S
        return [(end - start) / seconds for start, end in zip(self.ends[first], self.ends[after], strict=True)]


@dataclass(slots=True)
class Oracle:
    """One plan, carried out with the knowledge of all arrivals."""

    forecast: Forecast
    plan: Plan
    least: int
    most: int
    _needs: dict[tuple[Owned, int], int] = field(default_factory=dict)

    def choose(self, group: Group) -> Choice:
        current = len(group.pods)
        if group.now % SLICE_S != 0.0 or len(group.workers) != current:
            return Choice(current)
        world, now = group.world, group.now
        owned = tuple(worker.owned for worker in group.workers)
        slices = self._window(now)
        place = round(now / SLICE_S)
        ahead = place + round((world.start_s + world.rebalance_s) / SLICE_S) + 1
        waits = [group.work.left(number) for number in range(world.partitions)]
        drain_s = max(self.plan.drain_s, slices * SLICE_S / 2.0)
        present = [rate + left / drain_s for rate, left in zip(self.forecast.rates(place, slices), waits, strict=True)]
        at_once = self._enough(present, owned, now)
        soon = max(at_once, *(self._need(owned, begin, slices) for begin in range(place, ahead + 1)))
        later = range(ahead, ahead + round(self.plan.keep_s / SLICE_S), slices)
        kept = max(soon, *(self._need(owned, begin, slices) for begin in later))
        if soon > current:
            return Choice(kept, "this is coming")
        return Choice(min(current, kept), "fewer are enough for a while")

    def _window(self, now: float) -> int:
        """Slices over which arrivals are averaged: some records of one worker at least."""
        world = self.forecast.world
        record_s = 0.0 if world.record_s is None else world.record_s(now) * world.batch
        return max(1, round(max(WINDOW_S, RECORDS_IN_WINDOW * record_s) / SLICE_S))

    def _need(self, owned: Owned, begin: int, slices: int) -> int:
        """The least number for what arrives in a window; owners change rarely, so it is remembered."""
        key = owned, begin
        if key not in self._needs:
            self._needs[key] = self._enough(self.forecast.rates(begin, slices), owned, begin * SLICE_S)
        return self._needs[key]

    def _enough(self, load: Sequence[float], owned: Owned, at: float) -> int:
        """The least number that no larger one betters."""
        world = self.forecast.world
        most = world.moved_in_a_second(at)
        can = [min(each, most) if moves else 0.0 for each, moves in zip(load, world.moves(at), strict=True)]
        total = sum(can)
        if total <= 0.0:
            return self.least
        undone = [self._undone(can, owned, count, at) for count in range(max(self.least, 1), self.most + 1)]
        allowed = min(undone) + UNDONE * total
        return max(self.least, 1) + next(place for place, each in enumerate(undone) if each <= allowed)

    def _undone(self, load: Sequence[float], owned: Owned, count: int, at: float) -> float:
        """Records per second that so many workers leave undone, by what each of them would own."""
        world = self.forecast.world
        dealt = deal(world.assignor, world.partitions, owned, count, load if at >= RATES_KNOWN_S else ())
        loads = [sum(load[number] for number in numbers) for numbers in dealt]
        pace = world.pace(at)
        done = sum(min(each, pace) for each in loads)
        if world.downstream is not None:
            done = min(done, world.downstream(at))
        return sum(load) - done


def best_plan(world: World, *, seconds: float, start: int, least: int, most: int, acceptable_s: float) -> Figures:
    """The figures of the oracle."""
    forecast = Forecast(world, seconds)
    found = [
        drive(
            Oracle(forecast, plan, least, most).choose,
            Group(world),
            Figures(NAME),
            seconds=seconds,
            start=start,
            acceptable_s=acceptable_s,
        )
        for plan in PLANS
    ]
    allowed = MORE_LAG * min(figures.lag_seconds for figures in found)
    return min(
        (figures for figures in found if figures.lag_seconds <= allowed), key=lambda figures: figures.pod_seconds
    )
