"""The page of the rules of scaling over all curves: what the fleet's rule is worse at comes first."""

from __future__ import annotations

import pytest

from bench.scaling_rules import Judged, page
from bench.simulate.cases import Case
from bench.simulate.comparison import Comparison
from bench.simulate.run import Figures
from bench.simulate.world import World, constant, even_shares


def judged(*figures: Figures) -> Judged:
    """A case with the figures of a published rule, between those of the fleet's rule and the oracle."""
    world = World(arrivals=lambda at: 10.0, capacity=constant(10.0), shares=even_shares(4))
    case = Case(name="wave", group="shapes", shows="A wave.", world=world, seconds=600.0)
    fleet = Figures("fleet", lag_seconds=1000.0, pod_seconds=1000.0, rebalances=3)
    oracle = Figures("oracle", lag_seconds=900.0, pod_seconds=900.0, rebalances=1)
    return Judged(case, Comparison(case, (fleet, *figures, oracle)))


@pytest.mark.parametrize(
    ("lag", "pods", "rebalances", "worse", "beaten"),
    [
        (900.0, 1040.0, 9, True, False),
        (1100.0, 1000.0, 2, True, False),
        (1100.0, 1000.0, 3, False, False),
        (995.0, 1000.0, 3, False, False),
        (900.0, 700.0, 9, False, True),
        (900.0, 1100.0, 9, False, False),
    ],
)
def test_rule_is_compared_at_the_same_pod_seconds(
    lag: float, pods: float, rebalances: int, worse: bool, beaten: bool
) -> None:
    found = judged(Figures("flink", lag_seconds=lag, pod_seconds=pods, rebalances=rebalances))
    assert (bool(found.worse_than), bool(found.beaten_by)) == (worse, beaten)


def test_page_begins_with_what_is_worse() -> None:
    better = Figures("flink", lag_seconds=800.0, pod_seconds=1000.0, rebalances=3)
    text = "\n".join(page([judged(better)], 1))
    head, _, rest = text.partition("## Shapes")
    assert "wave: 1,000 lag-seconds, 1,000 pod-seconds and 3 rebalances against 800, 1,000 and 3 of flink" in head
    assert "| wave: A wave. | 1 k, 1.0 k, 3 |" in rest


def test_lag_without_a_bound_is_named() -> None:
    rising = [(float(at), 10.0, 10.0 * at, 1) for at in range(0, 600, 5)]
    found = judged(Figures("flink", lag_seconds=9e6, pod_seconds=100.0, series=rising, arrived=6000.0))
    assert "**unbounded**" in "\n".join(page([found], 1))
