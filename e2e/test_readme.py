"""The README's example, run word for word."""

from __future__ import annotations

import re
from typing import Any

import pytest

from e2e.cluster import PATIENCE_S, ROOT, eventually
from e2e.conftest import Fleets


def examples() -> tuple[str, str]:
    """The YAML of "A fleet in thirty lines": the fleet, and the Redrive below it."""
    section = (ROOT / "README.md").read_text().split("## A fleet in thirty lines")[1]
    fleet, redrive, *_ = re.findall(r"```yaml\n(.*?)```", section, flags=re.DOTALL)
    return fleet, redrive


@pytest.mark.together
def test_fleet_of_the_readme_upper_cases_its_orders(fleets: Fleets) -> None:
    with fleets.named("readme", topics=False) as fleet:
        fleet.name, fleet.source, fleet.output = "orders", "orders", "orders-done"
        fleet.make_topics()
        orders, redrive = examples()
        fleet.cluster.apply(orders, namespace=fleet.namespace)
        fleet.wait_stable(members=2)
        fleet.inside("write", "--topic", "orders", stdin=b"one tea\ntwo teas\n")
        values = eventually(
            lambda: (found := fleet.inside("read", "--topic", "orders-done")["values"]) and len(found) >= 2 and found,
            timeout_s=PATIENCE_S,
            what="both orders are done",
        )
        assert sorted(values) == ["ONE TEA", "TWO TEAS"]

        fleet.cluster.apply(redrive, namespace=fleet.namespace)

        def ended() -> dict[str, Any] | None:
            found = fleet.cluster.get("redrives.consumerfleet.io", "fixed", namespace=fleet.namespace) or {}
            status: dict[str, Any] = found.get("status") or {}
            return status if status.get("phase") == "Succeeded" else None

        status = eventually(ended, timeout_s=PATIENCE_S, what="the Redrive has ended")
        assert (status["selected"], status["moved"]) == (0, 0), "no order has failed"
