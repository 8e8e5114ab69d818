"""Backfills that cannot be done: each ends, or waits, in the right phase and says why and what to do."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.backfill_scene import BackfillScene, backfill_scene, described_failure, message, parquet
from e2e.cluster import PATIENCE_S, CommandFailed, conditions, eventually
from e2e.conftest import Fleets
from e2e.demo.fleet import handler_config_map
from e2e.install import Installation

pytestmark = pytest.mark.usefixtures("spark")
HOUR = {"last": {"seconds": 3600}}
NONE: dict[str, Any] = {"none": {}}
NO_IMAGE = {"image": "consumer-fleet-spark:nowhere"}
ECHO = """
from fleet_consumer import Produce


def handle(record):
    return Produce("OUTPUT", record.value, key=record.key)
"""
LARGE = 5 * 1024 * 1024
HUNGRY = """
def handle(record):
    return bytearray(2**30).count(1)  # more than an executor's pod may have
"""


@pytest.fixture(scope="module")
def scene(installation: Installation, fleets: Fleets) -> Iterator[BackfillScene]:
    """A fleet whose handler returns each record as it is; Backfills that take a while to fail have begun."""
    with backfill_scene(installation, fleets, "refused", handler=ECHO) as made:
        fleet = made.fleet
        lines = "\n".join(f"record-{number}" for number in range(1200)).encode()
        fleet.inside("write", "--topic", fleet.source, "--keyed", stdin=lines)
        fleet.cluster.apply([handler_config_map("hungry", "handler.py", HUNGRY)], namespace=fleet.namespace)
        for backfill in slow_to_fail(made):
            made.backfills.apply(backfill)
        yield made


def slow_to_fail(scene: BackfillScene) -> list[dict[str, Any]]:
    """Backfills that fail by what their pods do, which takes minutes; so they run side by side."""
    hungry = {"callable": "handler:handle", "configMapRef": {"name": "hungry"}}
    missing = {"callable": "nowhere:handle", "image": scene.spark_image}
    return [
        plain(scene, "hungry", compare=hungry),
        plain(scene, "no-image", spark=NO_IMAGE, deadlines={"startSeconds": 120}),
        plain(scene, "missing", compare=missing, sink=parquet()),
    ]


def plain(scene: BackfillScene, name: str, **spec: Any) -> dict[str, Any]:
    """A Backfill of the last hour without a sink, unless `spec` says otherwise, with one executor."""
    return scene.plain(name, **{"range": HOUR, "sink": NONE, "parallelism": 1, **spec})


def refused(scene: BackfillScene, name: str, **spec: Any) -> tuple[str, str]:
    """Reason and message of a Backfill that ends as Failed, with nothing written and nothing left running.

    Without `spec` it is one that has begun before.
    """
    with described_failure(scene):
        if spec:
            scene.backfills.apply(plain(scene, name, **spec))
        found = scene.backfills.wait(name, "Failed")
        entries = conditions(found)
        assert entries["Complete"]["status"] == "False", entries
        eventually(
            lambda: not scene.pods(name, "driver") + scene.pods(name, "executor"),
            timeout_s=PATIENCE_S,
            what=f"no pod of {name} is left",
        )
        print(f"{name}: {message(found)}")
        return message(found)


def test_range_of_which_retention_has_taken_a_part_is_refused_and_runs_when_that_is_ignored(
    scene: BackfillScene,
) -> None:
    fleet = scene.fleet
    fleet.inside("create-topics", "aged", "--partitions", "1")
    lines = "\n".join(f"aged-{number}" for number in range(50)).encode()
    fleet.inside("write", "--topic", "aged", stdin=lines)
    fleet.inside("delete-records", "--topic", "aged", "--partition", "0", "--before", "20")
    offsets = {"offsets": {"from": {"0": 5}, "to": {"0": 40}}}
    reason, text = refused(scene, "expired", source={"topic": "aged"}, range=offsets)
    assert reason == "RangeExpired", text
    assert "20" in text, text
    reason, text = refused(scene, "expired-time", source={"topic": "aged"}, range=HOUR)
    assert reason == "RangeExpired", text
    ignoring = {**offsets, "expired": "Ignore"}
    found = scene.run(plain(scene, "rest", source={"topic": "aged"}, range=ignoring))
    assert found["status"]["records"]["in"] == 20, found["status"]


def test_topic_that_does_not_exist_is_named(scene: BackfillScene) -> None:
    reason, text = refused(scene, "unknown", source={"topic": "nowhere"})
    assert (reason, "nowhere" in text) == ("SourceTopicNotFound", True), text


def test_time_that_is_none_is_refused_by_the_api_server(scene: BackfillScene) -> None:
    with pytest.raises(CommandFailed, match=r"spec\.range\.time"):
        scene.backfills.apply(scene.plain("bad", range={"time": {"from": "yesterday", "to": "today"}}, sink=NONE))


def test_handler_that_the_image_lacks_ends_before_spark_begins(scene: BackfillScene) -> None:
    reason, text = refused(scene, "missing")
    assert (reason, "nowhere" in text) == ("HandlerImportFailed", True), text


def test_record_larger_than_all_others_is_handled_and_one_that_a_topic_refuses_is_a_failure(
    scene: BackfillScene,
) -> None:
    fleet = scene.fleet
    fleet.inside("create-topics", "large", "--partitions", "1", "--config", f"max.message.bytes={4 * LARGE}")
    large = random.Random(7).randbytes(LARGE // 2).hex().encode()  # a topic's limit is for compressed records
    small = b"\n".join(b"small-%d" % number for number in range(100))
    fleet.inside("write", "--topic", "large", stdin=small + b"\n" + large + b"\n" + small)
    fleet.inside("create-topics", "narrow", "narrow-fail", "--partitions", "1")
    source = {"source": {"topic": "large"}}
    wanted = plain(scene, "large", **source, sink=parquet(), slice={"maxRecords": 10, "maxSeconds": 5})
    scene.backfills.apply(wanted)
    scene.backfills.apply(plain(scene, "narrow-fail", **source, sink={"topic": {"name": "narrow-fail"}}))
    with described_failure(scene):
        found = scene.run(plain(scene, "narrow", **source, onError="Skip", sink={"topic": {"name": "narrow"}}))
        assert found["status"]["records"]["failed"] == 1, found["status"]
        assert len(fleet.inside("read", "--topic", "narrow")["records"]) == 200
        found = scene.backfills.wait("large", "Succeeded")
        assert scene.lake.count(found)["rows"] == 201
    reason, text = refused(scene, "narrow-fail")
    assert (reason, "100" in text) == ("HandlerFailed", True), text


def test_image_that_cannot_be_pulled_ends_at_its_own_deadline(scene: BackfillScene) -> None:
    reason, text = refused(scene, "no-image")
    assert reason in ("ErrImagePull", "ImagePullBackOff"), text
    assert "nowhere" in text, text


def test_pod_that_a_failed_submission_leaves_gives_way_to_the_next_attempt(scene: BackfillScene) -> None:
    """A submission fails after the pod was made if a request of it times out; here somebody writes that it did."""
    fleet = scene.fleet

    def submitted() -> bool:
        found = fleet.cluster.get("sparkapplication", "half-1", namespace=fleet.namespace) or {}
        assert found.get("status", {}).get("applicationState", {}).get("state") == "SUBMITTED", found.get("status")
        return scene.pods("half", "driver") == ["half-1-driver"]

    with described_failure(scene):
        scene.backfills.apply(plain(scene, "half", spark=NO_IMAGE))
        eventually(submitted, timeout_s=PATIENCE_S, what="the driver waits for its image")
        log = "failed to submit spark application: spark-submit:\nCaused by: java.util.concurrent.TimeoutException\n"
        state = {"status": {"applicationState": {"state": "FAILED", "errorMessage": log}}}
        fleet.kubectl(
            *("patch", "sparkapplication", "half-1", "--subresource=status", "--type=merge"),
            *("--patch", json.dumps(state)),
        )
        eventually(lambda: scene.pods("half", "driver") == ["half-2-driver"], timeout_s=PATIENCE_S, what="another one")
        ended = scene.backfills.status("half")["lastEnded"]
        assert (ended["attempt"], ended["reason"]) == (1, "SubmissionFailed"), ended
        assert ended["message"] == "spark-submit failed: java.util.concurrent.TimeoutException"
        fleet.kubectl("delete", "backfill", "half", "--wait=false")


def test_too_little_memory_is_named(scene: BackfillScene) -> None:
    """The heap by the API server; that of Python's processes when an executor is killed for it."""
    with pytest.raises(CommandFailed, match=r"spec\.spark\.driver\.memory.*at least 466m"):
        scene.backfills.apply(scene.plain("small", range=HOUR, sink=NONE, spark={"driver": {"memory": "300m"}}))
    reason, text = refused(scene, "hungry")
    assert (reason, "memory" in text) == ("ExecutorLost", True), text


def test_backfill_waits_for_the_spark_operator_and_runs_once_it_is_there(
    scene: BackfillScene, installation: Installation
) -> None:
    installation.remove_spark_operator()
    try:
        scene.backfills.apply(plain(scene, "patient"))

        def waits() -> bool:
            found = scene.backfills.get("patient")
            entry = conditions(found).get("SparkAvailable", {})
            phase = found.get("status", {}).get("phase")
            assert (phase, entry.get("status")) == ("Pending", "False"), found
            assert "install the kubeflow Spark operator" in entry["message"], entry
            return True

        with described_failure(scene):
            eventually(waits, timeout_s=PATIENCE_S, what="the Backfill waits for the Spark operator")
            assert conditions(scene.fleet.group())["Ready"]["status"] == "True"
    finally:
        installation.install_spark_operator()
    with described_failure(scene):
        assert scene.backfills.wait("patient", "Succeeded")["status"]["records"]["in"] >= 1200


def test_deleted_backfill_leaves_no_pod_and_no_application(scene: BackfillScene) -> None:
    fleet = scene.fleet
    with described_failure(scene):
        scene.backfills.apply(plain(scene, "cancelled", rate={"recordsPerSecond": 20}, slice={"maxSeconds": 5}))
        scene.wait_slices("cancelled", 1)
        fleet.kubectl("delete", "backfill", "cancelled", "--wait=false")
        selector = "consumerfleet.io/backfill=cancelled"

        def gone() -> bool:
            for kind in ("pods", "sparkapplications", "configmaps", "serviceaccounts", "rolebindings", "roles"):
                left = fleet.cluster.list(kind, namespace=fleet.namespace, selector=selector)
                assert not left, (kind, [each["metadata"]["name"] for each in left])
            return True

        eventually(gone, timeout_s=PATIENCE_S, what="everything of the Backfill is gone")
