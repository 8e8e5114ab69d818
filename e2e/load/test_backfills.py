"""Backfills of three months on the real Spark operator: exact, and without effect on a live group."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from e2e.backfill_scene import (
    SPARK_ROLE,
    BackfillScene,
    GroupSnapshot,
    Watch,
    backfill_scene,
    described_failure,
    manifests,
    message,
    parquet,
)
from e2e.cluster import PATIENCE_S, conditions, eventually
from e2e.conftest import Fleets
from e2e.demo.fleet import EXAMPLE, handler_config_map
from e2e.demo.flights import first_flights
from e2e.install import Installation
from tests.support.together import Later

FLIGHTS = 83_161
"""Flights of January, October and November, the first in the data. The demo has the whole year."""
SLICE = 5_000
MENDED = "flights-handler-fixed"
MONTH_SLICE = 2_000
LATE_SECONDS = 86_400
MONTH_ENDS_MS = 1_359_676_800_000
MONTH = {"time": {"from": "2013-01-01T00:00:00Z", "to": "2013-02-01T00:00:00Z", "lateSeconds": LATE_SECONDS}}
"""The first month of the data, for tests that do not need three: Spark's records cost this suite most."""


def shown(status: dict[str, Any]) -> str:
    """The figures of a Backfill for the test's output."""
    names = ("phase", "progressText", "slices", "records", "ratePerSecond", "attempts", "startedAt", "finishedAt")
    return ", ".join(f"{name}={status.get(name)}" for name in names)


@pytest.fixture(scope="session")
def flights_later(installation: Installation, fleets: Fleets) -> Iterator[Later[BackfillScene]]:
    flights, _ = first_flights(FLIGHTS)
    with Later(lambda: backfill_scene(installation, fleets, "months", flights=flights)) as later:
        yield later


@pytest.fixture
def months(flights_later: Later[BackfillScene]) -> BackfillScene:
    """A fleet that has handled three months."""
    return flights_later.get()


@pytest.mark.together("spark")
def test_slices_equal_an_independent_count_and_leave_the_live_group_alone(months: BackfillScene) -> None:
    _, cancelled = first_flights(FLIGHTS)
    with described_failure(months) as scene:
        before = GroupSnapshot.of(scene.fleet)
        found = scene.run(scene.parquet("months", slice={"maxRecords": SLICE, "maxSeconds": 60}))
        status = found["status"]
        print(shown(status))
        wanted, written = scene.expect(), scene.lake.count(found)
        assert (wanted["in"], wanted["out"], wanted["failed"]) == (FLIGHTS, FLIGHTS - cancelled, cancelled)
        assert (written["rows"], written["distinct"]) == (wanted["out"], wanted["out"])
        assert written["checksum"] == wanted["checksum"]
        assert status["slices"]["done"] >= FLIGHTS // SLICE, status
        assert status["records"]["in"] == FLIGHTS, status
        assert status["records"]["out"] == FLIGHTS - cancelled, status
        assert status["records"]["failed"] == cancelled, status
        assert (status["offsetsCovered"], status["offsetsTotal"]) == (FLIGHTS, FLIGHTS)
        assert status["attempts"] == 1, status
        assert GroupSnapshot.of(scene.fleet) == before
        assert scene.fleet.count().line() == f"demo: in={FLIGHTS} done={FLIGHTS - cancelled} failed={cancelled} " + (
            "lost=0 duplicated=0"
        ), "nothing was written to the live outputs"


@pytest.mark.together("spark")
def test_two_handlers_over_a_month_are_compared_record_by_record(months: BackfillScene) -> None:
    """The example's two handlers: equal except for an ignored field, or the old one fails; then with that field."""
    with described_failure(months) as scene:
        before, counted = GroupSnapshot.of(scene.fleet), scene.fleet.count()
        compare(scene)
        assert GroupSnapshot.of(scene.fleet) == before
        assert scene.fleet.count() == counted, "neither handler wrote to the live outputs"


def compare(scene: BackfillScene) -> None:
    fixed = scene.fleet.handler_source(EXAMPLE / "fixed" / "handler.py")
    fixed["metadata"]["name"] = MENDED
    scene.fleet.cluster.apply([fixed], namespace=scene.fleet.namespace)
    candidate = {"callable": "handler:handle", "configMapRef": {"name": MENDED}}
    ignoring = {**candidate, "ignoreFields": ["cancelled"]}
    found = scene.run(scene.plain("fixed", range=MONTH, sink=parquet(), compare=ignoring))
    wanted = scene.expect("--to-ms", str(MONTH_ENDS_MS))
    outcome = found["status"]["comparison"]
    print(shown(found["status"]), outcome)
    counts = {name: outcome[name] for name in ("equal", "different", "failedLiveOnly", "failedCandidateOnly")}
    assert counts == {
        "equal": wanted["out"],
        "different": 0,
        "failedLiveOnly": wanted["failed"],
        "failedCandidateOnly": 0,
    }
    assert len(outcome["samples"]) == 10
    assert "cancelled" in outcome["samples"][0]["live"], outcome["samples"][0]
    assert scene.lake.differences(found)["distinct"] == wanted["failed"]

    january = {"time": {"from": "2013-01-01T00:00:00Z", "to": "2013-01-03T00:00:00Z", "lateSeconds": LATE_SECONDS}}
    found = scene.run(scene.plain("field", range=january, sink=parquet(), compare=candidate))
    outcome = found["status"]["comparison"]
    wanted = scene.expect("--to-ms", "1357171200000")
    assert (outcome["equal"], outcome["different"]) == (0, wanted["out"]), outcome
    assert outcome["failedLiveOnly"] == wanted["failed"], outcome
    differing = [sample for sample in outcome["samples"] if "Error" not in sample["live"]]
    assert differing, outcome
    assert "cancelled" in differing[0]["candidate"], differing[0]
    assert "cancelled" not in differing[0]["live"], differing[0]
    assert scene.lake.differences(found)["rows"] == wanted["in"]


@pytest.mark.together("spark")
def test_deaths_cost_an_attempt_and_never_a_record(installation: Installation, months: BackfillScene) -> None:
    """Driver deleted, driver gone by force, an executor killed: Parquet stays exact."""
    with described_failure(months) as scene:
        fleet = scene.fleet
        # At full speed the rest of the month could be done before the third death.
        paced = {"rate": {"recordsPerSecond": 500}, "slice": {"maxRecords": MONTH_SLICE, "maxSeconds": 60}}
        scene.backfills.apply(scene.parquet("exact", range=MONTH, **paced))
        scene.wait_slices("exact", 1)
        (driver,) = scene.pods("exact", "driver")
        fleet.kubectl("delete", "pod", driver, "--wait=false")
        done = wait_attempt(scene, "exact", 2)
        scene.wait_slices("exact", done + 1)
        (driver,) = scene.pods("exact", "driver")
        fleet.kubectl("delete", "pod", driver, "--grace-period=0", "--force")
        done = wait_attempt(scene, "exact", 3)
        scene.wait_slices("exact", done + 1)
        installation.kill_container(namespace=fleet.namespace, pod=scene.executor("exact"))
        found = scene.backfills.wait("exact", "Succeeded")
        print(shown(found["status"]))
        wanted, written = scene.expect("--to-ms", str(MONTH_ENDS_MS)), scene.lake.count(found)
        assert (written["rows"], written["checksum"]) == (wanted["out"], wanted["checksum"])
        assert found["status"]["attempts"] >= 3, found["status"]
        assert found["status"]["records"]["in"] == wanted["in"], found["status"]


@pytest.mark.together("spark")
def test_drained_node_lets_the_task_in_hand_end(months: BackfillScene) -> None:
    """`kubectl drain` ends an executor; no part of its task is repeated, and another executor goes on."""
    with described_failure(months) as scene:
        fleet, days = scene.fleet, {"time": {**MONTH["time"], "to": "2013-01-04T00:00:00Z"}}
        paced = {"rate": {"recordsPerSecond": 40}, "slice": {"maxRecords": 400, "maxSeconds": 10}, "parallelism": 1}
        scene.backfills.apply(scene.parquet("drained", range=days, **paced))
        scene.wait_slices("drained", 1)
        (executor,) = scene.pods("drained", "executor")
        node = fleet.kubectl_json("get", "pod", executor, "--output=json")["spec"]["nodeName"]
        only = f"--pod-selector={SPARK_ROLE}=executor,consumerfleet.io/backfill=drained"
        try:
            print(fleet.kubectl("drain", node, only, "--force", "--ignore-daemonsets", "--delete-emptydir-data"))
        finally:
            fleet.kubectl("uncordon", node)
        found = scene.backfills.wait("drained", "Succeeded")
        print(shown(found["status"]))
        wanted, written = scene.expect("--to-ms", "1357257600000"), scene.lake.count(found)
        assert (written["rows"], written["checksum"]) == (wanted["out"], wanted["checksum"])
        assert (found["status"]["attempts"], found["status"].get("repeatedTasks", 0)) == (1, 0), found["status"]
        assert executor not in scene.pods("drained", "executor")


def wait_attempt(scene: BackfillScene, name: str, attempt: int) -> int:
    """Wait until an attempt is under way; returns the slices done by then."""

    def probe() -> dict[str, Any]:
        status = scene.backfills.status(name)
        assert status.get("attempts", 0) >= attempt, status
        return status

    found = eventually(probe, timeout_s=PATIENCE_S, what=f"attempt {attempt} of {name}")
    return int(found["slices"]["done"])


SLOW = """
import time

pause = 0.0


def setup(context):
    global pause
    pause = 0.01 if context.purpose == "backfill" else 0.0


def handle(record):
    time.sleep(pause)
"""
"""A handler that is slow only in a Backfill, which then runs for minutes; the live group does not fall behind."""
PARTITIONS = [0, 1, 2]
"""A quarter of the partitions: each is a task, and the cost of a task itself does not depend on the rate."""


@pytest.mark.together("spark")
def test_orders_reach_a_running_backfill_within_a_slice(installation: Installation, fleets: Fleets) -> None:
    """Suspend, resume, another rate, a guard that trips and is released, a dry run: seen with `kubectl get -w`.

    Control is read between slices, so the test counts slices; on a busy machine control and status are a slice late.
    """
    seconds = 10
    with backfill_scene(installation, fleets, "orders", handler=SLOW) as scene:
        fleet, backfills = scene.fleet, scene.backfills
        write(scene, 24_000)
        fleet.wait_drained()
        ends = fleet.inside("committed", "--topic", fleet.source, "--group", fleet.group_id)
        total = sum(ends[str(partition)] for partition in PARTITIONS)
        with Watch(fleet) as watch:
            ranged = {"range": {"last": {"seconds": 3600}}, "source": {"partitions": PARTITIONS}}
            dry = scene.run(scene.plain("dry", **ranged, sink={"none": {}}, dryRun=True))
            assert dry["status"]["offsetsTotal"] == total, dry["status"]
            assert "applicationName" not in dry["status"], dry["status"]
            watch.wait("dry", "Succeeded")

            backfills.apply(
                scene.plain(
                    "slow",
                    **ranged,
                    sink={"none": {}},
                    parallelism=1,
                    slice={"maxRecords": 100_000, "maxSeconds": seconds},
                    rate={"recordsPerSecond": 10},
                    guard={"maxLiveBehindSeconds": 20},
                )
            )
            scene.wait_slices("slow", 1)
            watch.wait("slow", "Running", "Rate")
            assert scene.wait_slices("slow", 2)["ratePerSecond"] <= 11

            backfills.patch("slow", {"rate": {"recordsPerSecond": 40}})
            ordered = done(scene)
            faster = took(lambda: backfills.status("slow").get("ratePerSecond", 0) > 15, "another rate")
            assert done(scene) - ordered <= 4, "one at the old rate and one at the new"
            backfills.patch("slow", {"suspend": True})
            ordered = done(scene)
            paused = took(lambda: backfills.status("slow")["phase"] == "Paused", "the pause")
            watch.wait("slow", "Paused")
            assert done(scene) - ordered <= 3, "the one under way"
            # The Spark operator uses the container's state, and the container ends a moment before its pod.
            eventually(lambda: scene.pods("slow", "driver") == [], timeout_s=PATIENCE_S, what="the driver has ended")
            covered = backfills.status("slow")["offsetsCovered"]
            backfills.patch("slow", {"suspend": False})
            resumed = took(lambda: backfills.status("slow")["offsetsCovered"] > covered, "the resumption")

            fleet.kubectl("patch", "kcg", fleet.name, "--type=merge", "--patch", '{"spec": {"replicas": 0}}')
            write(scene, 100)
            watch.wait("slow", "Guard")
            tripped = backfills.status("slow")
            assert tripped["throttledBy"] == "Guard", tripped
            fleet.kubectl("patch", "kcg", fleet.name, "--type=merge", "--patch", '{"spec": {"replicas": 2}}')
            released = took(lambda: backfills.status("slow").get("throttledBy") != "Guard", "the release")
            backfills.patch("slow", {"rate": {"recordsPerSecond": 2000}})
            found = backfills.wait("slow", "Succeeded")
            print(f"rate {faster:.0f} s, pause {paused:.0f} s, resumed {resumed:.0f} s, released {released:.0f} s")
            assert found["status"]["records"]["in"] == total, found["status"]


def done(scene: BackfillScene) -> int:
    """The present number of done slices in the status."""
    return int(scene.backfills.status("slow")["slices"]["done"])


def took(condition: Any, what: str) -> float:
    """Seconds until a condition holds."""
    started = time.monotonic()
    eventually(condition, timeout_s=PATIENCE_S, what=what)
    return time.monotonic() - started


def write(scene: BackfillScene, count: int) -> None:
    """Write records with keys, so that they are in all partitions."""
    lines = "\n".join(f"record-{number}" for number in range(count))
    scene.fleet.inside("write", "--topic", scene.fleet.source, "--keyed", stdin=lines.encode())


FAILING = """
from fleet_consumer import Produce


def handle(record):
    number = int(record.value.decode().rpartition("-")[2])
    if number % 100 == 0:
        raise ValueError(f"{number} is a round number")
    return Produce("OUTPUT", record.value, key=record.key)
"""


HUNGRY = """
def handle(record):
    return bytearray(2**30).count(1)  # more than an executor's pod may have
"""


@contextmanager
def flawed_scene(installation: Installation, fleets: Fleets) -> Iterator[BackfillScene]:
    with backfill_scene(installation, fleets, "flawed", handler=FAILING) as scene:
        scene.fleet.cluster.apply([handler_config_map("hungry", "handler.py", HUNGRY)], namespace=scene.fleet.namespace)
        write(scene, 3000)
        scene.fleet.wait_drained()
        yield scene


@pytest.fixture(scope="session")
def flawed_later(installation: Installation, fleets: Fleets) -> Iterator[Later[BackfillScene]]:
    with Later(lambda: flawed_scene(installation, fleets)) as later:
        yield later


@pytest.fixture
def flawed(flawed_later: Later[BackfillScene]) -> BackfillScene:
    """A fleet whose handler fails for one record in a hundred, all of them handled."""
    return flawed_later.get()


@pytest.mark.together("spark")
def test_handler_that_fails_for_one_record_in_a_hundred_ends_as_on_error_says(flawed: BackfillScene) -> None:
    with described_failure(flawed) as scene:
        fleet = scene.fleet
        ranged = {"last": {"seconds": 3600}}
        failed = scene.run(scene.plain("fail", range=ranged, sink=parquet()), "Failed")
        entry = conditions(failed)["Failed"]
        assert entry["reason"] == "HandlerFailed", entry
        assert "ValueError" in entry["message"], entry
        assert "partition" in entry["message"], entry
        # Output before such a record stays, and there is nothing else.
        records, written = failed["status"]["records"], scene.lake.count(failed)
        assert (written["rows"], written["distinct"]) == (records["out"], records["out"])
        assert records["failed"] == 0, records
        left = sum(each["to"] - each["from"] for each in failed["status"]["remaining"])
        assert 0 < left == 3000 - failed["status"]["offsetsCovered"], failed["status"]

        found = scene.run(scene.plain("skip", range=ranged, onError="Skip", sink=parquet()))
        records = found["status"]["records"]
        assert (records["in"], records["out"], records["failed"]) == (3000, 2970, 30), records
        assert scene.lake.count(found)["rows"] == 2970

        before = len(fleet.inside("read", "--topic", fleet.failed)["records"])
        found = scene.run(scene.plain("dead", range=ranged, onError="FailedTopic", sink={"none": {}}))
        uid = found["metadata"]["uid"]
        dead = [
            each
            for each in fleet.inside("read", "--topic", fleet.failed)["records"]
            if each["headers"].get("kr-backfill-id") == uid
        ]
        assert (before, len(dead)) == (30, 30)
        assert Counter(each["headers"]["kr-reason"] for each in dead) == {"manual": 30}


@pytest.mark.together("spark")
def test_failed_backfill_goes_on_with_the_fixed_handler(installation: Installation, fleets: Fleets) -> None:
    """Nothing is handled twice, and the corrected handler's output for the failed record is there."""
    with backfill_scene(installation, fleets, "continued", handler=FAILING) as scene:
        fleet = scene.fleet
        write(scene, 1200)
        fleet.wait_drained()
        wanted = scene.plain("again", range={"last": {"seconds": 3600}}, sink=parquet(), slice={"maxRecords": 400})
        failed = scene.run(wanted, "Failed")["status"]
        assert 0 < failed["records"]["out"] < 1200, failed
        (source, *_) = manifests(fleet, FAILING.replace("number % 100 == 0", "number < 0"))
        fleet.deploy(source)
        scene.backfills.patch("again", {"retry": 1})
        goes_on = lambda: scene.backfills.status("again")["phase"] != "Failed"  # noqa: E731
        eventually(goes_on, what="it goes on", timeout_s=PATIENCE_S)
        found = scene.backfills.wait("again", "Succeeded")
        status, written = found["status"], scene.lake.count(found)
        print(shown(status))
        assert (written["rows"], written["distinct"]) == (1200, 1200)
        assert (status["records"]["in"], status["records"]["failed"]) == (1200, 0), status
        assert (status["attempts"], status["retries"]) == (2, 1), status
        assert "remaining" not in status, status


@pytest.mark.together("spark")
def test_executor_that_is_killed_for_its_memory_is_named_and_leaves_no_pod(flawed: BackfillScene) -> None:
    with described_failure(flawed) as scene:
        candidate = {"callable": "handler:handle", "configMapRef": {"name": "hungry"}}
        ranged = {"last": {"seconds": 3600}}
        wanted = scene.plain("hungry", range=ranged, sink={"none": {}}, parallelism=1, compare=candidate)
        found = scene.run(wanted, "Failed")
        reason, text = message(found)
        # The kernel kills the handler's process, or the executor's whole container.
        assert reason in ("HandlerProcessDied", "ExecutorLost"), text
        assert "memoryOverhead" in text, text
        assert conditions(found)["Complete"]["status"] == "False", found["status"]
        eventually(
            lambda: not scene.pods("hungry", "driver") + scene.pods("hungry", "executor"),
            timeout_s=PATIENCE_S,
            what="no pod is left",
        )


@pytest.mark.together("spark")
def test_deleted_backfill_leaves_no_pod_and_no_application(flawed: BackfillScene) -> None:
    with described_failure(flawed) as scene:
        fleet = scene.fleet
        slowly = {"rate": {"recordsPerSecond": 20}, "slice": {"maxSeconds": 5}, "onError": "Skip"}
        scene.backfills.apply(
            scene.plain("cancelled", range={"last": {"seconds": 3600}}, sink={"none": {}}, parallelism=1, **slowly)
        )
        scene.wait_slices("cancelled", 1)
        fleet.kubectl("delete", "backfill", "cancelled", "--wait=false")
        selector = "consumerfleet.io/backfill=cancelled"

        def gone() -> bool:
            for kind in ("pods", "sparkapplications", "configmaps", "serviceaccounts", "rolebindings", "roles"):
                left = fleet.cluster.list(kind, namespace=fleet.namespace, selector=selector)
                assert not left, (kind, [each["metadata"]["name"] for each in left])
            return True

        eventually(gone, timeout_s=PATIENCE_S, what="everything of the Backfill is gone")
