"""The demo's promise, on the cluster of this run: undisturbed, every flight ends exactly once."""

from __future__ import annotations

import pytest

from e2e.cluster import PATIENCE_S, eventually
from e2e.conftest import Fleets
from e2e.demo.fleet import FlightFleet
from e2e.demo.flights import CANCELLED

COLUMNS = ["NAME", "READY", "REASON", "STATE", "MEMBERS", "TARGET", "LAG", "BEHIND", "FAILED"]


def wait_shown(fleet: FlightFleet) -> None:
    """Wait until a user's table shows the group working."""

    def shown() -> bool:
        columns = fleet.kubectl("get", "consumergroups")
        header, row = (line.split() for line in columns.splitlines())
        assert header[:9] == COLUMNS, columns
        assert row[:4] == ["flights", "True", "FleetReady", "Stable"], columns
        return True

    eventually(shown, timeout_s=PATIENCE_S, what="the table shows the group")


@pytest.mark.together("load")
def test_quiet_run_processes_every_flight_exactly_once(fleets: Fleets) -> None:
    """336,776 flights in, 328,521 out, 8,255 cancelled ones tried four times and failed, none lost and none twice.

    Then the handler is corrected, and a Redrive brings the 8,255 out as well.
    """
    with fleets.named("flights", retries=True) as fleet:
        fleet.make_group()
        fleet.wait_stable(members=2)
        fleet.produce()
        fleet.wait_drained()
        count = fleet.count()
        print(count.line())
        assert count.line() == "demo: in=336776 done=328521 failed=8255 lost=0 duplicated=0"
        assert count.adds_up()
        wait_shown(fleet)

        fleet.fix_handler()
        fleet.start_redrive()
        status = fleet.wait_redriven()
        assert (status["selected"], status["moved"], status["remaining"]) == (CANCELLED, CANCELLED, 0), status
        fleet.wait_drained()
        after = fleet.count()
        print(after.line("demo, redriven"))
        assert after.line() == "demo: in=336776 done=336776 failed=0 lost=0 duplicated=0"
        assert after.adds_up_redriven()
