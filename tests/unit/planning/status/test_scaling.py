"""`status.scaling` and the conditions of scaling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_operator.planning.scaling import decision as limits
from fleet_operator.planning.scaling.decision import ScaleDecision, ScaleInputs
from fleet_operator.planning.state.sizing import SizingState
from fleet_operator.planning.status.scaling import REMEDIES
from tests.unit.planning.builders import NOW, consumer_group, facts, ready_fleet
from tests.unit.planning.status.projecting import condition, message, project

LOAD = ScaleInputs(arrival=123.4, capacity=60.0, raw=2.57, useful=3)


def scaled(decision: ScaleDecision, *, spec: dict[str, Any] | None = None, replicas: int = 1) -> Any:
    group = consumer_group(scaling=spec or {}, replicas=replicas)
    return facts(group=group, scale=decision, fleet=ready_fleet(decision.replicas))


def keep(**changes: Any) -> ScaleDecision:
    known: dict[str, Any] = {"replicas": 3, "current": 3, "reason": "as it is", "inputs": LOAD}
    return ScaleDecision(**(known | changes))


def test_decision_stands_in_the_status_with_its_inputs() -> None:
    status = project(scaled(keep()))
    assert status["targetReplicas"] == 3
    assert status["limit"] == "None"
    assert status["scaling"] == {
        "arrivalPerSecond": "120",
        "perReplicaPerSecond": "60",
        "rawReplicas": "2.6",
        "usefulReplicas": 3,
        "decision": "Keep",
        "reason": "as it is",
        "at": "2027-01-15T08:00:00Z",
    }
    assert condition(status, "ScalingActive") == ("True", "ScaledByLoad")
    assert condition(status, "ScalingLimited") == ("False", "WithinBounds")


def test_fleet_of_a_fixed_size_has_no_entry() -> None:
    status = project(facts())
    assert "scaling" not in status
    assert condition(status, "ScalingActive") == ("False", "FixedReplicas")


def test_numbers_that_move_a_little_are_not_written_again() -> None:
    before = project(scaled(keep()))
    near = ScaleInputs(arrival=200.0, capacity=80.0, raw=3.9, useful=3)
    assert project(scaled(keep(inputs=near, reason="other words")), before, NOW + 60) == before
    far = ScaleInputs(arrival=260.0, capacity=66.0, raw=2.9, useful=3)
    after = project(scaled(keep(inputs=far, reason="other words")), before, NOW + 60)
    assert (after["scaling"]["arrivalPerSecond"], after["scaling"]["at"]) == ("260", "2027-01-15T08:01:00Z")


@pytest.mark.parametrize("written", ["many", "", "nan", "inf", "-5"])
def test_numbers_in_the_status_that_are_none_are_replaced(written: str) -> None:
    """Others may write a status, too: a restored backup, kubectl edit."""
    before = project(scaled(keep()))
    foreign = {**before, "scaling": {**before["scaling"], "arrivalPerSecond": written}}
    after = project(scaled(keep()), foreign, NOW + 60)
    assert after["scaling"] == {**before["scaling"], "at": "2027-01-15T08:01:00Z"}


def test_step_stays_in_the_status_after_the_decisions_that_follow() -> None:
    before = project(scaled(keep()))
    grown = project(scaled(keep(replicas=6, current=3, reason="more arrives")), before, NOW + 10)
    assert grown["scaling"]["decision"] == "Grow"
    later = project(scaled(keep(replicas=6, current=6)), grown, NOW + 20)
    step = {"from": 3, "to": 6, "at": "2027-01-15T08:00:10Z", "reason": "more arrives"}
    assert (later["scaling"]["decision"], later["scaling"]["lastStep"]) == ("Keep", step)


def test_unknown_load_keeps_the_last_numbers_with_their_time() -> None:
    before = project(scaled(keep()))
    unknown = keep(limit=limits.UNKNOWN, reason="lag is unknown", inputs=ScaleInputs(capacity=60.0))
    status = project(scaled(unknown), before, NOW + 300)
    assert status["scaling"] == {**before["scaling"], "decision": "Hold", "reason": "lag is unknown"}
    assert condition(status, "ScalingActive") == ("False", "LoadUnknown")
    assert condition(status, "ScalingLimited") == ("Unknown", "LoadUnknown")


def test_capacity_that_is_not_known_any_more_is_not_shown() -> None:
    """As after a rollout: what a worker of the revision before could do says nothing."""
    before = project(scaled(keep()))
    fresh = ScaleInputs(arrival=123.4, capacity=None, raw=2.57, useful=3)
    assert "perReplicaPerSecond" not in project(scaled(keep(inputs=fresh)), before, NOW + 60)["scaling"]


@pytest.mark.parametrize("limit", [limits.ROLLOUT, limits.BREAKER_OPEN, limits.GROUP_SHARED, limits.STARTING])
def test_hold_is_not_said_to_let_the_fleet_follow_its_load(limit: str) -> None:
    status = project(scaled(keep(limit=limit)))
    assert condition(status, "ScalingLimited") == ("False", "WithinBounds")
    assert limit in message(status, "ScalingLimited")
    assert "asks for" not in message(status, "ScalingLimited")


@pytest.mark.parametrize("scaling", [{}, {"scaling": {"dryRun": True}}], ids=["removed", "dry run"])
def test_number_that_outlives_its_autoscaling_is_told(scaling: dict[str, Any]) -> None:
    inputs = ScaleInputs() if scaling else None
    memory = SizingState(count=24, replicas=1)
    kept = ScaleDecision(replicas=24, inputs=inputs, proposed=3 if scaling else None, memory=memory)
    status = project(facts(group=consumer_group(replicas=1, **scaling), scale=kept))
    assert "keeps the 24 workers" in message(status, "ScalingActive")
    assert "until spec.replicas is edited" in message(status, "ScalingActive")


def test_suspended_fleet_keeps_its_entry() -> None:
    before = project(scaled(keep()))
    stopped = ScaleDecision(replicas=0, limit=limits.SUSPENDED)
    group = consumer_group(scaling={}, suspend=True)
    status = project(facts(group=group, scale=stopped, fleet=ready_fleet(0), pods=()), before, NOW + 60)
    assert status["scaling"] == before["scaling"]
    assert condition(status, "ScalingActive") == ("False", "Suspended")


def test_dry_run_shows_the_proposed_number() -> None:
    decision = keep(replicas=1, current=1, proposed=6)
    status = project(scaled(decision, spec={"dryRun": True}))
    assert (status["targetReplicas"], status["scaling"]["proposedReplicas"]) == (1, 6)
    assert status["scaling"]["decision"] == "Grow"
    assert condition(status, "ScalingActive") == ("False", "DryRun")


def test_written_scale_field_is_said_to_have_no_effect() -> None:
    status = project(scaled(keep(), replicas=8))
    assert condition(status, "ScalingActive") == ("True", "ScaleFieldIgnored")


@pytest.mark.parametrize("word", sorted(limits.BOUNDS))
def test_bound_is_named_with_a_remedy(word: str) -> None:
    status = project(scaled(keep(limit=word, reason="because")))
    assert condition(status, "ScalingLimited") == ("True", word)
    assert message(status, "ScalingLimited") == f"because; {REMEDIES[word]}"


@pytest.mark.parametrize("word", [limits.GROUP_SHARED, limits.BREAKER_OPEN])
def test_hold_that_lasts_ends_scaling(word: str) -> None:
    status = project(scaled(keep(limit=word, reason="because")))
    assert condition(status, "ScalingActive") == ("False", word)


@pytest.mark.parametrize(
    ("before", "after", "limit", "verb"),
    [
        (0, 2, limits.NO_LIMIT, "Wake"),
        (2, 4, limits.NO_LIMIT, "Grow"),
        (4, 2, limits.NO_LIMIT, "Shrink"),
        (4, 0, limits.SCALED_TO_ZERO, "Sleep"),
        (4, 4, limits.COOLDOWN, "Hold"),
        (4, 4, limits.MAX_REPLICAS, "Keep"),
    ],
)
def test_decision_in_one_word(before: int, after: int, limit: str, verb: str) -> None:
    assert keep(replicas=after, current=before, limit=limit).verb == verb


@pytest.mark.parametrize("count", [0, 3])
def test_paused_fleet_shows_what_its_load_asks_for(count: int) -> None:
    paused = keep(replicas=count, current=count, proposed=6, limit=limits.PAUSED, memory=SizingState(count=count))
    status = project(scaled(paused, spec={"paused": True}))
    assert (status["targetReplicas"], status["limit"]) == (count, "Paused")
    assert (status["scaling"]["proposedReplicas"], status["scaling"]["rawReplicas"]) == (6, "2.6")
    assert condition(status, "ScalingActive") == ("False", "Paused")
    assert f"keeps its {count} workers until spec.replicas is edited" in message(status, "ScalingActive")
    assert condition(status, "ScalingLimited") == ("False", "WithinBounds")


def test_paused_fleet_of_unknown_load_keeps_the_last_numbers() -> None:
    before = project(scaled(keep(proposed=3, limit=limits.PAUSED), spec={"paused": True}))
    unknown = keep(proposed=3, limit=limits.PAUSED, reason="lag is unknown", inputs=ScaleInputs())
    status = project(scaled(unknown, spec={"paused": True}), before, NOW + 300)
    assert status["scaling"] == {**before["scaling"], "reason": "lag is unknown"}
    assert condition(status, "ScalingActive") == ("False", "Paused")
    assert condition(status, "ScalingLimited") == ("Unknown", "LoadUnknown")


def test_schedule_that_cannot_be_read_degrades_the_group_and_is_named() -> None:
    schedule = {"cron": "9-5 * * * *", "durationSeconds": 60, "minReplicas": 3}
    status = project(scaled(keep(), spec={"schedules": [schedule]}))
    assert condition(status, "Degraded") == ("True", "ScheduleRefused")
    assert "spec.scaling.schedules[0]: cron '9-5 * * * *' has a bad minute" in message(status, "Degraded")
    assert condition(status, "ScalingActive") == ("True", "ScaledByLoad")


def test_schedule_that_cannot_be_read_leaves_a_fleet_ready() -> None:
    schedule = {"cron": "9-5 * * * *", "durationSeconds": 60, "minReplicas": 3}
    given = facts(group=consumer_group(scaling={"schedules": [schedule]}))
    status = project(replace(given, scale=replace(given.scale, inputs=LOAD)))
    assert condition(status, "Ready")[0] == "True"
