"""Scaled groups of real workers: load steps, skew, pauses, sleep, departed static members, foreign members, an HPA."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import PATIENCE_S, eventually
from e2e.described import described_failure
from e2e.install import Installation
from e2e.scaling.metrics_adapter import METRIC, adapter_objects
from e2e.scaling.scene import SKEWED, ScalingScene

BASE_RATE = 9.0
STEP = 4
PER_RECORD_S = 0.08
"""Seconds per record: a worker handles less than 12.5 records a second, so a step needs all six workers of the six
partitions. A busy machine adds little to each record. The benchmark's step is larger: bench/scaling.py."""
CATCH_UP_S = 90
"""The default of `catchUpSeconds`."""
REACTION_S = 45.0
"""Time from a load step to records of the workers that it needs: two polls of workers that are behind, the start of
pods, and the join. The benchmark's goal is 25 s, on an otherwise idle machine."""
SKEWED_RATE = 30.0
TOLERANCE = 1.1
"""The status shows two digits of the number of workers that a load needs, and partitions are not divisible."""
SKEWED_PATIENCE_S = 200.0
BACK_S = 45.0
"""Time for which a lag must stay low: longer than its rise after a step."""
WITHOUT_SCALING = json.dumps([{"op": "remove", "path": "/spec/scaling"}])
HEARTBEAT_S = 3.0
WAKE_S = 15.0
LATE_S = 5.0


@contextmanager
def scene(installation: Installation, name: str, **options: Any) -> Iterator[ScalingScene]:
    made = ScalingScene(installation, name, **options)
    try:
        with described_failure(made.tools):
            yield made
    finally:
        made.remove()


@pytest.mark.together("load")
def test_load_step_is_at_most_two_rebalances_each_way_and_its_backlog_is_gone_in_time(
    installation: Installation,
) -> None:
    with scene(installation, "load-steps", partitions=6) as group:
        group.make(scaling={"scaleDownStabilizationSeconds": 60}, per_record_s=PER_RECORD_S)
        group.wait_members(1)
        with group.load() as load:
            begun = load.rate(BASE_RATE)
            load.wait(30.0)
            more = load.rate(STEP * BASE_RATE)
            eventually(lambda: group.status()["targetReplicas"] >= 3, timeout_s=PATIENCE_S, what="growth", poll_s=1.0)
            print(json.dumps(group.status()["scaling"]["lastStep"]))
            load.wait(REACTION_S + CATCH_UP_S - (load.now() - more))
            drained = load.samples.drained_at(more, lag=10 * STEP * BASE_RATE)
            fewer = load.rate(BASE_RATE)
            eventually(lambda: group.status()["targetReplicas"] <= 2, timeout_s=PATIENCE_S, what="fewer", poll_s=1.0)
            group.wait_members(group.status()["targetReplicas"])
            times = (begun, more, fewer, load.now())
            episodes = [load.samples.episodes(*between) for between in pairwise(times)]
            print("episodes", episodes, "drained after", drained and drained - more, group.status()["scaling"])
        assert episodes[0] == 0
        assert max(episodes) <= 2
        assert drained is not None
        assert drained - more <= REACTION_S + CATCH_UP_S


def put_under_skewed_load(group: ScalingScene, assignor: str) -> tuple[int, int]:
    """Put the skewed load on a fleet of one worker, and wait until its lag is low again and stays so.

    Returns the number of workers, which only grows within this time, and the greatest number that the load needed on
    average. That number depends on the measured capacity of a worker, and so on the machine.
    """
    needed: list[float] = []
    consumer = {"commitIntervalSeconds": 2, "maxPollRecords": 50, "classic": {"assignors": [assignor]}}
    # With time to catch up, the number of workers follows the arrival rate, however late the first ones were.
    group.make(scaling={"maxReplicas": 12, "catchUpSeconds": 180}, per_record_s=PER_RECORD_S, consumer=consumer)
    group.wait_members(1)
    with group.load(shares=SKEWED) as load:
        load.rate(SKEWED_RATE / 6)
        load.wait(60.0)  # a member knows the rates of its partitions after half a minute
        stepped = load.rate(SKEWED_RATE)

        def stays_back() -> bool:
            needed.append(float(group.status()["scaling"].get("rawReplicas", 0.0)))
            back = load.samples.drained_at(stepped, lag=10 * SKEWED_RATE)
            assert back is not None, f"lag {load.lag()}: {group.status()['scaling']}"
            return load.now() - back >= BACK_S

        eventually(stays_back, timeout_s=SKEWED_PATIENCE_S, what="the lag is back and stays so", poll_s=1.0)
    status = group.status()
    average = math.ceil(TOLERANCE * max(needed))
    print(assignor, status["targetReplicas"], "average", average, json.dumps(status["scaling"]))
    return int(status["targetReplicas"]), average


@pytest.mark.together("load")
def test_lag_of_a_skewed_topic_is_bounded_where_partitions_are_dealt_by_number(installation: Installation) -> None:
    """On average each of four workers has enough capacity, but one of them owns all busy partitions."""
    with scene(installation, "skewed", partitions=len(SKEWED)) as group:
        put_under_skewed_load(group, "cooperative-sticky")


@pytest.mark.together("load")
def test_skewed_topic_takes_no_more_workers_than_its_average_where_partitions_are_dealt_by_load(
    installation: Installation,
) -> None:
    with scene(installation, "weighted", partitions=len(SKEWED)) as group:
        workers, average = put_under_skewed_load(group, "cooperative-weighted")
        assert workers <= average


def with_proposal(group: ScalingScene, *, above: int) -> dict[str, Any] | None:
    """The status once it proposes more workers than that."""
    status = group.status()
    return status if status["scaling"].get("proposedReplicas", 0) > above else None


def more_workers(group: ScalingScene, *, than: int) -> int | None:
    target = int(group.status()["targetReplicas"])
    return target if target > than else None


@pytest.mark.together("load")
def test_fleet_keeps_its_workers_while_it_is_paused_and_once_it_is_scaled_no_more(installation: Installation) -> None:
    with scene(installation, "kept", partitions=6) as group:
        group.make(scaling={}, per_record_s=PER_RECORD_S)
        group.wait_members(1)
        with group.load() as load:
            load.rate(2 * BASE_RATE)
            eventually(lambda: group.status()["targetReplicas"] > 1, timeout_s=PATIENCE_S, what="growth", poll_s=1.0)
            group.patch({"scaling": {"paused": True}})
            kept = int(group.wait_status(limit="Paused")["targetReplicas"])
            load.rate(STEP * BASE_RATE)
            # Before the rise the load needs two or three.
            status = eventually(lambda: with_proposal(group, above=3), timeout_s=PATIENCE_S, what="a proposal")
            assert (status["targetReplicas"], status["limit"]) == (kept, "Paused")
            assert group.conditions()["ScalingActive"] == ("False", "Paused")
            group.wait_members(kept)
            group.patch({"scaling": {"paused": False}})
            grown = eventually(lambda: more_workers(group, than=kept), timeout_s=PATIENCE_S, what="growth without it")
            load.rate(0.0)
            group.kubectl("patch", "kcg", group.name, "--type=json", "--patch", WITHOUT_SCALING)
            eventually(
                lambda: group.conditions()["ScalingActive"] == ("False", "FixedReplicas"),
                timeout_s=PATIENCE_S,
                what="a fleet of a fixed size",
                poll_s=1.0,
            )
            left = group.wait_members(int(group.status()["targetReplicas"]))
        print("workers", kept, grown, left["targetReplicas"])
        assert left["targetReplicas"] >= grown > kept, "spec.replicas is 1, and nobody has edited it"
        assert "scaling" not in left


@pytest.mark.together("load")
def test_removed_static_member_is_replaced_within_a_heartbeat_and_two_seconds(installation: Installation) -> None:
    """Without the operator its partitions would wait 45 seconds for the end of the session."""
    with scene(installation, "static", partitions=6) as group:
        group.make(scaling=None, replicas=4, per_record_s=0.0, env={"OUTPUT": group.output})
        group.wait_members(4)
        with group.load() as load:
            load.rate(60.0)
            load.wait(10.0)
            owned = group.partitions_of("static-fleet-2") | group.partitions_of("static-fleet-3")
            assert owned
            group.kubectl("scale", "kcg/static", "--replicas=2")
            group.kubectl("wait", "--for=delete", "pod/static-fleet-2", "pod/static-fleet-3", "--timeout=290s")
            gone = time.time()
            group.wait_members(2)
            load.wait(10.0)
            first = {number: at for number, at in load.first_handled(after=gone).items() if number in owned}
        delays = {number: round(at - gone, 2) for number, at in first.items()}
        print("seconds from the end of the pod to the first record", delays)
        assert set(delays) == owned
        assert max(delays.values()) <= HEARTBEAT_S + 2.0


@pytest.mark.together("load")
def test_idle_group_sleeps_wakes_for_its_first_record_and_its_retries_are_in_time(installation: Installation) -> None:
    with scene(installation, "sleeping", partitions=3) as group:
        group.make(
            scaling={"minReplicas": 0, "scaleDownStabilizationSeconds": 20},
            per_record_s=0.0,
            env={"OUTPUT": group.output, "FAILS_FIRST": "0"},
            retry={"policyRef": {"name": "once"}},
        )
        with group.load() as load:
            load.rate(3.0)  # without a record, a fleet that needs a minute to start would fall asleep meanwhile
            group.wait_members(1)
            load.wait(10.0)
            load.rate(0.0)
            group.wait_status(state="Empty", replicas=0, limit="ScaledToZero")
            assert group.conditions()["Ready"] == ("True", "FleetReady")
            eventually(load.lateness, timeout_s=PATIENCE_S, what="a retry", poll_s=1.0)
            assert group.status()["replicas"] == 0, "the main workers sleep while retry workers work"
            eventually(lambda: group.status()["retry"]["waiting"] == 0, timeout_s=PATIENCE_S, what="all retries")
            print("lateness of retries", load.lateness())
            assert max(load.lateness()) <= LATE_S
            written = time.time()
            load.rate(3.0)
            eventually(lambda: load.first_handled(after=written), timeout_s=PATIENCE_S, what="a record")
            woken = min(load.first_handled(after=written).values()) - written
            print("seconds from the first record to its handling", round(woken, 2))
        assert woken <= WAKE_S


@pytest.mark.together("load")
def test_group_with_a_foreign_member_goes_on_beside_it_and_is_not_scaled(
    installation: Installation, tmp_path: Path
) -> None:
    with scene(installation, "shared", partitions=6) as group:
        group.make(scaling={"minReplicas": 2, "scaleDownStabilizationSeconds": 10})
        group.wait_members(2)
        with group.java_consumer(tmp_path) as read, group.load() as load:
            eventually(
                lambda: group.conditions()["GroupShared"] == ("True", "ForeignMembers"),
                timeout_s=PATIENCE_S,
                what="the foreign member is seen",
                poll_s=1.0,
            )
            load.rate(200.0)
            group.wait_status(limit="GroupShared", targetReplicas=2)
            assert group.conditions()["ScalingActive"] == ("False", "GroupShared")
            load.wait(20.0)  # a cooperative rebalance has two generations
            generation = eventually(
                lambda: group.status().get("generation"), timeout_s=PATIENCE_S, what="a worker's report", poll_s=1.0
            )
            load.wait(60.0)
            status = group.status()
            assert (status["targetReplicas"], status["memberCount"], status["state"]) == (2, 3, "Stable")
            assert status["generation"] == generation, "nobody is fenced, nobody comes and goes"
            assert read.stat().st_size > 0
            assert group.restarts() == 0
        eventually(
            lambda: group.conditions()["GroupShared"][0] == "False",
            timeout_s=PATIENCE_S,
            what="the foreign member has left",
            poll_s=1.0,
        )


@pytest.mark.together("load")
def test_hpa_scales_a_group_without_scaling_of_its_own(installation: Installation) -> None:
    """Its metric is the operator's lag gauge, through a minimal metrics adapter."""
    with scene(installation, "hpa", partitions=6) as group:
        group.make(scaling=None, replicas=1)
        group.wait_members(1)
        with adapter_objects(installation, group.name) as objects:
            group.cluster.apply(objects, namespace=group.name)
            with group.load() as load:
                load.rate(72.0)
                eventually(
                    lambda: group.status()["targetReplicas"] >= 2, timeout_s=PATIENCE_S, what="growth", poll_s=1.0
                )
                found = group.cluster.get("horizontalpodautoscaler", group.name, namespace=group.name) or {}
                print(json.dumps(found["status"]))
                assert found["status"]["currentMetrics"][0]["external"]["metric"]["name"] == METRIC
                assert group.conditions()["ScalingActive"] == ("False", "FixedReplicas")
                eventually(
                    lambda: group.status()["memberCount"] == group.status()["targetReplicas"],
                    timeout_s=PATIENCE_S,
                    what="all workers have joined",
                    poll_s=1.0,
                )
