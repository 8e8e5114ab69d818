"""One fleet's pages: partitions with owners, retries on a time line, plots of scaling, backfills."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

from fleet_operator.api.v1alpha1 import KafkaCluster, Redrive
from fleet_operator.api.v1alpha1.explanations import EXPLANATIONS
from fleet_operator.console.board import Facts
from fleet_operator.console.pages import _decimal
from fleet_operator.console.views.backfills import backfill_views
from fleet_operator.console.views.fleet import fleet_view
from fleet_operator.console.views.fleets import fleet_row
from fleet_operator.console.views.plot import HEIGHT, WIDTH, step_line, up, upper_edge
from fleet_operator.console.views.retries import retries_view
from fleet_operator.console.views.scaling import POINTS_MAX, History, scaling_view
from fleet_operator.planning.observation import ClusterObservation
from tests.unit.console.bodies import NOW, backfill, condition, fleet, observation


def kafka_cluster() -> dict[str, Any]:
    return {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "KafkaCluster",
        "metadata": {"namespace": "shop", "name": "main", "uid": "u"},
        "spec": {"bootstrapServers": ["kafka:9092"]},
    }


def test_partitions_have_lag_and_owner_the_largest_first() -> None:
    view = fleet_view(fleet(), observation(), {})
    assert view.partitions is not None
    shown = [(each.partition, each.lag, each.share, each.owner) for each in view.partitions]
    assert shown == [(0, 60, 100, "orders-fleet-0"), (1, 0, 0, "orders-fleet-1")]
    assert (view.lag, view.lag_complete, view.old) == (60, True, "")


def test_unknown_lag_comes_first_and_makes_the_sum_a_lower_bound() -> None:
    seen = observation()
    (group,) = seen.groups.values()
    group = replace(group, end_offsets={("orders", 0): 100, ("elsewhere", 0): 9})
    view = fleet_view(fleet(), replace(seen, groups={group.group_id: group}), {})
    assert view.partitions is not None
    assert [(each.partition, each.lag) for each in view.partitions] == [(1, None), (0, 60)]
    assert (view.lag, view.lag_complete) == (60, False)
    nothing = fleet_view(fleet(), replace(seen, topics={}), {})
    assert (nothing.partitions, nothing.lag, nothing.lag_complete) == ((), None, False)


def test_old_values_say_that_they_are_old() -> None:
    seen, cluster = observation(), kafka_cluster()
    connection = KafkaCluster.model_validate(cluster).spec.connection
    now = replace(seen, connection=connection)

    def old(found: ClusterObservation, at: float) -> str:
        return fleet_view(fleet(), Facts(fleet(), found, cluster).seen(at), {}).old

    assert old(now, NOW + 1) == ""
    assert "does not answer" in old(now, NOW + 3600)
    assert "does not answer" in old(replace(now, reachable=False), NOW + 1)
    assert old(replace(now, reachable=False, unconfirmed=True), NOW + 1) == "", "one or two attempts have failed"
    assert "before the connection of the KafkaCluster was edited" in old(seen, NOW + 1)
    (group,) = now.groups.values()
    failing = replace(group, error="NotCoordinator")
    assert "NotCoordinator" in old(replace(now, groups={group.group_id: failing}), NOW + 1)


def test_large_numbers_keep_their_digits() -> None:
    assert [_decimal(value) for value in (1_234_567.0, 1.5, 120.0, 0.25, None)] == [
        "1\u202f234\u202f567",
        "1.5",
        "120",
        "0.25",
        "–",
    ]


def test_partitions_are_unknown_without_an_observation_and_members_stay() -> None:
    view = fleet_view(fleet(), None, {})
    assert (view.partitions, view.lag, view.observed_at) == (None, None, "")
    assert [each.name for each in view.members] == ["orders-fleet-0", "orders-fleet-1"]


def test_an_observation_of_another_group_shows_nothing() -> None:
    """A namesake in another namespace has another Kafka group."""
    assert fleet_view(fleet("orders", "bank"), observation("orders", "shop"), {}).partitions is None


def test_conditions_explain_their_reason_the_bad_ones_first() -> None:
    verdicts = [
        condition("Ready", "True", "FleetReady"),
        condition("LagKnown", "Unknown", "NotYetObserved"),
        condition("Degraded", "True", "BreakerOpen"),
    ]
    found = fleet_view(fleet(conditions=verdicts), None, EXPLANATIONS).verdicts
    assert [(each.type, each.mood) for each in found] == [
        ("Degraded", "bad"),
        ("LagKnown", "unknown"),
        ("Ready", "good"),
    ]
    assert found[0].meaning == EXPLANATIONS["BreakerOpen"].meaning
    assert found[0].command == EXPLANATIONS["BreakerOpen"].command


def test_waiting_records_are_on_a_line_from_their_first_due_time() -> None:
    view = retries_view(fleet(), observation(), {})
    late, empty = view.delays
    assert (late.delay, late.waiting, late.late, late.left) == ("5m", 40, True, 0.0)
    assert 0 < late.width < WIDTH
    assert (empty.delay, empty.waiting, empty.first_due, empty.width) == ("1h", 0, "", 0.0)
    assert 0 < view.now_at < late.width < WIDTH
    assert (view.waiting, view.due, view.redriven_waiting) == (45, 12, 5)


def test_commands_about_failed_records_quote_what_workers_report() -> None:
    hostile = "$(reboot); 'x'"
    body = fleet(retry={"failedReasons": [{"reason": hostile, "errorClass": "E & F", "records": 8}]})
    (failed,) = retries_view(body, None, {}).failures
    words = shlex.split(failed.preview)
    assert words[words.index("--reason") + 1] == hostile
    assert words[words.index("--error-class") + 1] == "E & F"
    assert json.loads(failed.redrive)["spec"]["filter"]["reasons"] == [hostile]


def test_the_manifest_that_puts_records_back_is_a_redrive_of_this_group() -> None:
    (failed,) = retries_view(fleet(), None, {}).failures
    body = json.loads(failed.redrive)
    redrive = Redrive.model_validate(body | {"metadata": body["metadata"] | {"name": "orders-x", "uid": "u"}})
    assert (redrive.metadata.namespace, redrive.spec.group_ref.name) == ("shop", "orders")
    assert redrive.spec.filter is not None
    assert redrive.spec.filter.reasons == ("Exhausted",)


def test_scaling_is_plotted_from_recorded_points() -> None:
    history = History()
    for second, target in enumerate((1, 1, 4, 2)):
        history.record(fleet_row(fleet(targetReplicas=target, readyReplicas=1)), NOW + second)
    view = scaling_view(fleet(), history, NOW + 10)
    assert [(each.at, each.target) for each in reversed(view.points)] == [(NOW, 1), (NOW + 2, 4), (NOW + 3, 2)]
    workers = view.plots[0]
    assert (workers.title, workers.most) == ("Workers", 5.0)
    wanted = next(line for line in workers.lines if line.name == "wanted")
    assert (wanted.most, wanted.last) == (4.0, 2.0)
    assert ("Arrival, records per second", "120") in view.facts


def test_history_is_bounded_and_unknown_numbers_are_not_drawn() -> None:
    history = History()
    for second in range(3 * POINTS_MAX):
        history.record(fleet_row(fleet(targetReplicas=second, lagApproximate=None, scaling={})), NOW + second)
    points = list(history.points())
    assert (len(points), points[-1].target) == (POINTS_MAX, 3 * POINTS_MAX - 1)
    assert [plot.title for plot in scaling_view(fleet(), history, NOW).plots] == ["Workers"]


def test_plots_stay_inside_their_frame() -> None:
    line = step_line("x", [(0.0, 5.0), (10.0, 500.0)], 0.0, 20.0, 100.0)
    (piece,) = line.pieces
    corners = [tuple(map(float, corner.split(","))) for corner in piece.split()]
    assert corners == [(0, up(5, 100)), (WIDTH / 2, up(5, 100)), (WIDTH / 2, 0), (WIDTH, 0)]
    assert up(-3, 100) == up(1, 0) == HEIGHT
    assert [upper_edge([value]) for value in (0, 1.5, 4, 7, 11, 999)] == [1, 2, 5, 10, 20, 1000]


def test_line_has_a_gap_while_its_value_is_unknown() -> None:
    line = step_line("x", [(0.0, 100.0), (5.0, None), (10.0, 50.0), (15.0, None)], 0.0, 20.0, 100.0)
    quarter = WIDTH / 4
    assert line.pieces == (f"0.0,0.0 {quarter:.1f},0.0", f"{2 * quarter:.1f},80.0 {3 * quarter:.1f},80.0")
    assert (line.most, line.last) == (100.0, None)


def test_backfills_show_progress_and_unknown_ranges() -> None:
    running, pending = backfill_views([backfill(), backfill("new", offsetsTotal=None)], {})
    assert (running.percent, running.phase, pending.percent) == (25, "Running", None)
