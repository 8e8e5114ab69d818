"""Outages that concern all groups of a cluster: a killed operator, a broker that does not answer."""

from __future__ import annotations

from e2e.conftest import ON_SECOND_CLUSTER, Fleets
from e2e.install import Installation
from e2e.test_failures import pod_identities, wait_condition

pytestmark = ON_SECOND_CLUSTER


def test_silent_broker_is_reported_and_the_fleet_continues_when_it_answers(
    second: Installation, second_fleets: Fleets
) -> None:
    """A silent broker costs no pod: the status reports it and keeps the last values; everything then recovers."""
    with second_fleets.named("patient") as fleet:
        fleet.make_group()
        fleet.wait_stable(members=2)
        before = pod_identities(fleet)
        with second.paused_container(namespace="kafka", pod="kafka-0"):
            wait_condition(second.cluster, fleet, "ClusterReachable", "False", "BrokerUnreachable")
            status = fleet.group()["status"]
            assert status["memberCount"] == 2
            assert status["partitions"] == 12
        fleet.wait_stable(members=2)
        fleet.produce()
        fleet.wait_drained()
        assert pod_identities(fleet) == before
        assert fleet.count().lost == 0


def test_killed_operator_resumes(second: Installation, second_fleets: Fleets) -> None:
    """A group applied while the operator is dead is reconciled by the next one; no command has to be repeated."""
    with second_fleets.named("orphaned") as fleet:
        second.kill_operator()
        fleet.make_group()
        fleet.wait_stable(members=2)
