"""Scaled groups on a real API server: bounds, what outlives an operator, dry runs, and what others write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet_operator.clients.kinds import CONSUMER_GROUP
from tests.apiserver import objects
from tests.apiserver.conftest import PATIENCE_S, Site
from tests.apiserver.test_operator_fleet import MakeSite, revision_of, start_fleet, wait_good
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.together]


def memory_of(here: Site) -> dict[str, Any]:
    found: dict[str, Any] = here.get("operatorstates", "flights.consumergroup")["data"].get("sizing", {})
    return found


def started(here: Site, broker: KafkaBroker, **scaling: Any) -> None:
    start_fleet(here, broker, scaling=scaling)
    here.wait_ready_replicas(scaling.get("minReplicas", 1))
    wait_good(here, revision_of(here))


def test_bounds_of_the_spec_size_the_fleet_and_kubectl_scale_does_not(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("bounds")
    started(here, broker, minReplicas=2)
    here.kubectl("scale", "kcg/flights", "--replicas=5")
    here.wait_condition("consumergroups", "flights", "ScalingActive", status="True", reason="ScaleFieldIgnored")
    assert here.get("statefulsets", "flights-fleet")["spec"]["replicas"] == 2
    here.apply(objects.group(here.name, scaling={"minReplicas": 4}, replicas=5))
    here.wait_ready_replicas(4)
    eventually(lambda: memory_of(here)["count"] == 4, timeout_s=PATIENCE_S, what="the number in the state")
    join = json.loads(here.get("configmaps", "flights-fleet-offsets")["data"]["join.json"])
    assert (join["first"], join["end"]) == (2, 4)
    status = here.get("consumergroups", "flights")["status"]
    step = status["scaling"]["lastStep"]
    assert (step["from"], step["to"]) == (2, 4)
    assert "limits the fleet" in step["reason"]


def test_suspended_fleet_comes_back_with_the_number_that_it_had(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("resumed")
    started(here, broker, minReplicas=3)
    here.kubectl("patch", "kcg/flights", "--type=merge", "--patch", '{"spec": {"suspend": true}}')
    here.wait_ready_replicas(0)
    assert memory_of(here)["count"] == 3
    here.wait_condition("consumergroups", "flights", "ScalingActive", status="False", reason="Suspended")
    here.kubectl("patch", "kcg/flights", "--type=merge", "--patch", '{"spec": {"suspend": false}}')
    here.wait_ready_replicas(3)


def test_dry_run_sizes_nothing_and_shows_what_it_would_do(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("dry")
    start_fleet(here, broker, scaling={"minReplicas": 3, "dryRun": True}, replicas=1)
    here.wait_ready_replicas(1)
    here.wait_condition("consumergroups", "flights", "ScalingActive", status="False", reason="DryRun")
    status = here.get("consumergroups", "flights")["status"]
    assert (status["targetReplicas"], status["scaling"]["proposedReplicas"]) == (1, 3)
    assert memory_of(here) == {"replicas": 1}


def replicas_and_owners(here: Site) -> tuple[int | None, list[str]]:
    found = here.client.ask("GET", CONSUMER_GROUP.path(here.name, "flights"))
    entries = found["metadata"]["managedFields"]
    owners = [each["manager"] for each in entries if "f:replicas" in each["fieldsV1"].get("f:spec", {})]
    return found["spec"].get("replicas"), owners


def applied(here: Site, **spec: Any) -> None:
    """Apply the manifest server-side, as Helm 4 does: without force."""
    text = json.dumps(objects.group(here.name, **spec))
    here.kubectl("apply", "--server-side", "--field-manager=helm", "-f", "-", text=text)


def test_autoscaler_takes_over_a_fleet_whose_manifest_leaves_out_replicas(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("handed-over")
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
    applied(here, replicas=3)
    here.wait_ready_replicas(3)
    assert replicas_and_owners(here) == (3, ["helm"])
    applied(here)  # without the field, which nobody else owns: the API server removes it
    eventually(lambda: replicas_and_owners(here) == (3, []), timeout_s=PATIENCE_S, what="the number without an owner")
    assert here.get("statefulsets", "flights-fleet")["spec"]["replicas"] == 3
    scale = here.client.ask("GET", CONSUMER_GROUP.path(here.name, "flights", "scale"))  # as an HPA begins
    assert scale["spec"] == {"replicas": 3}
    here.kubectl("scale", "kcg/flights", "--replicas=2")
    here.wait_ready_replicas(2)
    applied(here, suspend=False)
    assert replicas_and_owners(here) == (2, [])
    here.kubectl("patch", "kcg/flights", "--type=json", "--patch", '[{"op": "remove", "path": "/spec/replicas"}]')
    eventually(lambda: replicas_and_owners(here) == (2, []), timeout_s=PATIENCE_S, what="the number that was decided")
    assert here.get("statefulsets", "flights-fleet")["spec"]["replicas"] == 2
    applied(here, replicas=1)  # back into the manifest, without a conflict
    here.wait_ready_replicas(1)


def test_new_fleet_without_replicas_begins_with_one_and_shows_it(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("unsized")
    start_fleet(here, broker)
    here.wait_ready_replicas(1)
    eventually(lambda: replicas_and_owners(here) == (1, []), timeout_s=PATIENCE_S, what="the number in the object")


def test_fleet_without_brokers_stays_as_it_is_and_says_why(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("blind")
    started(here, broker, minReplicas=2)
    here.apply(objects.cluster(here.name, "127.0.0.1:1"))
    here.wait_condition("consumergroups", "flights", "ScalingActive", status="False", reason="LoadUnknown")
    status = here.get("consumergroups", "flights")["status"]
    assert (status["limit"], status["targetReplicas"], status["replicas"]) == ("Unknown", 2, 2)


def test_fleet_keeps_its_number_without_scaling_until_spec_replicas_is_edited(
    site: MakeSite, broker: KafkaBroker
) -> None:
    here = site("fixed")
    started(here, broker, minReplicas=3)
    here.kubectl("patch", "kcg/flights", "--type=json", "--patch", '[{"op": "remove", "path": "/spec/scaling"}]')
    here.wait_condition("consumergroups", "flights", "ScalingActive", status="False", reason="FixedReplicas")
    status = here.get("consumergroups", "flights")["status"]
    assert "scaling" not in status
    assert (status["targetReplicas"], here.get("statefulsets", "flights-fleet")["spec"]["replicas"]) == (3, 3)
    here.kubectl("patch", "kcg/flights", "--type=merge", "--patch", '{"spec": {"replicas": 2}}')
    here.wait_ready_replicas(2)
