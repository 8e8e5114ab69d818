"""The demo's own claim, on the cluster of this run: every flight ends exactly once when nothing disturbs the fleet."""

from __future__ import annotations

from e2e.conftest import FleetMaker


def test_quiet_run_processes_every_flight_exactly_once(fleet_of: FleetMaker) -> None:
    """336,776 flights in, 328,521 out, 8,255 cancelled ones in the failed topic, none lost and none twice."""
    fleet = fleet_of("flights")
    fleet.make_group()
    fleet.wait_stable(members=2)
    fleet.produce()
    fleet.wait_drained()
    count = fleet.count()
    print(count.line())
    assert count.line() == "demo: in=336776 done=328521 failed=8255 lost=0 duplicated=0"
    assert count.adds_up()
    columns = fleet.kubectl("get", "consumergroups")
    header, row = (line.split() for line in columns.splitlines())
    assert header[:9] == ["NAME", "STATE", "REPLICAS", "TARGET", "PARTS", "LAG", "BEHIND", "LIMIT", "READY"], columns
    assert row[:2] == ["flights", "Stable"], columns
