"""Steps from zero: for records, and for a partition in which only a worker can determine where the group continues."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.lag import group_lag
from fleet_operator.planning.observation import GroupObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.scaling import decision as limits
from tests.unit.planning.scaling.scenes import TOPIC, Scene, words

ADDED = "payments"


def asleep() -> Scene:
    scene = Scene(spec={"minReplicas": 0}, current=0, arrival=0.0)
    scene.pass_time(60)
    assert (scene.current, scene.decide().limit) == (0, limits.SCALED_TO_ZERO)
    return scene


def observed_of(scene: Scene) -> GroupObservation:
    observed = scene.facts().observed
    assert observed is not None
    return observed


def seen(observed: GroupObservation, reset: Any, *, partitions: int = 12, others: int = 0) -> dict[str, Any]:
    """The facts of an observation of `partitions` partitions, and of `others` in a second topic."""
    keys = [(TOPIC, number) for number in range(partitions)] + [(ADDED, number) for number in range(others)]
    counts = {TOPIC: partitions, **({ADDED: others} if others else {})}
    lag = group_lag(observed, keys, reset)
    return {"observed": observed, "lag": lag, "partition_counts": counts, "from_start": reset == "Earliest"}


def test_sleeping_fleet_wakes_for_an_added_partition_whose_records_latest_would_skip() -> None:
    """Its lag is unknown until a worker has committed the offset at which it began."""
    scene = asleep()
    observed = observed_of(scene)
    ends = {**observed.end_offsets, (TOPIC, 12): 500}
    scene.changes = seen(replace(observed, end_offsets=ends), "Latest", partitions=13)
    assert (scene.decide().replicas, scene.decision and scene.decision.limit) == (1, limits.OFFSETS_MISSING)
    for _ in range(100):
        scene.now += 5
        scene.decide()
    assert scene.current == 1  # until there is a commit


def test_sleeping_fleet_wakes_for_an_added_topic_whose_records_latest_would_skip() -> None:
    """A topic without any commit has no lag for a group that begins at the end, so no lag would ever start a worker."""
    scene = asleep()
    observed = observed_of(scene)
    ends = {**observed.end_offsets, (ADDED, 0): 500, (ADDED, 1): 700}
    scene.changes = seen(replace(observed, end_offsets=ends), "Latest", others=2)
    assert (scene.decide().replicas, scene.decision and scene.decision.limit) == (1, limits.OFFSETS_MISSING)


def test_sleeping_fleet_wakes_where_a_log_was_cut_below_its_commit() -> None:
    """Records before the old commit do not count as lag. A worker continues where the log was cut."""
    scene = asleep()
    observed = observed_of(scene)
    ends = {**observed.end_offsets, (TOPIC, 3): 900_000}
    beyond = frozenset({(TOPIC, 3)})
    scene.changes = seen(replace(observed, end_offsets=ends, beyond_end=beyond), "Earliest")
    assert (scene.decide().replicas, scene.decision and scene.decision.limit) == (1, limits.OFFSETS_MISSING)


def test_sleeping_fleet_stays_asleep_while_the_end_of_a_log_is_unknown() -> None:
    """The partition has a commit but no leader, so a worker could not read it either."""
    scene = asleep()
    observed = observed_of(scene)
    ends = {key: end for key, end in observed.end_offsets.items() if key != (TOPIC, 3)}
    scene.changes = seen(replace(observed, end_offsets=ends), "Latest")
    assert (scene.decide().replicas, scene.decision and scene.decision.limit) == (0, limits.UNKNOWN)


def test_sleeping_fleet_stays_asleep_until_an_added_topic_is_polled() -> None:
    """The observation is from before the edit: it has no commits of the topic, but may have its partitions."""
    scene = asleep()
    scene.changes = seen(observed_of(scene), "Latest", others=2)
    assert (scene.decide().replicas, scene.decision and scene.decision.limit) == (0, limits.UNKNOWN)


@pytest.mark.parametrize(("word", "wanted"), [(limits.UNKNOWN, 1), (limits.BREAKER_OPEN, 0), (limits.GROUP_SHARED, 0)])
def test_sleeping_fleet_wakes_for_records_while_the_state_of_breakers_is_unknown(word: str, wanted: int) -> None:
    """A retry worker may be permanently unreachable for the operator. One worker shows whether a breaker is open."""
    scene = asleep()
    scene.changes = {"hold": Problem(word, "because")}
    scene.pass_time(60)
    assert scene.decision is not None
    assert (scene.current, scene.decision.limit) == (0, word)
    scene.arrival, scene.handled = 30.0, 0.0
    scene.pass_time(60)
    assert (scene.current, scene.decision.limit) == (wanted, word)


def far_apart(scene: Scene) -> tuple[int, str]:
    """A poll a minute after the last one: samples so far apart give no rate, so each observation has only one."""
    scene.now += 60
    scene.samples = []
    return words(scene, 5)


def test_sleeping_fleet_wakes_for_records_if_polls_are_too_far_apart_for_rates() -> None:
    """With thousands of groups, a broker that the operator cannot reach delays every poll of a group."""
    scene = asleep()
    assert far_apart(scene) == (0, limits.UNKNOWN)
    scene.arrival, scene.handled = 200.0, 0.0
    assert far_apart(scene) == (1, limits.NO_LIMIT)


def test_sleeping_fleet_wakes_without_rates_with_as_many_workers_as_the_backlog_requires() -> None:
    scene = Scene(spec={"minReplicas": 0}, current=0, arrival=0.0, handled=0.0, lag=20_000)
    assert far_apart(scene) == (4, limits.NO_LIMIT)
    assert scene.decision is not None
    assert scene.decision.inputs is not None
    assert (scene.decision.inputs.arrival, scene.decision.inputs.raw) == (None, None)


def test_fleet_with_workers_waits_for_rates_however_far_apart_its_polls_are() -> None:
    scene = Scene(current=2)
    scene.pass_time(60)
    scene.arrival, scene.handled = 2000.0, 120.0
    assert [far_apart(scene) for _ in range(3)] == [(2, limits.UNKNOWN)] * 3


def test_first_observation_of_a_process_starts_no_worker_before_the_second_one() -> None:
    """The second one follows within two seconds, and also shows the arrival."""
    scene = Scene(spec={"minReplicas": 0}, current=0, arrival=120.0, handled=0.0, lag=20_000)
    assert (scene.decide().replicas, scene.decision and scene.decision.limit) == (0, limits.UNKNOWN)
    assert scene.pass_time(5).replicas > 1
