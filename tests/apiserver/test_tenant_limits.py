"""Limits of tenants: the policies that the chart makes of `tenantLimits`, on a real API server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.install import CHART
from e2e.local_cluster.errors import ClusterError
from tests.apiserver import objects
from tests.apiserver.chart import helm
from tests.apiserver.conftest import PATIENCE_S, Site
from tests.support.waiting import eventually

PAGE = CHART.parents[1] / "docs" / "api-conventions.md"
TENANT = "example.com/tenant"
SCHEDULE = {"cron": "0 8 * * *", "durationSeconds": 3600, "minReplicas": 20}
SCHEDULES_REFUSED = "minReplicas and maxReplicas of spec.scaling.schedules may be 20 at most"
RETRY = {"policyRef": {"name": "standard"}, "worker": {"maxReplicas": 20}}
TOPICS = {"partitions": 12}


def documented() -> str:
    """The values of the page."""
    (text,) = re.findall(r"```yaml\n(tenantLimits:\n.*?)```", PAGE.read_text(), re.DOTALL)
    return str(text)


@pytest.fixture
def tenant(quiet_site: Callable[..., Site], tmp_path: Path) -> Site:
    """A namespace in which the limits of the page hold; it has a group from before that is beyond all of them."""
    here = quiet_site("tenant")
    here.apply(objects.group(here.name, name="old", group_id="old", replicas=30, retry={"policyRef": {"name": "p"}}))
    values = tmp_path / "values.yaml"
    values.write_text(documented())
    policies = helm("template", "limits", str(CHART), "--values", str(values), "-s", "templates/tenantlimits.yaml")
    here.kubectl("apply", "-f", "-", text=policies)
    here.kubectl("label", "namespace", here.name, f"{TENANT}=true")

    def holds() -> bool:
        assert refusal(here, replicas=21)
        return True

    eventually(holds, timeout_s=PATIENCE_S, what="the limits to hold")
    return here


def refusal(here: Site, **spec: Any) -> str:
    return here.refusal(objects.group(here.name, **{"managedTopics": TOPICS, **spec}))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"replicas": 21}, "spec.replicas may be 20 at most"),
        ({"scaling": {}}, "spec.scaling.maxReplicas must be given, and may be 20 at most"),
        ({"scaling": {"maxReplicas": 21}}, "spec.scaling.maxReplicas must be given, and may be 20 at most"),
        ({"scaling": {"maxReplicas": 20, "schedules": [{**SCHEDULE, "minReplicas": 21}]}}, SCHEDULES_REFUSED),
        ({"scaling": {"maxReplicas": 20, "schedules": [{**SCHEDULE, "maxReplicas": 21}]}}, SCHEDULES_REFUSED),
        ({"retry": {**RETRY, "worker": {}}}, "spec.retry.worker.maxReplicas must be given, and may be 20 at most"),
        ({"managedTopics": {}}, "spec.managedTopics.partitions must be given, and may be 12 at most"),
        ({"managedTopics": {"partitions": 13}}, "partitions must be given, and may be 12 at most"),
        (
            {"group_id": "orders"},
            "(without it the namespace, a dot and metadata.name) must begin with tenant-",
        ),
    ],
)
def test_tenant_gets_no_more_than_the_limits_allow(tenant: Site, spec: dict[str, Any], named: str) -> None:
    assert named in refusal(tenant, **spec)


def test_limits_are_for_what_they_select_and_allow_all_up_to_them(
    tenant: Site, quiet_site: Callable[..., Site]
) -> None:
    scaling = {"maxReplicas": 20, "schedules": [SCHEDULE, {**SCHEDULE, "maxReplicas": 20}]}
    tenant.accepted(objects.group(tenant.name, replicas=20, scaling=scaling, retry=RETRY, managedTopics=TOPICS))
    free = quiet_site("free")
    free.accepted(objects.group(free.name, group_id="orders", replicas=1000, scaling={}))


def test_scale_beyond_the_limit_is_refused(tenant: Site) -> None:
    tenant.apply(objects.group(tenant.name, managedTopics=TOPICS))
    with pytest.raises(ClusterError, match="20 at most"):
        tenant.kubectl("scale", "consumergroups/flights", "--replicas=21")
    tenant.kubectl("scale", "consumergroups/flights", "--replicas=20")


def test_group_from_before_keeps_what_it_has_until_its_spec_is_edited(tenant: Site) -> None:
    """The operator adds and removes finalizers, and writes statuses."""
    tenant.kubectl("annotate", "consumergroups/old", "consumerfleet.io/paused=true")
    tenant.kubectl(
        "patch", "consumergroups/old", "--type=merge", "-p", json.dumps({"metadata": {"finalizers": ["a.b/c"]}})
    )
    tenant.kubectl("patch", "consumergroups/old", "--type=merge", "-p", json.dumps({"metadata": {"finalizers": []}}))
    status = json.dumps({"status": {"replicas": 30}})
    tenant.kubectl("patch", "consumergroups/old", "--type=merge", "--subresource=status", "-p", status)
    edited = tenant.get("consumergroups", "old")
    edited["spec"]["suspend"] = True
    assert "spec.replicas may be 20 at most" in tenant.refusal(edited, replaces=True)
    edited["spec"] |= {"replicas": 20, "retry": RETRY, "managedTopics": TOPICS}
    tenant.client.would_replace(tenant.name, edited)
