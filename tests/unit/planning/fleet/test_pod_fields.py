"""Fields of `spec.template.spec` that the workers' pods have as they are given."""

from __future__ import annotations

from typing import Any

from fleet_operator.planning.fleet.revision import plan_revision
from tests.unit.planning.builders import consumer_group, kafka_cluster


def pod_spec(template_spec: dict[str, Any]) -> dict[str, Any]:
    group = consumer_group(template={"spec": template_spec})
    revision = plan_revision(group, kafka_cluster(), handler_files=None, image="worker:1")
    spec: dict[str, Any] = revision.pod_template["spec"]
    return spec


def test_runtime_names_scheduler_and_sizes_of_directories_arrive_in_the_pods() -> None:
    wanted = {
        "runtimeClassName": "gvisor",
        "schedulerName": "batch",
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["db"]}],
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["10.0.0.2"]},
    }
    directory = {"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}}
    spec = pod_spec({**wanted, "volumes": [directory]})
    assert {key: spec[key] for key in wanted} == wanted
    assert directory in spec["volumes"]
    assert not pod_spec({}).keys() & wanted.keys()
