"""Backfills of a fleet on a cluster: created, watched, and their Parquet counted by independent code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.cluster import WaitedTooLong, conditions, eventually
from e2e.demo.fleet import EXAMPLE, FlightFleet, Rows
from e2e.local_cluster.access import foreign_kubeconfig
from e2e.local_cluster.instance import Instance

KIND: Final = "backfills.consumerfleet.io"
CLAIM: Final = "lake"
POD: Final = "demo-lake"
MOUNT: Final = "/lake"
BUCKETS: Final = "buckets"
"""The folder of the volume with the buckets of an object store, if there is one."""
SCRIPT: Final = Path(__file__).parent / "lake.py"
BACKFILL_SECONDS_MAX: Final = 600.0
FINAL: Final = ("Succeeded", "Failed", "Cancelled")
WATCHED: Final = (
    "NAME:.metadata.name,PHASE:.status.phase,PROGRESS:.status.progressText,RATE:.status.ratePerSecond,"
    "IN:.status.records.in,OUT:.status.records.out,FAILED:.status.records.failed,ATTEMPTS:.status.attempts"
)
"""Columns of the demo's watch."""


class Lake:
    """A volume for Parquet in a fleet's namespace, and the pod that reads it.

    On the embedded cluster the volume is a folder of the machine; another cluster's storage class provides it.
    """

    def __init__(self, fleet: FlightFleet, instance: Instance, *, image: str) -> None:
        self._fleet = fleet
        self._instance = instance
        self._image = image

    def make(self) -> None:
        """Create the claim and the pod, and wait for both. May be repeated."""
        fleet, namespace = self._fleet, self._fleet.namespace
        make_volume(fleet, self._instance, CLAIM)
        source = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": POD}}
        source |= {"data": {"lake.py": SCRIPT.read_text()}}
        fleet.cluster.apply([_claim(), source, _pod(self._image)], namespace=namespace)
        fleet.kubectl("wait", "--for=condition=Ready", f"pod/{POD}", "--timeout=300s", timeout_s=320)

    def remove(self) -> None:
        """Remove the volume, which no namespace holds; its folder goes with the cluster."""
        remove_volume(self._fleet, CLAIM)

    def count(self, backfill: Mapping[str, Any]) -> dict[str, Any]:
        """Rows, distinct origins, checksum and slices of what a Backfill has written."""
        return self._read("count", backfill)

    def differences(self, backfill: Mapping[str, Any]) -> dict[str, Any]:
        """The records that differ by a comparison."""
        return self._read("differences", backfill)

    def _read(self, command: str, backfill: Mapping[str, Any]) -> dict[str, Any]:
        sink = backfill["spec"]["sink"]
        folder = (
            sink["table"]["path"].replace("s3a://", f"{BUCKETS}/")
            if "table" in sink
            else f"{sink['parquet']['path']}/{backfill['metadata']['uid']}"
        )
        words = ["exec", POD, "--", "python", "/demo/lake.py", command, f"{MOUNT}/{folder}"]
        answer: dict[str, Any] = self._fleet.kubectl_json(*words, timeout_s=300.0)
        return answer


class Backfills:
    """The Backfills of one fleet."""

    def __init__(self, fleet: FlightFleet) -> None:
        self.fleet = fleet

    def example(self, file: str) -> dict[str, Any]:
        """A Backfill of the example, for this fleet."""
        made: dict[str, Any] = yaml.safe_load((EXAMPLE / file).read_text())
        made["spec"]["groupRef"]["name"] = self.fleet.name
        return made

    def apply(self, backfill: Mapping[str, Any]) -> None:
        self.fleet.cluster.apply([dict(backfill)], namespace=self.fleet.namespace)

    def patch(self, name: str, spec: Mapping[str, Any]) -> None:
        """Change the spec, as `kubectl patch --type=merge`."""
        self.fleet.kubectl("patch", KIND, name, "--type=merge", "--patch", json.dumps({"spec": spec}))

    def get(self, name: str) -> dict[str, Any]:
        """The object; empty if it does not exist."""
        return self.fleet.cluster.get(KIND, name, namespace=self.fleet.namespace) or {}

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(name).get("status") or {}
        return found

    def wait(
        self, name: str, phase: str, *, timeout_s: float = BACKFILL_SECONDS_MAX, show: bool = False
    ) -> dict[str, Any]:
        """Wait for a phase and return the object. Raises WaitedTooLong, at once when it has ended in another."""
        rows = Rows("get", KIND, name, "--output", f"custom-columns={WATCHED}")

        def probe() -> dict[str, Any] | None:
            if show:
                rows.show(self.fleet)
            found = self.get(name)
            status = found.get("status") or {}
            reached = status.get("phase")
            if reached in FINAL and reached != phase:
                raise WaitedTooLong(f"Backfill {name} ended as {status}")
            assert reached == phase, (status.get("progressText"), conditions(found).get("Complete"))
            return found

        return eventually(probe, timeout_s=timeout_s, what=f"Backfill {name} is {phase}", poll_s=0.5)


def is_exact(wanted: Mapping[str, Any], written: Mapping[str, Any]) -> bool:
    """True if Parquet has the expected content, record by record."""
    return bool(written["checksum"] == wanted["checksum"] and written["rows"] == wanted["out"])


def parquet_line(wanted: Mapping[str, Any], written: Mapping[str, Any]) -> str:
    """The demo's line on January: the expected content of Parquet, counted independently, and the actual one."""
    missing, twice = wanted["out"] - written["distinct"], written["rows"] - written["distinct"]
    counts = f"in={wanted['in']} rows={written['rows']} missing={missing} twice={twice}"
    return f"demo, January to Parquet: {counts} checksum={'equal' if is_exact(wanted, written) else 'DIFFERENT'}"


def compared_line(compared: Mapping[str, int]) -> str:
    """The demo's line on the two handlers, from `status.comparison`."""
    only = f"failed in the old only={compared['failedLiveOnly']} in the new only={compared['failedCandidateOnly']}"
    return f"demo, compared: equal={compared['equal']} different={compared['different']} {only}"


def make_volume(fleet: FlightFleet, instance: Instance, claim: str) -> None:
    """The volume for a claim of the fleet's namespace, a folder of the embedded cluster's machine."""
    if foreign_kubeconfig():
        return
    folder = instance.directory / "volumes" / fleet.namespace / claim
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)  # the kubelet sets no group on a folder of its node
    fleet.cluster.apply([_volume(fleet.namespace, claim, folder)], namespace=fleet.namespace)


def remove_volume(fleet: FlightFleet, claim: str) -> None:
    """Remove the volume, which no namespace holds; its folder goes with the cluster."""
    fleet.cluster.kubectl("delete", "pv", f"{fleet.namespace}-{claim}", "--ignore-not-found", "--wait=false")


def _claim() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "2Gi"}}},
    }


def _volume(namespace: str, claim: str, folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{claim}"},
        "spec": {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": claim},
        },
    }


def _pod(image: str) -> dict[str, Any]:
    """A pod of the Spark image that only waits; it meets the restricted pod security standard."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 185,
                "fsGroup": 185,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "lake",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python", "-c", "import signal; signal.pause()"],
                    "volumeMounts": [{"name": "demo", "mountPath": "/demo"}, {"name": "lake", "mountPath": MOUNT}],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
            "volumes": [
                {"name": "demo", "configMap": {"name": POD}},
                {"name": "lake", "persistentVolumeClaim": {"claimName": CLAIM}},
            ],
        },
    }
