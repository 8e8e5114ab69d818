"""A group that makes no progress reports why, since when, at which record and in which pod, within thirty seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest

from e2e.cluster import Cluster, conditions, eventually
from e2e.demo.fleet import BOOTSTRAP, FlightFleet
from e2e.install import Installation
from tests.support.together import Later

pytestmark = pytest.mark.together

NAMESPACE: Final = "stuck-groups"
WITHIN_SECONDS: Final = 30
TIMEOUT_SECONDS: Final = 5
GOOD_RECORDS: Final = 3

HANDLER: Final = """
import ctypes
import time


def handle(record):
    behaviour = record.value.decode()
    if behaviour == "crash":
        ctypes.string_at(0)
    if behaviour == "memory":
        taken = [bytearray(b"x" * (8 << 20)) for _ in range(64)]
    if behaviour == "hang":
        time.sleep(3600)
    if behaviour == "bug":
        from fleet_consumer.worker.consume.outcomes import Outcomes

        Outcomes.raised = None
        raise ValueError("brings a bug of the worker's own to light")
"""


@dataclass(frozen=True)
class Failure:
    """A cause of no progress, and the strings that the status must contain."""

    name: str
    degraded: str
    texts: tuple[str, ...]
    stuck: str
    """The reason of the stuck partition."""
    after_s: float = 0.0
    """Seconds from the write to the failure."""


FAILURES: Final = (
    Failure("crash", "WorkersFailing", ("exit code 139", "SIGSEGV"), "Error"),
    Failure("memory", "WorkersFailing", ("OOMKilled", "exit code 137", "SIGKILL"), "OOMKilled"),
    Failure("hang", "PartitionStuck", ("does not return",), "HandlerTimeout", TIMEOUT_SECONDS),
    Failure("bug", "WorkerReportsError", ("TypeError",), "SessionEnded"),
)


class StuckGroups:
    """Groups of one worker on a topic of one partition each, in a namespace of their own."""

    def __init__(self, installation: Installation) -> None:
        self.cluster: Cluster = installation.cluster
        self.tools = FlightFleet(self.cluster, namespace=NAMESPACE, consumer_image=installation.consumer_image)

    def make(self) -> None:
        self.tools.make_tools()
        names = [failure.name for failure in FAILURES]
        self.tools.inside("create-topics", "--partitions", "1", *names)
        self.cluster.apply([*common(), *(group(name) for name in names)], namespace=NAMESPACE)
        for name in names:
            eventually(partial(self.is_ready, name), timeout_s=240, what=f"{name} is ready")

    def is_ready(self, name: str) -> bool:
        ready = conditions(self.found(name)).get("Ready", {})
        assert ready.get("status") == "True", ready
        return True

    def found(self, name: str) -> dict[str, Any]:
        return self.cluster.get("consumergroups.consumerfleet.io", name, namespace=NAMESPACE) or {}

    def write(self, failure: Failure) -> None:
        """Write the record at which the group will get stuck, after some that it handles."""
        values = [*("good" for _ in range(GOOD_RECORDS)), failure.name]
        self.tools.inside("write", "--topic", failure.name, stdin="\n".join(values).encode())

    def events(self, name: str) -> dict[str, str]:
        """The messages of the events about a group, by reason."""
        found = self.tools.kubectl_json("get", "events", "--output", "json")["items"]
        return {each["reason"]: each["message"] for each in found if each["involvedObject"]["name"] == name}


def common() -> list[dict[str, Any]]:
    labels = {"consumerfleet.io/handler": "true"}
    return [
        {"apiVersion": "consumerfleet.io/v1alpha1", "kind": "KafkaCluster", "metadata": {"name": "main"}}
        | {"spec": {"bootstrapServers": [BOOTSTRAP], "observeIntervalSeconds": 2}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "handler", "labels": labels}}
        | {"data": {"handler.py": HANDLER}},
    ]


def group(name: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
    spec = {
        "clusterRef": {"name": "main"},
        "topics": [name],
        "handler": {
            "python": {"callable": "handler:handle", "configMapRef": {"name": "handler"}},
            "timeoutSeconds": TIMEOUT_SECONDS,
        },
        "consumer": {"commitIntervalSeconds": 1},
        "template": {"spec": {"containers": [{"name": "worker", "resources": resources}]}},
    }
    return {
        "apiVersion": "consumerfleet.io/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": name},
        "spec": spec,
    }


@contextmanager
def run_stuck_groups(installation: Installation) -> Iterator[StuckGroups]:
    made = StuckGroups(installation)
    try:
        made.make()
        yield made
    finally:
        made.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="session")
def stuck_later(installation: Installation) -> Iterator[Later[StuckGroups]]:
    with Later(lambda: run_stuck_groups(installation)) as later:
        yield later


@pytest.fixture
def stuck_groups(stuck_later: Later[StuckGroups]) -> StuckGroups:
    return stuck_later.get()


@pytest.mark.parametrize("failure", FAILURES, ids=[failure.name for failure in FAILURES])
def test_stuck_group_reports_cause_record_and_pod_within_thirty_seconds(
    stuck_groups: StuckGroups, failure: Failure
) -> None:
    stuck_groups.write(failure)

    def reported() -> dict[str, Any]:
        found = stuck_groups.found(failure.name)
        seen, stuck = conditions(found), found["status"]["stuckPartitions"]
        assert (seen["Degraded"]["status"], seen["Degraded"]["reason"]) == ("True", failure.degraded), seen["Degraded"]
        assert (seen["Stuck"]["status"], seen["Stuck"]["reason"]) == ("True", "PartitionStuck"), seen["Stuck"]
        for word in (*failure.texts, f"{failure.name}-0:{GOOD_RECORDS}", f"{failure.name}-fleet-0 since "):
            assert word in seen["Stuck"]["message"], seen["Stuck"]
        for word in (*failure.texts, f"{failure.name}-fleet-0"):
            assert word in seen["Degraded"]["message"], seen["Degraded"]
        (entry,) = stuck
        assert (entry["topic"], entry["partition"], entry["offset"]) == (failure.name, 0, GOOD_RECORDS)
        assert (entry["pod"], entry["reason"]) == (f"{failure.name}-fleet-0", failure.stuck)
        assert entry["since"]
        events = stuck_groups.events(failure.name)
        assert f"{failure.name}-0:{GOOD_RECORDS}" in events.get("PartitionStuck", ""), events
        assert failure.degraded in events, events
        return found

    eventually(reported, timeout_s=failure.after_s + WITHIN_SECONDS, what=f"{failure.name} in status", poll_s=0.5)
