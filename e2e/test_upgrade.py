"""An upgrade of the chart with another worker image: running fleets keep theirs until their spec names another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from e2e.cluster import PATIENCE_S, conditions, eventually
from e2e.conftest import Fleets
from e2e.demo.fleet import FlightFleet
from e2e.install import Installation


@contextmanager
def upgraded(installation: Installation, image: str) -> Iterator[None]:
    """The operator with another worker image."""
    before, installation.consumer_image = installation.consumer_image, image
    try:
        installation.install_chart()
        yield
    finally:
        installation.consumer_image = before
        installation.install_chart()


def workers(fleet: FlightFleet) -> list[dict[str, Any]]:
    """The workers' pods, also retry workers and checks."""
    return fleet.cluster.list("pods", namespace=fleet.namespace, selector=f"consumerfleet.io/group={fleet.name}")


def uids(fleet: FlightFleet) -> list[str]:
    return sorted(pod["metadata"]["uid"] for pod in workers(fleet))


def images(fleet: FlightFleet) -> set[str]:
    return {container["image"] for pod in workers(fleet) for container in pod["spec"]["containers"]}


def wait_upgrade(fleet: FlightFleet, status: str, reason: str) -> str:
    def probe() -> str:
        found = conditions(fleet.group()).get("UpgradeAvailable", {})
        assert (found.get("status"), found.get("reason")) == (status, reason), found
        return str(found["message"])

    return eventually(probe, timeout_s=PATIENCE_S, what=f"UpgradeAvailable={status} ({reason})")


def test_upgrade_keeps_the_pods_until_the_spec_names_the_new_image(installation: Installation, fleets: Fleets) -> None:
    """The same image under its full name stands for a new one."""
    old = installation.consumer_image
    new = f"docker.io/library/{old}"
    with fleets.named("upgraded", retries=True) as fleet:
        fleet.make_group()
        fleet.wait_stable(members=2)
        wait_upgrade(fleet, "False", "UpToDate")
        eventually(
            lambda: not [pod for pod in workers(fleet) if "-check-" in pod["metadata"]["name"]],
            timeout_s=PATIENCE_S,
            what="the check to be cleaned up",
        )
        before = uids(fleet)
        with upgraded(installation, new):
            message = wait_upgrade(fleet, "True", "DefaultImageDiffers")
            assert f"{new} now: set spec.image" in message
            assert (uids(fleet), images(fleet)) == (before, {old})
            assert fleet.group()["status"]["image"] == old
            patch = json.dumps({"spec": {"image": new}})
            fleet.kubectl("patch", "consumergroup", fleet.name, "--type=merge", "-p", patch)
            eventually(lambda: images(fleet) == {new}, timeout_s=PATIENCE_S, what="all workers to be of the new image")
            fleet.wait_stable(members=2)
            wait_upgrade(fleet, "False", "ImageFromSpec")
        assert images(fleet) == {new}, "an operator with the old image changes nothing"
