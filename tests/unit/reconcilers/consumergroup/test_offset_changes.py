"""Offsets that move: metrics follow each observation, and a group is reconciled when its status would change."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP, JsonObject
from fleet_operator.planning.observation import (
    ClusterObservation,
    GroupObservation,
    MissingEnd,
    OffsetSample,
    RetryObservation,
)
from fleet_operator.reconcilers.consumergroup import offset_changes
from fleet_operator.reconcilers.consumergroup.offset_changes import AGING_SECONDS, AT_ONCE, OffsetChanges, show_group
from fleet_operator.reconcilers.consumergroup.session import GroupSessions
from fleet_operator.reconcilers.context import Context
from fleet_operator.runtime.cache import Key
from fleet_operator.runtime.metrics import Metrics
from tests.support.clock import StillClock
from tests.unit.planning.builders import facts, observation, observed_group, unreachable
from tests.unit.planning.status.projecting import project
from tests.unit.reconcilers.consumergroup.test_metrics import KEY, gauges
from tests.unit.runtime.virtual_time import run_virtual

CLUSTER = ("shop", "main")
PLACES = [("orders", number) for number in range(4)]
FLOW = RetryObservation(observed_at=0.0, waiting=1000, due_lag=50, oldest_due_at=1.0, next_due_at=2.0)


def behind(*lags: int, **changes: Any) -> GroupObservation:
    """The group, with this lag in each of its four partitions."""
    ends = dict(zip(PLACES, (100 + lag for lag in lags), strict=True))
    return observed_group(end_offsets=ends, **changes)


class Desk:
    """A group that is reconciled and observed as a test says."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.metrics = Metrics()
        self.seen: ClusterObservation | None = None
        self.body: JsonObject | None = None
        self.queued: list[Key] = []
        self.put_off = False
        here = SimpleNamespace(
            clock=self.clock,
            metrics=self.metrics,
            observers=SimpleNamespace(latest=lambda cluster: self.seen if cluster == CLUSTER else None),
            store=SimpleNamespace(get=lambda kind, key: self.body if (kind, key) == (CONSUMER_GROUP, KEY) else None),
            workers=SimpleNamespace(latest=lambda key: ()),
            statuses=SimpleNamespace(awaits_slot=lambda kind, key: self.put_off),
            queues={CONSUMER_GROUP: SimpleNamespace(add=self.queued.append)},
            ending=AsyncExitStack(),
        )
        self.sessions = GroupSessions(cast("Context", here))
        self.session = self.sessions.open(KEY)
        self.changes = OffsetChanges(cast("Context", here), self.sessions)

    def reconcile(self, group: GroupObservation | None, *, seen: ClusterObservation | None = None) -> None:
        self.seen = seen if seen is not None else observation(group)
        found = facts(observation=self.seen, now=self.seen.observed_at + 1)
        status = project(found, None if self.body is None else self.body["status"])
        self.body = {"status": status}
        show_group(self.metrics.groups, KEY, found, status)
        self.changes.follow(self.session, found, CLUSTER)

    def moved(self, group: GroupObservation) -> bool:
        self.seen = observation(group)
        return self.changes.moved(KEY)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_lag_that_moves_within_its_bucket_takes_no_reconcile_and_shows_in_the_metrics(desk: Desk) -> None:
    desk.reconcile(behind(300, 0, 0, 0))
    for lags in ((310, 5, 0, 0), (290, 0, 0, 1), (256, 0, 0, 0), (250, 20, 30, 40)):
        assert not desk.moved(behind(*lags))
        found = gauges(desk.metrics)
        assert (found["lag_records"], found["max_partition_lag_records"]) == (sum(lags), max(lags))


@pytest.mark.parametrize("lags", [(0, 0, 0, 0), (1300, 0, 0, 0), (10, 0, 0, 0)])
def test_lag_in_another_bucket_takes_a_reconcile(desk: Desk, lags: tuple[int, ...]) -> None:
    desk.reconcile(behind(300, 0, 0, 0))
    assert desk.moved(behind(*lags))
    desk.reconcile(behind(*lags))
    assert not desk.moved(behind(*lags))


def test_group_whose_status_was_put_off_is_not_reconciled_for_its_lag_again(desk: Desk) -> None:
    """It comes back when its slot has come; metrics and all other changes do not wait for that."""
    desk.reconcile(behind(300, 0, 0, 0))
    desk.put_off = True
    assert not desk.moved(behind(1300, 0, 0, 0))
    assert gauges(desk.metrics)["lag_records"] == 1300
    assert desk.moved(behind(1300, 0, 0, 0, failed_records=8))
    desk.put_off = False
    assert desk.moved(behind(1300, 0, 0, 0))


def test_first_record_that_waits_takes_a_reconcile(desk: Desk) -> None:
    """From then on the workers are asked often."""
    desk.reconcile(behind(0, 0, 0, 0))
    assert not desk.moved(behind(0, 0, 0, 0))
    assert desk.moved(behind(0, 0, 0, 1))


def test_status_that_was_just_written_is_what_the_next_observation_expects(desk: Desk) -> None:
    for group in (behind(0, 0, 0, 0), behind(7, 0, 0, 0), behind(5000, 1, 2, 3), observed_group(state="Empty")):
        desk.reconcile(group)
        assert not desk.moved(group)


def test_lag_that_becomes_incomplete_or_complete_takes_a_reconcile(desk: Desk) -> None:
    whole = behind(300, 0, 0, 0)
    part = replace(whole, end_offsets={key: end for key, end in whole.end_offsets.items() if key[1] != 3})
    desk.reconcile(whole)
    assert desk.moved(part)
    assert "lag_records" not in gauges(desk.metrics), "a part of a sum is no lag"
    desk.reconcile(part)
    assert not desk.moved(part)
    assert desk.moved(whole)


def test_partition_that_changes_its_leader_takes_no_reconcile(desk: Desk) -> None:
    """A thousand groups read the topics of a broker that is away for a moment."""
    whole = behind(300, 0, 0, 0)
    ends = {key: end for key, end in whole.end_offsets.items() if key != PLACES[3]}
    missing = {PLACES[3]: MissingEnd(whole.observed_at, whole.end_offsets[PLACES[3]], 0)}
    desk.reconcile(whole)
    assert not desk.moved(replace(whole, end_offsets=ends, missing_ends=missing))
    assert gauges(desk.metrics)["lag_records"] == 300
    assert desk.moved(replace(whole, end_offsets=ends)), "it has not come back"


def test_no_decision_about_workers_rests_on_a_last_known_value(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, asked = behind(300, 0, 0, 0), list[GroupObservation]()
    ends = {key: end for key, end in whole.end_offsets.items() if key != PLACES[3]}
    missing = {PLACES[3]: MissingEnd(whole.observed_at, whole.end_offsets[PLACES[3]], 0)}
    monkeypatch.setattr(offset_changes, "needs_reconcile", lambda session, observed, *_: asked.append(observed))
    desk.reconcile(whole)
    desk.moved(replace(whole, end_offsets=ends, missing_ends=missing))
    assert asked == []
    desk.moved(behind(200, 0, 0, 0))
    assert len(asked) == 1


def test_other_unknown_partitions_take_a_reconcile(desk: Desk) -> None:
    """The status names them, and says why."""
    whole = behind(300, 0, 0, 0)
    lacking = [
        replace(whole, end_offsets={key: end for key, end in whole.end_offsets.items() if key[1] != missing})
        for missing in (2, 3)
    ]
    desk.reconcile(lacking[0])
    assert desk.moved(lacking[1])
    desk.reconcile(replace(whole, beyond_end=frozenset({PLACES[2]})))
    assert desk.moved(lacking[0]), "another reason"


def test_first_commit_and_the_loss_of_all_take_a_reconcile(desk: Desk) -> None:
    """Also where the lag stays zero: without commits there is nothing to keep from expiring."""
    none = observed_group(committed={}, log_starts=dict.fromkeys(PLACES, 100))
    desk.reconcile(none)
    assert not desk.moved(none)
    assert desk.moved(replace(none, committed={PLACES[0]: 100}))
    desk.reconcile(replace(none, committed={PLACES[0]: 100}))
    assert not desk.moved(replace(none, committed={PLACES[0]: 100, PLACES[1]: 100}))
    assert desk.moved(none)


@pytest.mark.parametrize(
    "changed",
    [
        {"failed_records": 8},
        {"failed_records": None},
        {"retry": replace(FLOW, waiting=1001)},
        {"retry": replace(FLOW, due_lag=None)},
        {"retry": replace(FLOW, oldest_due_at=5.0)},
        {"retry": replace(FLOW, next_due_at=None)},
        {"retry": None},
    ],
)
def test_changed_counts_of_failures_and_retries_take_a_reconcile(desk: Desk, changed: dict[str, Any]) -> None:
    base: dict[str, Any] = {"failed_records": 7, "retry": FLOW}
    desk.reconcile(behind(300, 0, 0, 0, **base))
    assert not desk.moved(behind(300, 0, 0, 0, **base))
    assert desk.moved(behind(300, 0, 0, 0, **(base | changed)))


def test_metrics_of_retries_follow_each_observation(desk: Desk) -> None:
    desk.reconcile(behind(0, 0, 0, 0, retry=FLOW))
    desk.moved(behind(0, 0, 0, 0, retry=replace(FLOW, waiting=1234, due_lag=None)))
    found = gauges(desk.metrics)
    assert found["retry_waiting_records"] == 1234
    assert "retry_due_lag_records" not in found


def test_group_that_cannot_be_observed_takes_a_reconcile(desk: Desk) -> None:
    desk.reconcile(behind(300, 0, 0, 0))
    assert desk.moved(behind(300, 0, 0, 0, error="CoordinatorNotAvailable"))
    desk.seen = unreachable()
    assert desk.changes.moved(KEY)
    desk.seen = observation(observed_group(group_id="another"))
    assert desk.changes.moved(KEY)
    desk.seen = None
    assert desk.changes.moved(KEY)
    assert gauges(desk.metrics)["lag_records"] == 300, "what was known last"


def test_group_that_was_not_observed_when_it_was_reconciled_is_reconciled_at_each_move(desk: Desk) -> None:
    desk.reconcile(behind(300, 0, 0, 0))
    desk.reconcile(None, seen=unreachable())
    for _ in range(2):
        assert desk.moved(behind(300, 0, 0, 0))


def test_group_of_which_nothing_is_known_is_reconciled(desk: Desk) -> None:
    assert desk.moved(behind(300, 0, 0, 0))
    assert gauges(desk.metrics) == {}, "a group that is not followed has no metrics"


def test_group_that_is_not_followed_shows_no_metrics_any_more(desk: Desk) -> None:
    """While its retries are drained, which may take a day, observations go on."""
    desk.reconcile(behind(300, 0, 0, 0))
    desk.session.stop_following()
    desk.metrics.groups.remove(KEY)
    assert desk.moved(behind(310, 0, 0, 0))
    assert gauges(desk.metrics) == {}


def test_group_whose_object_is_gone_is_reconciled(desk: Desk) -> None:
    desk.reconcile(behind(300, 0, 0, 0))
    desk.body = None
    assert desk.moved(behind(300, 0, 0, 0))


def stuck(at: float) -> GroupObservation:
    """A group that stands still, observed at a time: the record that it waits for came at the time 0."""
    history = {PLACES[0]: (OffsetSample(at=0.0, end_offset=100), OffsetSample(at=1.0, end_offset=400))}
    return behind(300, 0, 0, 0, observed_at=at, end_history=history)


def test_growing_time_behind_of_a_group_that_stands_takes_reconciles_at_its_steps_alone(desk: Desk) -> None:
    desk.reconcile(stuck(10.0))
    steps = []
    for at in range(11, 400):
        if desk.moved(stuck(float(at))):
            steps.append(at)
            desk.reconcile(stuck(float(at)))
    assert 3 <= len(steps) <= 8, "a reconcile for each step that the status shows"
    assert gauges(desk.metrics)["behind_seconds"] == pytest.approx(399, abs=1)


def test_groups_that_stand_still_are_checked_without_an_observer_saying_anything(desk: Desk) -> None:
    async def main() -> None:
        desk.reconcile(stuck(10.0))
        desk.seen = observation(stuck(300.0))
        aging = asyncio.create_task(desk.changes.keep_aging())
        await asyncio.sleep(AGING_SECONDS - 1)
        assert desk.queued == []
        await asyncio.sleep(2)
        assert desk.queued == [KEY]
        desk.reconcile(stuck(300.0))
        await asyncio.sleep(AGING_SECONDS)
        assert desk.queued == [KEY], "reconciled and unchanged"
        aging.cancel()

    run_virtual(main())


def test_aging_lets_others_run_between_many_groups(desk: Desk) -> None:
    async def main() -> int:
        desk.reconcile(behind(0, 0, 0, 0))
        found = facts(observation=desk.seen)
        for number in range(5 * AT_ONCE):
            desk.changes.follow(desk.sessions.open(("shop", f"orders-{number}")), found, CLUSTER)
        aging = asyncio.create_task(desk.changes.keep_aging())
        await asyncio.sleep(AGING_SECONDS)
        turns = 0
        while len(desk.queued) < 5 * AT_ONCE:  # of these, no object is there
            turns += 1
            await asyncio.sleep(0)
        aging.cancel()
        return turns

    assert run_virtual(main()) >= 4


def test_age_of_observations_is_counted_once_for_each(desk: Desk) -> None:
    def counted() -> tuple[float, int]:
        samples = {s.name: s.value for family in desk.metrics.decision_age.collect() for s in family.samples}
        name = "consumer_fleet_operator_decision_age_seconds"
        return samples[f"{name}_count"], round(samples[f"{name}_sum"])

    now = desk.clock.wall()
    desk.reconcile(behind(0, 0, 0, 0, observed_at=now - 1))
    assert counted()[0] == 0
    desk.clock.now += 5
    desk.moved(behind(0, 0, 0, 0, observed_at=now + 4))
    assert counted() == (1, 6)
    desk.moved(behind(0, 0, 0, 0, observed_at=now + 4))
    assert counted()[0] == 1, "the same observation"
    desk.clock.now += 10
    desk.reconcile(behind(0, 0, 0, 0, observed_at=now + 14))
    assert counted() == (2, 17)
