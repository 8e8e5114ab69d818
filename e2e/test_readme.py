"""The README's example does what it says, word for word as it stands there."""

from __future__ import annotations

import re

from e2e.cluster import ROOT, eventually
from e2e.conftest import FleetMaker


def example() -> str:
    """The YAML of "A fleet in thirty lines"."""
    section = (ROOT / "README.md").read_text().split("## A fleet in thirty lines")[1]
    found = re.search(r"```yaml\n(.*?)```", section, flags=re.DOTALL)
    assert found, "the README has lost its example"
    return found[1]


def test_fleet_of_the_readme_upper_cases_its_orders(fleet_of: FleetMaker) -> None:
    fleet = fleet_of("readme", topics=False)
    fleet.name, fleet.source, fleet.output = "orders", "orders", "orders-done"
    fleet.make_topics()
    fleet.cluster.apply(example(), namespace=fleet.namespace)
    fleet.wait_stable(members=2)
    fleet.inside("write", "--topic", "orders", stdin=b"one tea\ntwo teas\n")
    values = eventually(
        lambda: (found := fleet.inside("read", "--topic", "orders-done")["values"]) and len(found) >= 2 and found,
        timeout_s=30,
        what="both orders are done",
    )
    assert sorted(values) == ["ONE TEA", "TWO TEAS"]
