"""The curves by which rules of scaling are compared, each with the fleet that meets it. Pure; noise has a seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.simulate.curves import read_csv
from bench.simulate.shapes import batches, day, jobs, noisy, ramp, steps, wave
from bench.simulate.world import Curve, World, constant, even_shares, hot_shares, placed_shares

SEED: Final = 20_261_126
SHOP: Final = Path(__file__).parents[2] / "examples" / "scaling" / "shop.csv"
ASLEEP: Final = {"minReplicas": 0}
QUICK: Final = {"scaleDownStabilizationSeconds": 60}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A curve with the fleet that it meets; `spec` are fields of `spec.scaling`, `shows` is a sentence."""

    name: str
    group: str
    shows: str
    world: World
    seconds: float
    start: int = 1
    spec: Mapping[str, Any] = field(default_factory=dict)


def all_cases(seed: int) -> list[Case]:
    """All cases; the seed is that of noise and of single arrivals."""
    return [
        *_findings_of_place(),
        *_findings_of_pace(seed),
        *_shapes(seed),
        *_faults(seed),
        *_skewed(),
        *_slow(seed),
        *_batches(),
        *_sleeping(),
    ]


def _case(name: str, shows: str, world: World, **more: Any) -> Case:
    return Case(name=name, shows=shows, world=world, **more)


def _world(arrivals: Curve, *, capacity: float | Curve = 60.0, partitions: int = 12, **more: Any) -> World:
    curve = capacity if callable(capacity) else constant(capacity)
    return World(arrivals=arrivals, capacity=curve, **({"shares": even_shares(partitions)} | more))


def _slow_world(record_s: float, rate: float, *, seed: int, partitions: int = 24, **more: Any) -> World:
    """Single records that take their time, one after the other in each partition."""
    return _world(
        constant(rate),
        capacity=1.0 / record_s,
        partitions=partitions,
        record_s=constant(record_s),
        seed=seed,
        **more,
    )


def _findings_of_place() -> Iterator[Case]:
    """Curves on which a rule failed that took all partitions for equal, or known, or a limit for lasting."""

    case = partial(_case, group="findings", seconds=7200.0)

    outage = steps((0, 1e9), (900, 50), (1260, 1e9))
    yield case(
        "a1-warm-partition",
        "One partition has 28 % of the load, less than a worker can do, but its worker owns two more.",
        _world(constant(160.0), shares=hot_shares(12, 0.28)),
        start=4,
    )
    yield case(
        "a1-warm-pair",
        "Two partitions with 29 % each are too much for one worker that owns both.",
        _world(constant(160.0), shares=placed_shares(12, {0: 0.29, 4: 0.29})),
        start=4,
    )
    yield case(
        "a1-three-busy",
        "Three of 36 partitions have all of the load, one worker owns them, and each needs nearly a whole one.",
        _world(constant(300.0), capacity=120.0, shares=placed_shares(36, dict.fromkeys((0, 4, 8), 1 / 3))),
        start=4,
    )
    yield case(
        "a2-database-recovers",
        "A database is slow for six minutes; it is well again when the load doubles.",
        _world(steps((0, 160), (1500, 300)), downstream=outage),
        start=4,
    )
    yield case(
        "a3-leaderless",
        "One of 24 partitions has no leader, and the load of the others rises to six times.",
        _world(steps((0, 100), (900, 600)), partitions=24, leaderless={7: 600.0}),
        start=3,
    )
    yield case(
        "a3-leaderless-asleep",
        "A fleet sleeps, one of 24 partitions loses its leader, and records come into the others.",
        _world(steps((0, 30), (300, 0), (1500, 30)), partitions=24, leaderless={7: 1200.0}),
        spec=ASLEEP,
    )
    yield case(
        "a4-rollout-waits",
        "Workers of a new revision wait for room without end, and the load rises to four times.",
        _world(steps((0, 100), (900, 400)), rolling=((600.0, 7200.0),)),
        start=3,
    )


def _findings_of_pace(seed: int) -> Iterator[Case]:
    """Curves on which a rule spent its steps too early, or mistook what a worker can do."""

    case = partial(_case, group="findings", seconds=7200.0)
    slower, faster = steps((0, 60), (900, 12), (1500, 60)), steps((0, 20), (1800, 100))
    yield case(
        "a5-jobs-then-load",
        "A small job each four minutes wakes the fleet and lets it sleep again, until the real load comes.",
        _world(jobs(30, 30, 240, 4200, 400)),
        spec=ASLEEP | QUICK,
    )
    yield case(
        "a5-waves-then-load",
        "Waves of eight minutes make the fleet grow and shrink, until the real load comes.",
        _world(wave(30, 250, 160, 480, 5400, 400)),
        seconds=9000.0,
        start=2,
        spec=QUICK,
    )
    yield case(
        "a6-records-of-90-s",
        "Records of 90 s for 7.2 busy workers look like stuck partitions to whoever watches commits alone.",
        _slow_world(90.0, 7.2 / 90.0, seed=seed),
        seconds=14_400.0,
        start=2,
    )
    yield case(
        "a8-calls-slower",
        "Each call takes five times as long for ten minutes; the capacity learnt then is wrong afterwards.",
        _world(constant(100.0), capacity=slower),
        seconds=9000.0,
        start=3,
    )
    yield case(
        "a8-cold-workers",
        "Workers do a fifth of their work in their first 150 s, and the first capacity is learnt from such a one.",
        _world(constant(100.0), cold_s=150.0, cold_share=0.2),
    )
    yield case(
        "a8-faster-revision",
        "A new revision handles five times as many records, and most workers of the fleet are not needed.",
        _world(constant(150.0), capacity=faster, releases=(1800.0,)),
        start=9,
    )
    yield case(
        "a9-lag-in-flight",
        "A steady load is well served, and the records between two commits count as lag.",
        _world(constant(150.0)),
        start=3,
    )


def _shapes(seed: int) -> Iterator[Case]:
    """Curves of ordinary days."""

    case = partial(_case, group="shapes", seconds=3600.0)

    shop = read_csv(SHOP).arrivals
    benchmark = steps((0, 18), (120, 108), (540, 18), (1020, 54))
    yield case(
        "step", "The load rises to six times for a quarter of an hour.", _world(steps((0, 50), (600, 300), (1500, 50)))
    )
    yield case(
        "benchmark-steps",
        "The steps of the benchmark on a real cluster, 23 minutes of them.",
        _world(benchmark, capacity=25.0),
        seconds=1380.0,
    )
    yield case("ramp", "The load rises slowly to ten times within half an hour.", _world(ramp(50, 500, 600, 2400)))
    yield case(
        "day",
        "A day in four hours without noise: steps that each last.",
        _world(day(40, 300, 14_400)),
        seconds=14_400.0,
    )
    yield case(
        "day-with-noise",
        "The same day with noise of a quarter.",
        _world(day(40, 300, 14_400, noisy(1.0, 0.25, seed))),
        seconds=14_400.0,
    )
    yield case(
        "shop",
        "A recorded hour of a shop: bursts at both peaks, and noise all the time.",
        _world(shop, capacity=40.0, partitions=24),
        seconds=shop.seconds,
    )


def _faults(seed: int) -> Iterator[Case]:
    """Noise, outages and changes of what a worker can do."""

    case = partial(_case, group="faults", seconds=3600.0)
    yield case(
        "noise", "Noise of a third about a steady load.", _world(noisy(200, 0.35, seed)), seconds=7200.0, start=4
    )
    yield case(
        "outage",
        "No broker answers for two minutes, and producers send afterwards what they have kept.",
        _world(constant(150.0), unseen=((900.0, 1020.0),)),
        start=4,
    )
    yield case("slow-start", "Workers take three minutes to start.", _world(steps((0, 50), (600, 300)), start_s=180.0))
    yield case(
        "slower-handler",
        "A new revision handles a quarter of the records.",
        _world(constant(100.0), capacity=steps((0, 60), (1200, 15)), releases=(1200.0,)),
        seconds=7200.0,
        start=3,
    )
    yield case(
        "offset-gaps",
        "Offsets of a compacted head pass at fifty times the pace in the first ten minutes.",
        _world(steps((0, 9000), (600, 160)), capacity=steps((0, 3000), (600, 60))),
        start=4,
    )
    yield case(
        "database-at-its-limit",
        "All workers together get 150 answers a second, and more arrives: more workers do not help.",
        _world(steps((0, 100), (600, 250)), downstream=constant(150.0)),
        start=2,
    )


def _skewed() -> Iterator[Case]:
    """Loads that are unequal by partition."""

    case = partial(_case, group="skewed", seconds=7200.0, start=4)

    zipf = [1.0 / (number + 1) for number in range(24)]
    yield case(
        "skew-hot",
        "Half of the load is in one partition, more than a worker can do: its lag grows whatever anybody does.",
        _world(constant(160.0), shares=hot_shares(12, 0.5)),
    )
    yield case(
        "skew-hot-pair",
        "Two partitions with 31 % each need a worker each.",
        _world(constant(160.0), shares=placed_shares(12, {0: 0.31, 4: 0.31})),
    )
    yield case(
        "skew-zipf",
        "Each partition has less than the one before it, by Zipf's law, over two hours of a day.",
        _world(day(60, 300, 7200), shares=tuple(each / sum(zipf) for each in zipf)),
        start=2,
    )
    yield case(
        "skew-moving",
        "A quarter of the load moves to another partition each twenty minutes.",
        _world(constant(200.0), shares_at=_moving),
        start=5,
    )
    yield case(
        "skew-stuck",
        "One partition stands from the fifth minute on, and its lag grows whatever anybody does.",
        _world(constant(200.0), stuck={3: 300.0}),
    )
    yield case(
        "skew-by-load",
        "The partitions of a1-three-busy, dealt by their load: as many workers as have something to do.",
        replace(
            _world(constant(300.0), capacity=120.0, shares=placed_shares(36, dict.fromkeys((0, 4, 8), 1 / 3))),
            assignor="cooperative-weighted",
        ),
    )


def _moving(at: float) -> tuple[float, ...]:
    place = int(at // 1200) % 12
    return tuple(0.25 if number == place else 0.75 / 11 for number in range(12))


def _slow(seed: int) -> Iterator[Case]:
    """Records that take seconds to minutes."""

    case = partial(_case, group="slow", seconds=14_400.0, start=2)

    yield case("slow-3-s", "Records of 3 s for six busy workers.", _slow_world(3.0, 2.0, seed=seed), seconds=7200.0)
    yield case("slow-30-s", "Records of 30 s for six busy workers.", _slow_world(30.0, 0.2, seed=seed))
    yield case(
        "slow-180-s", "Records of three minutes for 7.2 busy workers.", _slow_world(180.0, 7.2 / 180.0, seed=seed)
    )
    yield case(
        "slow-8-at-a-time",
        "Records of 30 s for 24 slots, of which each worker has eight.",
        _slow_world(30.0, 0.8, seed=seed, slots=8),
    )


def _batches() -> Iterator[Case]:
    """Records that come or are handled many at a time."""

    case = partial(_case, group="batches", seconds=7200.0)

    yield case(
        "batch-of-7200",
        "7,200 records come at once each hour, the work of one worker for two minutes.",
        _world(batches(7200, 3600)),
        seconds=10_800.0,
    )
    yield case(
        "batch-of-slow-records",
        "Forty records of 30 s come at once each hour.",
        _world(batches(40, 3600), capacity=1 / 30.0, record_s=constant(30.0)),
        seconds=10_800.0,
    )
    yield case(
        "batch-handler",
        "The handler takes up to 1,800 records of a partition at once and commits them half a minute later.",
        _world(steps((0, 60), (600, 300)), record_s=constant(1 / 60.0), batch=1800),
        start=2,
    )


def _sleeping() -> Iterator[Case]:
    """Fleets that may sleep."""

    case = partial(_case, group="sleeping", seconds=3600.0, spec=ASLEEP)

    pause = steps((0, 48), (600, 0), (2000, 48))
    yield case("sleep-and-wake", "Nothing arrives for 23 minutes.", _world(pause), start=4)
    yield case(
        "sleep-jobs",
        "A small job each ten minutes, until the real load comes.",
        _world(jobs(50, 30, 600, 4200, 400)),
        seconds=7200.0,
    )
    yield case(
        "sleep-long",
        "Two hours without a record, and then more than one worker can do.",
        _world(steps((0, 48), (300, 0), (7200, 200))),
        seconds=9000.0,
    )
