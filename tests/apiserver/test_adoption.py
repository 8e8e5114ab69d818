"""Fleets whose operator, or whose ConsumerGroup, is another one than the one that made them."""

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
CHILDREN = ("statefulsets", "configmaps", "services", "poddisruptionbudgets")
NAMESPACED = {"statefulsets": "statefulset", "services": "service", "poddisruptionbudgets": "pdb", "configmaps": "cm"}


def start_fleet(here: Site, broker: KafkaBroker, **annotations: str) -> None:
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
    here.apply(objects.policy(here.name, "5s"))
    body = objects.group(here.name, retry=objects.retry(), replicas=2)
    here.apply({**body, "metadata": {**body["metadata"], "annotations": annotations}})


def operator_with(here: Site, image: str) -> Operator:
    return Operator(here.api, "--namespace", here.name, "--consumer-image", image)


def wait_complete(here: Site) -> None:
    here.wait_condition("consumergroups", "flights", "Progressing", status="False", reason="Complete")
    here.wait_ready_replicas(2)


def uids(here: Site) -> dict[str, str]:
    """The workers' pods, by name."""
    found = here.every("pods", "app.kubernetes.io/component in (worker,retry)")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def owners(here: Site) -> set[str]:
    """The uids that own the fleet's objects; empty for one without an owner."""
    found = (body for kind in CHILDREN for body in here.every(kind))
    return {(body["metadata"].get("ownerReferences") or [{"uid": ""}])[0]["uid"] for body in found}


def group(here: Site) -> dict[str, Any]:
    return here.get("consumergroups", "flights")


@pytest.mark.parametrize("keep_status", [True, False])
def test_operator_installed_again_takes_fleets_over_without_rolling_a_pod(
    quiet_site: MakeSite, broker: KafkaBroker, keep_status: bool
) -> None:
    here = quiet_site("again")
    start_fleet(here, broker)
    with operator_with(here, "worker:1"):
        wait_complete(here)
        eventually(lambda: len(uids(here)) == 3, timeout_s=PATIENCE_S, what="a retry worker too")
    before = uids(here)
    if not keep_status:
        bare = {**group(here), "status": {}}
        here.kubectl("replace", "--subresource=status", "-f", "-", text=json.dumps(bare))
    with operator_with(here, "worker:2"):
        here.wait_condition(
            "consumergroups", "flights", "UpgradeAvailable", status="True", reason="DefaultImageDiffers"
        )
        wait_complete(here)
        assert uids(here) == before


@pytest.mark.parametrize("stripped", [True, False])
def test_object_created_again_leaves_the_running_fleet_alone_until_it_is_told_to_adopt_it(
    quiet_site: MakeSite, broker: KafkaBroker, stripped: bool
) -> None:
    """Tools that restore leave owner references away, or those of objects that are gone."""
    here = quiet_site("adopted")
    start_fleet(here, broker)
    with operator_with(here, "worker:1"):
        wait_complete(here)
        eventually(lambda: len(uids(here)) == 3, timeout_s=PATIENCE_S, what="a retry worker too")
    before, former = uids(here), group(here)["metadata"]["uid"]
    here.kubectl("delete", "consumergroup", "flights")
    if stripped:
        patch = json.dumps({"metadata": {"ownerReferences": None}})
        for kind in CHILDREN:
            for name in here.names(kind):
                here.kubectl("patch", NAMESPACED[kind], name, "--type=merge", "-p", patch)
    assert owners(here) == ({""} if stripped else {former})
    start_fleet(here, broker)
    with operator_with(here, "worker:2"):
        here.wait_condition("consumergroups", "flights", "Degraded", status="True", reason="NameTaken")
        message = here.condition("consumergroups", "flights", "Degraded")["message"]
        assert 'consumerfleet.io/adopt: "true"' in message
        assert (uids(here), owners(here)) == (before, {""} if stripped else {former})
        start_fleet(here, broker, **{"consumerfleet.io/adopt": "true"})
        wait_complete(here)
        now = group(here)
        assert now["metadata"]["uid"] != former
        eventually(lambda: owners(here) == {now["metadata"]["uid"]}, timeout_s=PATIENCE_S, what="another owner")
        assert now["status"]["image"] == "worker:1", "the image that ran"

        def rolled() -> bool:
            found = uids(here)
            assert found.keys() == before.keys()
            assert not set(found.values()) & set(before.values())
            return True

        eventually(rolled, timeout_s=PATIENCE_S, what="workers with the new object's identity")
        wait_complete(here)


def test_objects_of_others_are_never_adopted(quiet_site: MakeSite, broker: KafkaBroker) -> None:
    here = quiet_site("foreign")
    labels = {"consumerfleet.io/group": "flights", "app.kubernetes.io/managed-by": "somebody"}
    metadata = {"name": "flights-fleet", "namespace": here.name, "labels": labels}
    container = {"name": "worker", "image": "theirs"}
    template = {"metadata": {"labels": {"app": "theirs"}}, "spec": {"containers": [container]}}
    spec = {"serviceName": "x", "selector": {"matchLabels": {"app": "theirs"}}, "template": template, "replicas": 0}
    theirs = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}
    annotated = {**metadata, "annotations": {"consumerfleet.io/revision": "none"}}
    here.apply({**theirs, "metadata": annotated})
    start_fleet(here, broker, **{"consumerfleet.io/adopt": "true"})
    with operator_with(here, "worker:1"):
        here.wait_condition("consumergroups", "flights", "Degraded", status="True", reason="NameTaken")
        found = here.get("statefulsets", "flights-fleet")
        assert "ownerReferences" not in found["metadata"]
        assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "theirs"
