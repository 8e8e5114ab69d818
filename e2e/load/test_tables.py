"""Flights to tables of Delta Lake and Iceberg: exact although the handler, the driver and the operator fail meanwhile.

FLEET_FLIGHTS sets the number of flights; 336776 are the whole year, which takes 15 minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from e2e.backfill_scene import BackfillScene, GroupSnapshot, backfill_scene, described_failure
from e2e.cluster import PATIENCE_S, conditions, eventually
from e2e.conftest import Fleets
from e2e.demo.backfill import BACKFILL_SECONDS_MAX, FINAL
from e2e.demo.flights import first_flights
from e2e.install import Installation
from e2e.load.test_backfills import shown, wait_attempt
from e2e.local_cluster.access import foreign_kubeconfig
from e2e.object_store import start_object_store, stored
from e2e.table_image import load_table_image
from tests.support.together import Later

pytestmark = [
    pytest.mark.skipif(foreign_kubeconfig() is not None, reason="the image is built into the embedded cluster"),
    pytest.mark.together("spark"),
]

FLIGHTS = int(os.environ.get("FLEET_FLIGHTS", "40000"))
SLICES = 24
"""Slices of a run: enough to interrupt some."""
BROKEN = """

from fleet_consumer import Skip

_departed = handle
BROKEN_FROM = {broken_from}


def handle(record):
    if BROKEN_FROM is not None and record.offset >= BROKEN_FROM and record.partition == 0:
        raise RuntimeError("broken on purpose")
    if record.value["dep_time"] is None:
        raise Skip("cancelled")
    return _departed(record)
"""


def handler(scene: BackfillScene, broken_from: int | None) -> dict[str, Any]:
    """The example's handler, which skips cancelled flights, and is broken from an offset of partition 0 on."""
    source: dict[str, Any] = scene.fleet.manifests()[0]
    source["data"]["handler.py"] += BROKEN.format(broken_from=broken_from)
    return source


def table(scene: BackfillScene, **given: Any) -> dict[str, Any]:
    """The sink and the image of a Backfill to a table on the scene's volume."""
    volume = {"persistentVolumeClaim": {"claimName": "lake"}}
    return {"sink": {"table": {"volume": volume, **given}}, "spark": {"image": scene.spark_image}}


@contextmanager
def table_scene(installation: Installation, fleets: Fleets) -> Iterator[BackfillScene]:
    flights, _ = first_flights(FLIGHTS)
    with backfill_scene(installation, fleets, "tables", flights=flights) as scene:
        yield replace(scene, spark_image=load_table_image(installation.instance))


@pytest.fixture(scope="session")
def lakehouse_later(installation: Installation, fleets: Fleets) -> Iterator[Later[BackfillScene]]:
    with Later(lambda: table_scene(installation, fleets)) as later:
        yield later


@pytest.fixture
def lakehouse(lakehouse_later: Later[BackfillScene]) -> BackfillScene:
    """A fleet that has handled its flights; its image has the libraries of tables."""
    return lakehouse_later.get()


def test_flights_are_in_a_delta_table_once_though_handler_driver_and_operator_failed(
    installation: Installation, lakehouse: BackfillScene
) -> None:
    with described_failure(lakehouse) as scene:
        fleet = scene.fleet
        ends = fleet.inside("committed", "--topic", fleet.source, "--group", fleet.group_id)
        fleet.deploy(handler(scene, ends["0"] // 3))
        before = GroupSnapshot.of(fleet)
        sized = {"slice": {"maxRecords": max(100, FLIGHTS // SLICES)}}
        wanted = scene.plain("delta", **table(scene, format="Delta", path="delta"), **sized)
        failed = scene.run(wanted, "Failed")
        assert "broken on purpose" in conditions(failed)["Failed"]["message"], failed["status"]
        assert 0 < scene.lake.count(failed)["rows"] < FLIGHTS, "what is before the record is in the table"
        assert GroupSnapshot.of(fleet) == before

        fleet.deploy(handler(scene, None))
        scene.backfills.patch("delta", {"retry": 1})
        done = wait_attempt(scene, "delta", 2)
        scene.wait_slices("delta", done + 1)
        (driver,) = scene.pods("delta", "driver")
        fleet.kubectl("delete", "pod", driver, "--grace-period=0", "--force")
        done = wait_attempt(scene, "delta", 3)
        installation.kill_operator()
        scene.wait_slices("delta", done + 1)
        installation.kill_container(namespace=fleet.namespace, pod=scene.pods("delta", "executor")[0])
        found = scene.backfills.wait("delta", "Succeeded")
        print(shown(found["status"]))
        expected, written = scene.expect(), scene.lake.count(found)
        print(f"expected {expected}, in the table {written}")
        assert (written["rows"], written["distinct"]) == (expected["out"], expected["out"])
        assert written["checksum"] == expected["checksum"]
        records = found["status"]["records"]
        assert (records["in"], records["dropped"]) == (expected["out"], expected["failed"]), records
        # Each commit of the table has one file, not one per task and slice.
        assert written["files"] <= 8, written


def test_flights_are_in_an_iceberg_table_on_s3_whose_executors_come_with_the_work(
    installation: Installation, lakehouse: BackfillScene
) -> None:
    """With dynamic allocation, the web interface and the event log; a sample comes first."""
    with described_failure(lakehouse) as scene:
        start_object_store(installation.instance, scene)
        sink = stored(scene, format="Iceberg", path="iceberg", name="lake.shop.flights")
        sampled = scene.plain("sampled", dryRun=True, **sink)
        sampled["spec"]["range"] = {**sampled["spec"]["range"], "sample": "5%"}
        sampled["spec"]["onError"] = "Skip"
        status = scene.run(sampled)["status"]
        print(shown(status), status["estimate"])
        assert status["sampledFrom"] == FLIGHTS, status
        assert 0.9 * FLIGHTS < status["estimate"]["records"] + status["records"]["dropped"] * 20 <= 1.1 * FLIGHTS, (
            status
        )

        sink["spark"] |= {"dynamicAllocation": {"minExecutors": 1}, "ui": True, "eventLog": True}
        sized = {"slice": {"maxRecords": max(100, FLIGHTS // SLICES)}, "onError": "Skip"}
        scene.backfills.apply(scene.plain("iceberg", **sink, **sized))
        seen = {0}

        def told() -> str:
            status = scene.backfills.status("iceberg")
            assert status.get("sparkUI"), status
            return str(status["sparkUI"])

        assert "port-forward pod/iceberg-1-driver 4040" in eventually(told, timeout_s=PATIENCE_S, what="the interface")

        def ended() -> bool:
            seen.add(len(scene.pods("iceberg", "executor")))
            return scene.backfills.status("iceberg")["phase"] in FINAL

        eventually(ended, timeout_s=BACKFILL_SECONDS_MAX, what="the end of the run")
        found = scene.backfills.wait("iceberg", "Succeeded")
        print(shown(found["status"]), f"executors: up to {max(seen)}")
        expected, written = scene.expect(), scene.lake.count(found)
        assert (written["rows"], written["checksum"]) == (expected["out"], expected["checksum"])
        assert max(seen) == 2, "a second executor came for the tasks that waited"
