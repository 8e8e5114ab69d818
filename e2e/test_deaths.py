"""A record that kills its worker's container ends in the failed topic; all others are handled meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pytest

from e2e.cluster import PATIENCE_S, eventually
from e2e.conftest import Fleets
from e2e.demo.fleet import FlightFleet

RECORDS: Final = 600
CULPRIT: Final = "300"
DEATHS_S: Final = 600
"""The kubelet waits 10, 20, 40, 80 seconds between restarts, and five deaths may be needed."""

HANDLER: Final = """
import ctypes

from fleet_consumer import Produce


def segfault():
    ctypes.string_at(0)


def exhaust_memory():
    taken = []
    while True:
        taken.append(bytearray(b"x" * (1 << 20)))


def handle(record):
    if record.value == b"CULPRIT":
        DEATH()
    return Produce("OUTPUT", record.value)
"""


@dataclass(frozen=True)
class Death:
    """A kind of crash, and the container's last state afterwards."""

    name: str
    function: str
    exit_code: int
    reason: str


DEATHS: Final = (
    Death("segfaults", "segfault", 139, "Error"),
    Death("memory-limit", "exhaust_memory", 137, "OOMKilled"),
)


def manifests(fleet: FlightFleet, death: Death) -> list[dict[str, Any]]:
    """The example's group of two workers, with a handler that dies."""
    handler, kafka, group = fleet.manifests()
    source = HANDLER.replace("CULPRIT", CULPRIT).replace("DEATH", death.function).replace("OUTPUT", fleet.output)
    handler["data"] = {"handler.py": source}
    del group["spec"]["handler"]["decode"]
    group["spec"]["consumer"] = {"commitIntervalSeconds": 1}
    (worker,) = group["spec"]["template"]["spec"]["containers"]
    worker["resources"]["limits"] = {"memory": "256Mi"}
    return [handler, kafka, group]


def deaths_of(fleet: FlightFleet) -> list[tuple[int, str]]:
    """Exit code and reason of each worker's last death, repeated for each restart."""
    pods = fleet.cluster.list("pods", namespace=fleet.namespace, selector=f"consumerfleet.io/group={fleet.name}")
    found = []
    for pod in pods:
        for container in pod["status"].get("containerStatuses", ()):
            ended = container["lastState"].get("terminated")
            if ended is not None:
                found += [(ended["exitCode"], ended["reason"])] * container["restartCount"]
    return found


@pytest.mark.together
@pytest.mark.parametrize("death", DEATHS, ids=[death.name for death in DEATHS])
def test_one_of_600_records_kills_its_container_and_all_others_are_done(fleets: Fleets, death: Death) -> None:
    values = [str(number) for number in range(RECORDS)]
    with fleets.named(death.name) as fleet:
        fleet.cluster.apply(manifests(fleet, death), namespace=fleet.namespace)
        fleet.wait_stable(members=2)
        fleet.inside("write", "--topic", fleet.source, "--keyed", stdin="\n".join(values).encode())
        records = fleet.inside("read", "--topic", fleet.source)["records"]
        partitions = {each["value"]: each["place"].partition("-")[0] for each in records}
        elsewhere = {value for value in values if partitions[value] != partitions[CULPRIT]}
        assert len(set(partitions.values())) > 2, "the records are spread over partitions of both workers"

        def others_flow() -> bool:
            done = set(fleet.inside("read", "--topic", fleet.output)["values"])
            assert done >= elsewhere, f"missing elsewhere: {sorted(elsewhere - done)[:10]}"
            assert fleet.inside("read", "--topic", fleet.failed)["values"] == [], "the culprit has been given up before"
            return True

        eventually(others_flow, timeout_s=DEATHS_S, what="the other partitions to flow while it kills", poll_s=1.0)

        def given_up() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = fleet.inside("read", "--topic", fleet.failed)["records"]
            return found

        (failed,) = eventually(given_up, timeout_s=DEATHS_S, what="the culprit to be given up", poll_s=2.0)
        assert failed["value"] == CULPRIT
        assert failed["headers"]["kr-reason"] == "poison"
        eventually(lambda: fleet.lag()["lag"] == 0, timeout_s=PATIENCE_S, what="all to be committed", poll_s=1.0)
        assert set(fleet.inside("read", "--topic", fleet.output)["values"]) == set(values) - {CULPRIT}
        assert len(fleet.inside("read", "--topic", fleet.failed)["values"]) == 1
        deaths = deaths_of(fleet)
        assert set(deaths) == {(death.exit_code, death.reason)}
        assert 3 <= len(deaths) <= 6
