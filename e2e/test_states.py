"""States of a group of real workers: a rebalance that a slow handler delays, with the causes that workers report."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from e2e.cluster import eventually
from e2e.demo.fleet import BOOTSTRAP, FlightFleet
from e2e.install import Installation

pytestmark = pytest.mark.together

NAME: Final = "states"
RELEASED: Final = "/tmp/released"
HANDLER: Final = f"""
import os
import time


def handle(record):
    while record.value == b"slow" and not os.path.exists({RELEASED!r}):
        time.sleep(0.1)
"""


def objects() -> list[dict[str, Any]]:
    labels = {"consumerfleet.io/handler": "true"}
    resources = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
    spec = {
        "clusterRef": {"name": "main"},
        "topics": [NAME],
        "replicas": 1,
        "handler": {
            "python": {"callable": "handler:handle", "configMapRef": {"name": "handler"}},
            "timeoutSeconds": 900,
        },
        # Eager members revoke everything before they join, so the others wait for a slow handler.
        "consumer": {"classic": {"assignors": ["range"]}, "maxPollIntervalSeconds": 900},
        "template": {"spec": {"containers": [{"name": "worker", "resources": resources}]}},
    }
    api = {"apiVersion": "consumerfleet.io/v1alpha1"}
    return [
        {**api, "kind": "KafkaCluster", "metadata": {"name": "main"}, "spec": {"bootstrapServers": [BOOTSTRAP]}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "handler", "labels": labels}}
        | {"data": {"handler.py": HANDLER}},
        {**api, "kind": "ConsumerGroup", "metadata": {"name": NAME}, "spec": spec},
    ]


def test_rebalance_that_a_slow_handler_holds_up_is_shown_with_its_causes(installation: Installation) -> None:
    cluster = installation.cluster
    tools = FlightFleet(cluster, namespace=NAME, consumer_image=installation.consumer_image)
    tools.make_tools()
    tools.inside("create-topics", "--partitions", "2", NAME)
    cluster.apply(objects(), namespace=NAME)

    def wait(state: str, members: int, *, last: dict[str, Any], timeout_s: float = 240.0) -> list[dict[str, Any]]:
        def there() -> list[dict[str, Any]]:
            status = (cluster.get("consumergroups.consumerfleet.io", NAME, namespace=NAME) or {}).get("status", {})
            assert (status.get("state"), status.get("memberCount")) == (state, members), status
            entries: list[dict[str, Any]] = status["transitions"]
            assert {key: entries[-1].get(key) for key in last} == last, entries
            return entries

        return eventually(there, timeout_s=timeout_s, what=f"{state} with {members} members", poll_s=0.5)

    try:
        # Without a generation if the worker's report is late: the operator asks an idle group every minute.
        wait("Stable", 1, last={"to": "Stable"})
        tools.inside("write", "--topic", NAME, stdin=b"slow\nslow")
        cluster.kubectl(
            "--namespace",
            NAME,
            "patch",
            "consumergroup",
            NAME,
            "--type=merge",
            "--patch",
            json.dumps({"spec": {"replicas": 2}}),
        )
        # The reported cause may come only with the next generation: the first one's may be unknown yet.
        wait("PreparingRebalance", 2, last={"from": "Stable"})
        release = ["python", "-c", f"open({RELEASED!r}, 'w').close()"]
        cluster.kubectl("exec", f"{NAME}-fleet-0", "--namespace", NAME, "--container", "worker", "--", *release)
        reported = {"from": "Stable", "to": "PreparingRebalance", "inferred": False}

        def attributed() -> bool:
            """Reports come later than observations, and a busy machine may have had more than one rebalance."""
            entries = wait("Stable", 2, last={"to": "Stable"})
            assert entries[-1].get("generation", 0) >= 2, entries
            began = next(entry for entry in entries if (entry["from"], entry["to"]) == ("Stable", reported["to"]))
            assert began == began | reported, entries
            assert f"{NAME}-fleet-1: first subscription" in began["cause"], entries
            return True

        eventually(attributed, timeout_s=300.0, what="the reported cause of the rebalance", poll_s=1.0)
        cluster.kubectl(
            "--namespace",
            NAME,
            "patch",
            "consumergroup",
            NAME,
            "--type=merge",
            "--patch",
            json.dumps({"spec": {"replicas": 0}}),
        )
        wait("Empty", 0, last={"to": "Empty"})
    finally:
        cluster.kubectl("delete", "namespace", NAME, "--wait=false", "--ignore-not-found")
