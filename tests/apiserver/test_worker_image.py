"""The pinned worker image under operators that come with other images."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.apiserver import objects
from tests.apiserver.conftest import PATIENCE_S, Operator, Site
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("quiet_nodes"), pytest.mark.together]

MakeSite = Callable[..., Site]
FLEETS = ("flights-fleet", "flights-fleet-retry")


def start_fleet(here: Site, broker: KafkaBroker, **spec: Any) -> None:
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
    here.apply(objects.policy(here.name, "5s"), objects.group(here.name, retry=objects.retry(), **spec))


def image_of(body: dict[str, Any]) -> str:
    (worker,) = body["spec"]["template"]["spec"]["containers"]
    return str(worker["image"])


def generations(here: Site) -> list[int]:
    return [here.get("statefulsets", name)["metadata"]["generation"] for name in FLEETS]


def wait_image(here: Site, image: str, source: str) -> None:
    """Wait until all workers are of this image, the status says so, and the fleet is settled."""

    def seen() -> bool:
        status = here.status("consumergroups", "flights")
        assert (status.get("image"), status.get("imageSource")) == (image, source), status
        assert [image_of(here.get("statefulsets", name)) for name in FLEETS] == [image, image]
        assert here.names("pods", "app.kubernetes.io/component=check") == []
        assert {pod["spec"]["containers"][0]["image"] for pod in here.every("pods")} == {image}
        return True

    eventually(seen, timeout_s=PATIENCE_S, what=f"workers of image {image}")
    here.wait_ready_replicas(1)


def operator_with(here: Site, image: str, *, before: str = "") -> Operator:
    return Operator(here.api, "--namespace", here.name, "--consumer-image", image, before=before)


ANOTHER_VERSION = """
from fleet_operator.planning.fleet import pod_template
pod_template.DEFAULT_RESOURCES = {"requests": {"cpu": "75m"}}
pod_template.STARTUP_S = 300
"""
"""An operator that renders pods otherwise."""


def upgrade(here: Site, status: str, reason: str) -> str:
    found = here.wait_condition("consumergroups", "flights", "UpgradeAvailable", status=status, reason=reason)
    return str(found["message"])


def test_fleet_keeps_its_image_until_the_spec_names_another(quiet_site: MakeSite, broker: KafkaBroker) -> None:
    here = quiet_site("pinned")
    start_fleet(here, broker)
    with operator_with(here, "worker:1"):
        wait_image(here, "worker:1", "Operator")
        upgrade(here, "False", "UpToDate")
    before = generations(here)
    with operator_with(here, "worker:2"):
        message = upgrade(here, "True", "DefaultImageDiffers")
        assert "worker:2" in message
        assert "set spec.image" in message
        wait_image(here, "worker:1", "Operator")
        assert generations(here) == before, "an operator with another image changes no StatefulSet"
        start_fleet(here, broker, image="worker:2")
        wait_image(here, "worker:2", "Spec")
        upgrade(here, "False", "ImageFromSpec")
    with operator_with(here, "worker:3"):
        wait_image(here, "worker:2", "Spec")
        start_fleet(here, broker)
        wait_image(here, "worker:3", "Operator")
        upgrade(here, "False", "UpToDate")


@pytest.mark.parametrize("left", [{}, {"image": "no image at all", "imageSource": "Operator"}])
def test_fleet_keeps_its_image_when_its_status_is_lost(
    quiet_site: MakeSite, broker: KafkaBroker, left: dict[str, str]
) -> None:
    """Somebody restores the object without its status, or writes into it."""
    here = quiet_site("lost")
    start_fleet(here, broker)
    with operator_with(here, "worker:1"):
        wait_image(here, "worker:1", "Operator")
    before = generations(here)
    group = here.get("consumergroups", "flights")
    here.kubectl("replace", "--subresource=status", "-f", "-", text=json.dumps({**group, "status": left}))
    assert here.status("consumergroups", "flights") == left
    with operator_with(here, "worker:2"):
        upgrade(here, "True", "DefaultImageDiffers")
        wait_image(here, "worker:1", "Operator")
    assert generations(here) == before


def test_operator_that_renders_pods_otherwise_rolls_nothing_until_the_spec_changes(
    quiet_site: MakeSite, broker: KafkaBroker
) -> None:
    here = quiet_site("kept")
    start_fleet(here, broker)
    with operator_with(here, "worker:1"):
        wait_image(here, "worker:1", "Operator")
        upgrade(here, "False", "UpToDate")
        revision = wait_good(here)
    before = generations(here)
    with operator_with(here, "worker:1", before=ANOTHER_VERSION):
        upgrade(here, "True", "PlannedByAnotherVersion")
        start_fleet(here, broker, replicas=2)
        here.wait_ready_replicas(2)
        assert wait_good(here) == revision
        assert [found - was for found, was in zip(generations(here), before, strict=True)] == [1, 0], "scaled"
        start_fleet(here, broker, replicas=2, template={"metadata": {"annotations": {"upgraded": "now"}}})
        eventually(lambda: wait_good(here) != revision, timeout_s=PATIENCE_S, what="the present form")
        (worker,) = here.get("statefulsets", "flights-fleet")["spec"]["template"]["spec"]["containers"]
        assert worker["resources"] == {"requests": {"cpu": "75m"}}
        upgrade(here, "False", "UpToDate")


def wait_good(here: Site) -> str:
    """Wait until the revision that runs is recorded as good; return it."""

    def seen() -> str:
        revision = str(
            here.get("statefulsets", "flights-fleet")["metadata"]["annotations"]["consumerfleet.io/revision"]
        )
        verdicts = here.get("operatorstates", "flights.consumergroup")["data"]["fleet"]["verdicts"]
        assert verdicts[revision].get("state") == "Good"
        return revision

    return eventually(seen, timeout_s=PATIENCE_S, what="a good revision")
