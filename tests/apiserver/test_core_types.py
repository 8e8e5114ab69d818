"""Kubernetes' own types within the CRDs, on an API server of the release whose OpenAPI document is committed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.apiserver.conftest import Site
from tests.core_types.document import read, reduced
from tests.unit.api.crd_objects import JsonObject, consumer_group


@pytest.fixture(scope="module")
def here(quiet_site: Callable[..., Site]) -> Site:
    return quiet_site("core-types")


def test_committed_types_are_those_that_the_server_publishes(here: Site) -> None:
    """After an update of Kubernetes: `kubectl get --raw /openapi/v3/api/v1`, and `python -m tests.core_types FILE`."""
    assert reduced(json.loads(here.kubectl("get", "--raw", "/openapi/v3/api/v1"))) == read()


def test_two_appliers_of_one_list_keep_each_other_s_items(here: Site) -> None:
    """Lists have the keys that they have in a pod."""
    spread = {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
    for manager, name in (("team", "a"), ("platform", "b")):
        worker = {
            "name": "worker",
            "env": [{"name": name, "value": "1"}],
            "volumeMounts": [{"name": name, "mountPath": f"/{name}"}],
        }
        pod = {
            "containers": [worker],
            "hostAliases": [{"ip": f"10.0.0.{ord(name)}", "hostnames": [name]}],
            "topologySpreadConstraints": [{**spread, "topologyKey": name}],
        }
        body = consumer_group({"metadata.name": "merged", "spec.template": {"spec": pod}})
        here.kubectl("apply", "--server-side", f"--field-manager={manager}", "-f", "-", text=json.dumps(body))
    found = here.get("consumergroups", "merged")["spec"]["template"]["spec"]
    assert keys(found["containers"][0]["env"], "name") == ["a", "b"]
    assert keys(found["containers"][0]["volumeMounts"], "mountPath") == ["/a", "/b"]
    assert keys(found["hostAliases"], "ip") == ["10.0.0.97", "10.0.0.98"]
    assert keys(found["topologySpreadConstraints"], "topologyKey") == ["a", "b"]


def keys(items: list[JsonObject], name: str) -> list[str]:
    return sorted(item[name] for item in items)
