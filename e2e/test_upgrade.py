"""An upgrade of the chart with another worker image: running fleets keep theirs until their spec names another, or
upgrade in waves if the chart enables them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from e2e.cluster import PATIENCE_S, conditions, eventually
from e2e.conftest import ON_SECOND_CLUSTER, Fleets
from e2e.demo.fleet import FlightFleet
from e2e.install import Installation

pytestmark = ON_SECOND_CLUSTER


@contextmanager
def upgraded(installation: Installation, image: str, *, waves: int = 0) -> Iterator[None]:
    """The operator with another worker image, and with so many groups in a wave."""
    before, installation.consumer_image = installation.consumer_image, image
    installation.max_concurrent_rollouts = waves
    try:
        installation.install_chart()
        yield
    finally:
        installation.consumer_image, installation.max_concurrent_rollouts = before, 0
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


def test_upgrade_keeps_the_pods_until_the_spec_names_the_new_image(second: Installation, second_fleets: Fleets) -> None:
    """The same image under its full name serves as a new one."""
    old = second.consumer_image
    new = f"docker.io/library/{old}"
    with second_fleets.named("upgraded", retries=True) as fleet:
        fleet.make_group()
        fleet.wait_stable(members=2)
        wait_upgrade(fleet, "False", "UpToDate")
        eventually(
            lambda: not [pod for pod in workers(fleet) if "-check-" in pod["metadata"]["name"]],
            timeout_s=PATIENCE_S,
            what="the check to be cleaned up",
        )
        before = uids(fleet)
        with upgraded(second, new):
            message = wait_upgrade(fleet, "True", "DefaultImageDiffers")
            assert f"is now {new}: set spec.image" in message
            assert (uids(fleet), images(fleet)) == (before, {old})
            assert fleet.group()["status"]["image"] == old
            patch = json.dumps({"spec": {"image": new}})
            fleet.kubectl("patch", "consumergroup", fleet.name, "--type=merge", "-p", patch)
            eventually(lambda: images(fleet) == {new}, timeout_s=PATIENCE_S, what="all workers to be of the new image")
            fleet.wait_stable(members=2)
            wait_upgrade(fleet, "False", "ImageFromSpec")
        assert images(fleet) == {new}, "an operator with the old image changes nothing"


def test_three_groups_go_over_one_by_one_with_the_canary_first(second: Installation, second_fleets: Fleets) -> None:
    """The same image under its full name serves as a new one. Groups left by other tests would be upgraded too."""
    second.cluster.kubectl("delete", "consumergroups", "--all", "--all-namespaces", "--wait=false")
    old = second.consumer_image
    new = f"docker.io/library/{old}"
    names = ("wave-a", "wave-b", "wave-c")
    with ExitStack() as stack:
        made = {name: stack.enter_context(second_fleets.named(name)) for name in names}
        for name, fleet in made.items():
            fleet.make_group()
            fleet.kubectl("scale", "consumergroup", name, "--replicas=1")
        made["wave-c"].kubectl("label", "consumergroup", "wave-c", "consumerfleet.io/canary=true")
        for fleet in made.values():
            fleet.wait_stable(members=1)
            wait_upgrade(fleet, "False", "UpToDate")
        before = {name: set(uids(fleet)) for name, fleet in made.items()}
        begun: list[str] = []
        at_once: list[int] = []

        def arrived() -> bool:
            every = second.cluster.kubectl_json("get", "consumergroups", "--all-namespaces", "--output", "json")
            found = {body["metadata"]["name"]: body["status"] for body in every["items"]}
            phases = {name: status.get("upgrade", {}).get("phase") for name, status in found.items()}
            begun.extend(name for name in names if phases[name] and name not in begun)
            at_once.append(sum(phase == "Rolling" for phase in phases.values()))
            assert {phases[name] for name in names} == {"Complete"}, phases
            return True

        with upgraded(second, new, waves=1):
            eventually(arrived, timeout_s=600.0, what="all three to go over", poll_s=0.5)
            print(f"{len(at_once)} samples, at most {max(at_once)} at once, in this order: {begun}")
            assert begun[0] == "wave-c"
            assert max(at_once) == 1
            for name, fleet in made.items():
                fleet.wait_stable(members=1)
                assert images(fleet) == {new}
                assert not before[name] & set(uids(fleet))
                wait_upgrade(fleet, "False", "UpToDate")
        for fleet in made.values():
            wait_upgrade(fleet, "True", "DefaultImageDiffers")
            assert images(fleet) == {new}, "without waves nothing goes over"
