"""The fleet of the Backfill suites: months of flights that are handled already, and a volume for Parquet."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.cluster import PATIENCE_S, conditions, eventually
from e2e.conftest import Fleets
from e2e.demo.backfill import FINAL, KIND, Backfills, Lake
from e2e.demo.fleet import FlightFleet
from e2e.install import Installation

YEAR: Final = {"time": {"from": "2013-01-01T00:00:00Z", "to": "2014-01-02T00:00:00Z"}}
"""A range with every flight."""
SPARK_ROLE: Final = "spark-role"
SPARK_APPLICATION: Final = "spark-app-selector"
"""A label with the id of an application, which differs between attempts."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A live group as its users see it; a Backfill must not change any of it."""

    generation: int
    members: tuple[str, ...]
    offsets: Mapping[str, int]
    lag: int

    @classmethod
    def of(cls, fleet: FlightFleet) -> GroupSnapshot:
        status = fleet.group()["status"]
        return cls(
            generation=status["generation"],
            members=tuple(sorted(json.dumps(member, sort_keys=True) for member in status["members"])),
            offsets=fleet.inside("committed", "--topic", fleet.source, "--group", fleet.group_id),
            lag=fleet.lag()["lag"],
        )


@dataclass(frozen=True, slots=True)
class BackfillScene:
    """A fleet without retries whose group has committed everything; its Backfills and their volume."""

    fleet: FlightFleet
    backfills: Backfills
    lake: Lake
    spark_image: str

    def parquet(self, name: str, **spec: Any) -> dict[str, Any]:
        """A Backfill to Parquet that skips failing records."""
        return self.plain(name, sink=parquet(), **{"onError": "Skip", **spec})

    def plain(self, name: str, **spec: Any) -> dict[str, Any]:
        """A Backfill over the whole topic."""
        given = {"groupRef": {"name": self.fleet.name}, "range": YEAR, **spec}
        return {
            "apiVersion": "consumerfleet.io/v1alpha1",
            "kind": "Backfill",
            "metadata": {"name": name},
            "spec": given,
        }

    def run(self, backfill: Mapping[str, Any], phase: str = "Succeeded") -> dict[str, Any]:
        """Apply a Backfill and wait until it has ended in this phase."""
        self.backfills.apply(backfill)
        return self.backfills.wait(backfill["metadata"]["name"], phase)

    def expect(self, *options: str) -> dict[str, Any]:
        """The example's outcomes, computed without the project's code."""
        return self.fleet.inside("expect", "--topic", self.fleet.source, *options)

    def wait_slices(self, name: str, done: int) -> dict[str, Any]:
        """Wait until so many slices are done and more remain."""

        def probe() -> dict[str, Any]:
            status = self.backfills.status(name)
            assert status.get("phase") not in FINAL, status
            assert status.get("slices", {}).get("done", 0) >= done, status
            return status

        return eventually(probe, timeout_s=PATIENCE_S, what=f"{done} slices of {name} are done")

    def pods(self, name: str, role: str) -> list[str]:
        """Names of a Backfill's driver or executor pods that have not ended."""
        return [pod["metadata"]["name"] for pod in self._pods(name, role)]

    def executor(self, name: str) -> str:
        """Wait for an executor of the present attempt with a running container; returns its pod's name.

        Executors of the attempt before may run for a while next to it, because Kubernetes deletes them with their
        driver.
        """

        def probe() -> str:
            (driver,) = self._pods(name, "driver")
            attempt = driver["metadata"]["labels"][SPARK_APPLICATION]
            for pod in self._pods(name, "executor"):
                states = [container["state"] for container in pod["status"].get("containerStatuses", ())]
                if pod["metadata"]["labels"][SPARK_APPLICATION] == attempt and any(
                    "running" in each for each in states
                ):
                    return str(pod["metadata"]["name"])
            return ""

        return eventually(probe, timeout_s=PATIENCE_S, what=f"a running executor of {name}")

    def _pods(self, name: str, role: str) -> list[dict[str, Any]]:
        selector = f"consumerfleet.io/backfill={name},{SPARK_ROLE}={role}"
        found = self.fleet.cluster.list("pods", namespace=self.fleet.namespace, selector=selector)
        return [
            pod
            for pod in found
            if pod["status"].get("phase") not in ("Succeeded", "Failed") and "deletionTimestamp" not in pod["metadata"]
        ]


def parquet() -> dict[str, Any]:
    """The sink on the scene's volume."""
    return {"parquet": {"path": "out", "volume": {"persistentVolumeClaim": {"claimName": "lake"}}}}


@contextmanager
def backfill_scene(
    installation: Installation, fleets: Fleets, name: str, *, flights: bytes = b"", handler: str | None = None
) -> Iterator[BackfillScene]:
    """A fleet in its own namespace that has handled these flights; or one with this handler, and no record yet."""
    installation.install_spark_operator()
    with fleets.named(name) as fleet:
        image = installation.spark_image
        lake = Lake(fleet, installation.instance, image=image)
        backfills = Backfills(fleet)
        try:
            lake.make()
            fleet.cluster.apply(manifests(fleet, handler), namespace=fleet.namespace)
            fleet.wait_stable(members=2)
            if flights:
                fleet.produce(flights)
                fleet.wait_drained()
            with described_failure(BackfillScene(fleet, backfills, lake, image)) as scene:
                yield scene
        finally:
            lake.remove()


def manifests(fleet: FlightFleet, handler: str | None) -> list[dict[str, Any]]:
    """The example's objects, or those with another handler, which gets unparsed records. OUTPUT is its topic."""
    made = fleet.manifests()
    if handler is not None:
        source, group = made[0], made[-1]
        source["data"] = {"handler.py": handler.replace("OUTPUT", fleet.output)}
        del group["spec"]["handler"]["decode"]
    return made


@contextmanager
def described_failure(scene: BackfillScene) -> Iterator[BackfillScene]:
    """Add what the cluster shows of the Backfills to a failure of the block."""
    try:
        yield scene
    except Exception as error:
        error.add_note(described(scene.fleet))
        raise


def described(fleet: FlightFleet) -> str:
    """Backfills, Spark applications and pods of the fleet's namespace, with the last lines of the drivers."""
    parts = []
    for words in (
        ("get", "backfills,sparkapplications,pods", "--output", "wide"),
        ("get", "backfills", "--output", "yaml"),
        ("logs", "--selector", f"{SPARK_ROLE}=driver", "--tail=30", "--prefix", "--ignore-errors"),
        ("logs", "--selector", f"{SPARK_ROLE}=executor", "--tail=15", "--prefix", "--ignore-errors"),
    ):
        try:
            parts.append(fleet.kubectl(*words))
        except Exception as failure:
            parts.append(str(failure))
    return "\n".join(parts)[-20_000:]


class Watch:
    """`kubectl get backfills --watch` in the background: the rows as a user sees them."""

    def __init__(self, fleet: FlightFleet) -> None:
        self._fleet = fleet

    def __enter__(self) -> Watch:
        self._output = tempfile.NamedTemporaryFile(prefix="fleet-watch-", suffix=".txt")
        words = ("--namespace", self._fleet.namespace, "get", KIND, "--watch", "--output", "wide")
        command = self._fleet.cluster.kubectl_command(*words)
        self._process = subprocess.Popen(command, stdout=self._output, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._output.close()

    @property
    def rows(self) -> list[list[str]]:
        """The cells of every row so far, with the header; at least two blanks separate columns."""
        text = Path(self._output.name).read_text()
        return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]

    def wait(self, *cells: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until one row contains all these strings."""

        def probe() -> bool:
            shown = self.rows
            assert any(all(any(cell in each for each in row) for cell in cells) for row in shown), shown[-6:]
            return True

        eventually(probe, timeout_s=timeout_s, what=f"kubectl get backfills --watch shows {cells}")


def message(found: Mapping[str, Any], kind: str = "Failed") -> tuple[str, str]:
    """Reason and message of a condition."""
    entry = conditions(dict(found))[kind]
    return entry["reason"], entry["message"]
