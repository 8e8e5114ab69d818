"""Rollouts as deployment tools see them: `kubectl wait`, Helm's `--wait`, and the health that Argo CD would show.

Helm deploys each change as a chart with the group, waits, and returns the verdict.
"""

from __future__ import annotations

import copy
import json
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.cluster import PATIENCE_S, Cluster, CommandFailed, conditions, eventually
from e2e.conftest import Fleets
from e2e.demo.fleet import FlightFleet, handler_config_map
from e2e.install import Installation
from e2e.local_cluster.waiting import pause
from e2e.test_failures import pod_identities
from tests.support.argo import Health, health

SLOW_S: Final = 180
"""Seconds until the image and the node of the slow groups exist."""
DEADLINE_S: Final = 60
"""Deadline of the slow groups' checks and rollouts: time spent waiting for a node or an image must not count."""
REFUSAL_DEADLINE_S: Final = 30
HELM_TIMEOUT_S: Final = 600
DYING: Final = "import os\n\n\ndef setup(context):\n    os._exit(3)\n\n\ndef handle(record):\n    return None\n"
"""A handler that passes the check, which does not call `setup`, but ends its worker."""


class Release:
    """A chart with a fleet's objects, and its release."""

    def __init__(self, fleet: FlightFleet, folder: Path, objects: list[dict[str, Any]]) -> None:
        self.fleet = fleet
        self.objects = objects
        self.folder = folder
        (folder / "templates").mkdir(parents=True)
        (folder / "Chart.yaml").write_text(f"apiVersion: v2\nname: {fleet.name}\nversion: 0.1.0\n")

    def deploy(self, timeout_s: int = HELM_TIMEOUT_S) -> None:
        """`helm upgrade --install --wait`. Raises CommandFailed with Helm's verdict."""
        text = "\n---\n".join(map(json.dumps, self.objects))
        assert "{{" not in text, "Helm would take it for its own"
        (self.folder / "templates" / "fleet.yaml").write_text(text)
        target = ("upgrade", "--install", self.fleet.name, str(self.folder), "--namespace", self.fleet.namespace)
        self.fleet.cluster.helm(*target, "--wait", "--timeout", f"{timeout_s}s", timeout_s=timeout_s + 60)

    def refusal(self) -> str:
        """Deploy a change that is refused; returns Helm's error, which comes at the refusal, not at the timeout."""
        began = time.monotonic()
        with pytest.raises(CommandFailed) as refused:
            self.deploy()
        elapsed = time.monotonic() - began
        print(f"refused after {elapsed:.1f} s: {refused.value.stderr}")
        assert elapsed < HELM_TIMEOUT_S / 2
        return refused.value.stderr


def met(fleet: FlightFleet, condition: str, *, name: str = "") -> bool:
    """True if `kubectl wait --for=condition=…` finds the condition met at once."""
    group = f"consumergroups.consumerfleet.io/{name or fleet.name}"
    try:
        fleet.kubectl("wait", f"--for=condition={condition}", group, "--timeout=0")
    except CommandFailed as failure:
        if "condition not met" not in failure.stderr:
            raise
        return False
    return True


def live_health(fleet: FlightFleet, name: str = "") -> Health:
    found = fleet.cluster.get("consumergroups.consumerfleet.io", name or fleet.name, namespace=fleet.namespace)
    assert found is not None
    return health(found)


def expect_done(fleet: FlightFleet, name: str = "") -> None:
    """Expect each tool to see the newest revision running, at once: Helm has waited."""
    assert met(fleet, "Ready", name=name)
    assert met(fleet, "Progressing=False", name=name)
    assert not met(fleet, "Stalled", name=name)
    found = fleet.cluster.get("consumergroups.consumerfleet.io", name or fleet.name, namespace=fleet.namespace) or {}
    status, seen = found["status"], conditions(found)
    assert seen["Progressing"]["reason"] == "Complete"
    assert status["updatedReplicas"] == status["readyReplicas"] == found["spec"]["replicas"]
    assert health(found).status == "Healthy", health(found)


def expect_refused(fleet: FlightFleet, cause: str) -> None:
    """Expect each tool to see a refused revision, and a fleet that still runs the last good one."""
    assert met(fleet, "Progressing=False")
    assert met(fleet, "Stalled")
    assert met(fleet, "Serving")
    assert not met(fleet, "Ready")
    seen = conditions(fleet.group())
    assert seen["Progressing"]["reason"] == "Refused"
    assert cause in seen["Progressing"]["message"]
    shown = live_health(fleet)
    assert shown.status == "Degraded", shown
    assert cause in shown.message, shown


@pytest.mark.together
def test_good_and_refused_revisions_are_seen_rightly_by_deploying_tools(
    fleets: Fleets, cluster: Cluster, tmp_path: Path
) -> None:
    with fleets.named("deployed") as fleet:
        objects = fleet.manifests()
        release = Release(fleet, tmp_path / "chart", objects)
        release.deploy()
        expect_done(fleet)
        before, good = pod_identities(fleet), copy.deepcopy(objects)

        objects[-1]["spec"]["handler"]["python"]["callable"] = "handler:no_such_function"
        error = release.refusal()
        assert "no_such_function" in error, error
        assert "status: Failed" in error, error
        expect_refused(fleet, "no_such_function")
        assert pod_identities(fleet) == before
        fleet.produce()

        release.objects = [handler_config_map("dying", "dying.py", DYING), *copy.deepcopy(good)]
        python = release.objects[-1]["spec"]["handler"]["python"]
        python |= {"callable": "dying:handle", "configMapRef": {"name": "dying"}}
        release.objects[-1]["spec"]["rollout"] = {"progressDeadlineSeconds": REFUSAL_DEADLINE_S}
        error = release.refusal()
        assert "status: Failed" in error, error
        expect_refused(fleet, "exit code 3")
        eventually(lambda: met(fleet, "Serving"), timeout_s=PATIENCE_S, what="the last good revision to serve")
        fleet.wait_drained()
        counted = fleet.count()
        assert counted.adds_up(), counted.line()

        before = pod_identities(fleet)
        release.objects = copy.deepcopy(good)
        missing = f"registry.invalid/proxy:{secrets.token_hex(4)}"
        containers = release.objects[-1]["spec"]["template"].setdefault("spec", {}).setdefault("containers", [])
        containers.append({"name": "proxy", "image": missing})
        with pytest.raises(CommandFailed):  # it waits up to its timeout
            release.deploy(timeout_s=30)
        eventually(lambda: missing in live_health(fleet).message, timeout_s=PATIENCE_S, what="the image to be named")
        assert live_health(fleet).status == "Progressing"
        assert (met(fleet, "Ready"), met(fleet, "Serving"), met(fleet, "Stalled")) == (False, True, False)
        assert pod_identities(fleet) == before, "no worker gave way to a pod that cannot start"

        release.objects = good
        release.objects[-1]["spec"]["template"].setdefault("metadata", {})["annotations"] = {"example.com/try": "3"}
        release.deploy()
        expect_done(fleet)


@pytest.mark.together
def test_slow_image_and_slow_node_are_waited_for_and_end_complete(
    fleets: Fleets, installation: Installation, cluster: Cluster, tmp_path: Path
) -> None:
    """An image and a node that appear after three minutes, longer than any deadline of the groups."""
    name = secrets.token_hex(4)  # no earlier run has left such an image or label on the node
    image = f"registry.invalid/consumer-fleet-consumer:{name}"
    node = cluster.list("nodes", namespace="default")[0]["metadata"]["name"]
    with fleets.named("slow") as fleet:
        *others, group = fleet.manifests()
        group["spec"] |= {
            "replicas": 1,
            "rollout": {"progressDeadlineSeconds": DEADLINE_S, "checkDeadlineSeconds": DEADLINE_S},
        }
        unplaced = copy.deepcopy(group)
        unplaced["metadata"]["name"] = "unplaced"
        unplaced["spec"]["template"]["spec"]["nodeSelector"] = {"example.com/slow": name}
        group["spec"]["image"] = image
        release = Release(fleet, tmp_path / "chart", [*others, group, unplaced])
        began = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            deployed = pool.submit(release.deploy)
            try:
                expect_waiting(fleet, "slow", image)
                expect_waiting(fleet, "unplaced", "Unschedulable")
                while time.monotonic() - began < SLOW_S:
                    assert not deployed.done()
                    for group_name in ("slow", "unplaced"):
                        shown = live_health(fleet, group_name)
                        assert shown.status == "Progressing", shown
                        assert met(fleet, "Progressing", name=group_name), shown
                    pause(5)
            finally:
                installation.tag_image(installation.consumer_image, image)
                cluster.kubectl("label", "node", node, f"example.com/slow={name}", "--overwrite")
            deployed.result()
            print(f"both complete after {time.monotonic() - began:.1f} s")
        expect_done(fleet, "slow")
        expect_done(fleet, "unplaced")
        cluster.kubectl("label", "node", node, "example.com/slow-")


def expect_waiting(fleet: FlightFleet, name: str, cause: str) -> None:
    """Wait until the group's message names the cause of its wait."""
    path = '{.status.conditions[?(@.type=="Progressing")].reason}'
    group = f"consumergroups.consumerfleet.io/{name}"
    created = ("wait", "--for=create", group, "--timeout=60s")
    fleet.kubectl(*created)
    fleet.kubectl("wait", f"--for=jsonpath={path}=Waiting", group, "--timeout=290s")

    def probe() -> bool:
        shown = live_health(fleet, name)
        assert (shown.status, cause in shown.message) == ("Progressing", True), shown
        return True

    eventually(probe, timeout_s=PATIENCE_S, what=f"{name} to wait for {cause}")
    assert not met(fleet, "Ready", name=name)
