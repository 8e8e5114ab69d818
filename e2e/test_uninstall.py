"""Uninstalling leaves nothing behind that waits for the removed operator."""

from __future__ import annotations

from e2e.conftest import ON_SECOND_CLUSTER, Fleets
from e2e.install import OPERATOR_NAMESPACE

pytestmark = ON_SECOND_CLUSTER


def test_uninstalled_operator_leaves_nothing_terminating(second_fleets: Fleets) -> None:
    """The fleet survives the operator, and can still be deleted afterwards."""
    with second_fleets.named("surviving") as fleet:
        fleet.make_group()
        fleet.wait_stable(members=2)
        fleet.cluster.helm("uninstall", "consumer-fleet", "--namespace", OPERATOR_NAMESPACE, "--wait")
        assert "surviving-fleet-0" in fleet.kubectl("get", "pods")
        fleet.kubectl("delete", "kcg/surviving", "--ignore-not-found", "--timeout=290s")
        fleet.cluster.kubectl("delete", "namespace", "surviving", "--timeout=290s")
        left = fleet.cluster.kubectl_json("get", "namespaces", "--output", "json")["items"]
        assert [item["metadata"]["name"] for item in left if item["metadata"]["name"] == "surviving"] == []
