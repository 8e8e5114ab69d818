"""The scaling benchmark without a cluster: its loads, the figures of a run, and the page."""

from __future__ import annotations

from typing import Any

import pytest

from bench.scaling_figures import Seen, answer_s, figures_of
from bench.scaling_loads import CASES, MOST, Case
from bench.scaling_page import MEASURES, OWN, PEER, differences, page
from e2e.scaling.scene import Samples

STEPPED = 1040.0


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_load_of_a_case_fits_into_the_most_workers_and_not_into_the_first(case: Case) -> None:
    assert sum(case.shares) == pytest.approx(1.0)
    assert case.start < case.busy_workers < 0.8 * MOST
    assert case.calm_rate * case.per_record_s < 0.8 * case.start
    assert max(case.shares) * case.busy_workers < 0.95, "no partition is more than a worker can do"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_both_sides_of_a_case_take_less_than_seven_minutes_of_load(case: Case) -> None:
    assert 2 * sum(seconds for _, seconds in case.stretches) <= 420.0


def test_both_sides_have_the_same_bounds() -> None:
    case = CASES["slow"]
    spec = case.scaled_object("slow-keda")["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == tuple(case.scaling().values())
    assert spec["triggers"][0]["metadata"]["consumerGroup"] == "slow-keda"


def handled(at: float, worker: str, waited: float = 0.0) -> dict[str, Any]:
    return {"at": at, "worker": worker, "appended": round(1000 * (at - waited)), "partition": 0, "attempt": 0}


def test_answer_counts_from_the_arrival_of_the_first_late_record_to_the_first_record_of_a_new_worker() -> None:
    records = [
        handled(STEPPED - 5.0, "a", waited=4.0),  # late, and from before the step
        handled(STEPPED + 1.0, "a", waited=0.5),
        handled(STEPPED + 4.0, "a", waited=2.0),  # arrived two seconds after the step
        handled(STEPPED + 20.0, "b", waited=9.0),
        handled(STEPPED + 19.5, "c", waited=8.0),
    ]
    assert answer_s(records, STEPPED, late_s=1.0) == 17.5
    assert answer_s(records[:3], STEPPED, late_s=1.0) is None, "no new worker"
    assert answer_s(records, STEPPED, late_s=10.0) is None, "no late record"


def seen() -> Seen:
    """Ten seconds of calm, and thirty with a backlog of 2,000 records that two workers work off for ten of them."""
    begun = STEPPED - 10.0
    lags = [5] * 10 + [2000] * 10 + [50] * 20
    lines = [
        {"at": begun + second, "lag": lag, "state": "STABLE", "members": 1 if second < 20 else 2}
        for second, lag in enumerate(lags)
    ]
    outside = [{"at": begun - 1.0, "lag": 9999, "state": "STABLE", "members": 1}]
    return Seen(
        samples=Samples(outside + lines, [handled(begun + 1.0, "a"), handled(begun + 21.0, "b", waited=7.0)]),
        pods=[(begun - 1.0, 9), *((begun + second, 1 if second < 20 else 2) for second in range(41))],
        generations=[(begun, 3), (begun + 20.0, -1), (begun + 30.0, 5)],
        begun=begun,
        stepped=STEPPED,
        ended=begun + 40.0,
    )


def test_figures_are_those_of_the_time_under_load() -> None:
    found = figures_of(seen(), CASES["step"])
    del found["series"]
    assert found == {
        "lag_seconds": 10 * 5 + 10 * 2000 + 19 * 50,
        "worst_lag": 2000,
        "longest_wait_s": 7.0,
        "pod_seconds": 20 * 1 + 19 * 2,
        "rebalances": 1,
        "generations": 2,
        "answer_s": 7.0,
        "drained_s": 10.0,
        "most_pods": 2,
        "last_pods": 2,
        "last_lag": 50,
    }


def test_plot_has_a_point_for_every_two_seconds_of_lag() -> None:
    assert figures_of(seen(), CASES["step"])["series"]["lag"][:2] == [[0.0, 5], [2.0, 5]]


def result(**own: Any) -> dict[str, Any]:
    side = dict.fromkeys([*MEASURES, "drained_s", "most_pods", "last_pods", "last_lag"], 20.0)
    case = {"name": "step", "title": "six times", "stretches": [[18.0, 40.0], [108.0, 160.0]], "partitions": 12}
    case |= {"per_record_s": 0.04, "busy_workers": 4.32, "threshold": 10, "sides": {OWN: side | own, PEER: side}}
    return {"additions_s": 0.4, "cases": [case]}


def sections(figures: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The lines of what is worse and of what is better, as the page has them."""
    lines = [line for line in page(figures) if line.startswith(("- ", "#"))]
    _, worse, better, case = (place for place, line in enumerate(lines) if line.startswith("#"))
    assert lines[case].startswith("## step")
    return lines[worse + 1 : better], lines[better + 1 : case]


def test_page_begins_with_the_worst_figure() -> None:
    worse, better = sections(result(pod_seconds=25.0, worst_lag=80.0, lag_seconds=5.0))
    assert worse == [
        "- `step`: worst lag: 80.0, KEDA 20.0 (×4.00)",
        "- `step`: pod-seconds: 25.0, KEDA 20.0 (×1.25)",
    ]
    assert "- `step`: lag-seconds: 5.0, KEDA 20.0 (×0.25)" in better


def test_worker_that_never_came_is_the_worst_and_misses_the_goal() -> None:
    worse, _ = sections(result(answer_s=None, pod_seconds=99.0))
    assert worse[0] == (
        "- `step`: the goal of 25 s to a new worker's first record is missed: not within the run; "
        "the former rules took 42"
    )
    assert worse[1] == "- `step`: first record of a new worker, s: not within the run, KEDA 20.0"


def test_goal_that_is_met_stands_with_what_is_better() -> None:
    worse, better = sections(result(answer_s=24.0))
    assert worse == ["- `step`: first record of a new worker, s: 24.0, KEDA 20.0 (×1.20)"]
    assert better[0].startswith("- `step`: the goal of 25 s to a new worker's first record is met: 24.0")


def test_figure_that_only_we_reached_is_no_worse() -> None:
    figures = result()
    figures["cases"][0]["sides"][PEER] = figures["cases"][0]["sides"][PEER] | {"answer_s": None}
    assert differences(figures)[-1].measure == "answer_s"
    assert sections(figures)[0] == ["- Nothing that is compared."]
