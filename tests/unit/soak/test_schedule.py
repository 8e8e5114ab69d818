"""The soak's next step: decided by the seed alone, and always one that the world allows."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.soak.growth import Sample, growth
from tests.soak.schedule import Bounce, Join, Kill, Leave, Sleep, World, choose

names = st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True).map(tuple)
worlds = st.builds(
    World,
    awake=names,
    asleep=names.map(lambda some: tuple(name + "'" for name in some)),
    vacant=st.lists(st.sampled_from(["s1", "s2"]), unique=True).map(tuple),
    brokers=st.lists(st.sampled_from([1, 2, 3]), unique=True).map(tuple),
    least=st.integers(0, 3),
    most=st.integers(3, 8),
)


@given(worlds, st.integers())
def test_action_is_one_that_the_world_allows(world: World, seed: int) -> None:
    present = len(world.awake) + len(world.asleep)
    match choose(random.Random(seed), world):
        case Join(instance_id):
            assert present < world.most
            assert instance_id is None or instance_id in world.vacant
        case Leave(member) | Kill(member):
            assert member in world.awake
            assert present > world.least
        case Sleep(member, seconds):
            assert member in world.awake
            assert seconds > 0
        case Bounce(node, _, seconds):
            assert node in world.brokers
            assert seconds > 0
        case None:
            assert present >= world.most
            assert not world.awake
            assert not world.brokers


def test_seed_decides() -> None:
    world = World(("a", "b", "c"), (), ("s1",), (1, 2, 3), 1, 5)

    def history(seed: int) -> list[object]:
        chance = random.Random(seed)
        return [choose(chance, world) for _ in range(50)]

    assert history(1) == history(1)
    assert history(1) != history(2)
    assert {type(action) for action in history(1)} == {Join, Leave, Kill, Sleep, Bounce}


def samples(sizes: list[float], threads: list[int]) -> list[Sample]:
    return [
        Sample(10.0 * number, size, count, 5 + number % 4)
        for number, (size, count) in enumerate(zip(sizes, threads, strict=True))
    ]


def test_process_that_settles_does_not_grow() -> None:
    grown = growth(samples([20, 30, 40, *[41, 42, 41] * 4], [5, 8, *[9] * 13]))
    assert grown is not None
    assert grown.excess(2.0) == []


def test_growth_after_the_warm_up_is_found() -> None:
    grown = growth(samples([40.0 + number for number in range(30)], [9] * 15 + [9 + n for n in range(15)]))
    assert grown is not None
    assert grown.rss_mib_per_hour == 360.0
    assert [sentence.split()[0] for sentence in grown.excess(5.0)] == ["memory", "threads"]


def test_more_threads_than_librdkafka_can_need_are_found() -> None:
    grown = growth([Sample(10.0 * number, 40.0, 5, 8 + (number == 12) * 3) for number in range(20)])
    assert grown is not None
    assert grown.excess(2.0) == ["librdkafka had 11 threads"]


def test_few_samples_show_no_growth() -> None:
    assert growth(samples([1.0] * 8, [1] * 8)) is None
