"""Retries on real pods: delays, restarts, sleep, edits, outages, redrives, deletion.

The groups are made once for all tests, each with a topic of its own, so that their starts and waits overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from e2e.cluster import CommandFailed, conditions, eventually
from e2e.install import Installation
from e2e.retry_scene import (
    NAMESPACE,
    OUTPUT,
    PARTITIONS,
    Scene,
    group,
    policy,
    redrive,
)

pytestmark = pytest.mark.timeout(600)  # what the first of them waits for includes the making of the cluster

GROUPS = ("walking", "restarted", "sleeping", "drained", "erased", "dependent")
SLOW_SECONDS = 20
SLEEP_SECONDS = 90
SLEEP_DELAY = "90s"
WAKE_SECONDS = 30
BUDGET = {"maxFailurePercent": 50, "windowSeconds": 10, "minRecords": 20, "action": "Pause", "cooldownSeconds": 3}


@pytest.fixture(scope="module")
def scene(installation: Installation) -> Iterator[Scene]:
    made = Scene.make(installation)
    made.tools.inside("create-topics", "--partitions", str(PARTITIONS), *GROUPS, OUTPUT)
    made.apply(
        policy("steps", "1s", "2s", "5s"),
        policy("slow", f"{SLOW_SECONDS}s"),
        policy("sleepy", SLEEP_DELAY),
        policy("careful", "1s", "1s", "1s", budget=BUDGET),
        group("walking", "steps"),
        group("restarted", "slow"),
        group("sleeping", "sleepy", least=0),
        group("drained", "slow", deletion={"retryTopics": "Drain", "timeoutSeconds": 120}),
        group("erased", "slow", deletion={"retryTopics": "Delete", "group": "Delete"}),
        group("dependent", "careful"),
    )
    made.wait_ready(*GROUPS)
    made.write("sleeping", ["once-asleep"])  # first of all: its wait passes while the other tests run
    yield made
    made.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")


def wait_waiting(scene: Scene, name: str, count: int) -> None:
    """Until this many records wait in a group's retry topics."""
    eventually(lambda: scene.waiting(name) == count, timeout_s=60, what=f"{count} records of {name} wait")


def wait_failed(scene: Scene, name: str, count: int, *, timeout_s: float = 60) -> list[dict[str, Any]]:
    """Until a group's failed topic holds this many records; returns them."""

    def probe() -> list[dict[str, Any]] | None:
        found = scene.failed(name)
        assert len(found) == count, f"{len(found)} records"
        return found

    return eventually(probe, timeout_s=timeout_s, what=f"{count} failed records of {name}")


def assert_none_early(done: list[dict[str, Any]], delay_s: int) -> None:
    """Due time is append time plus delay; `appended` is the broker's own stamp in the retry topic."""
    early = [entry for entry in done if entry["at"] < entry["appended"] + delay_s * 1000]
    assert early == []


def test_retry_workers_sleep_while_a_record_waits_that_is_not_due_soon(scene: Scene) -> None:
    """The record counts, its due time is told, and nobody is there for it yet."""

    def told() -> bool:
        retry = scene.status("consumergroups", "sleeping").get("retry", {})
        assert retry.get("waiting") == 1, retry
        due = datetime.fromisoformat(retry["nextDueAt"]).timestamp()
        (waiting,) = scene.read(f"_fleet.sleeping.retry.{SLEEP_DELAY}")
        assert abs(due - (waiting["timestamp"] / 1000 + SLEEP_SECONDS)) < 2, (retry, waiting)
        found = scene.cluster.get("statefulset", "sleeping-retry", namespace=NAMESPACE)
        assert found is not None
        assert found["spec"]["replicas"] == 0
        return True

    eventually(told, timeout_s=SLEEP_SECONDS - WAKE_SECONDS, what="the record waits, its workers sleep")


def test_records_walk_through_every_delay_and_end_in_the_failed_topic(scene: Scene) -> None:
    """Three delays, three topics, four deliveries; nobody else waits for them, and every table shows them."""
    bad, good = [f"bad-{n}" for n in range(12)], [f"good-{n}" for n in range(12)]
    scene.write("walking", [value for pair in zip(bad, good, strict=True) for value in pair])
    failed = wait_failed(scene, "walking", len(bad))
    assert sorted(record["value"] for record in failed) == sorted(bad)
    for record in failed:
        headers = record["headers"]
        assert (headers["kr-attempt"], headers["kr-reason"]) == ("3", "exhausted")
        assert headers["kr-policy"].startswith("steps@")
        assert headers["kr-origin-topic"] == "walking"
        assert headers["kr-error-message"] == f"{record['value']} is bad"
    assert scene.deliveries("walking") == dict.fromkeys(bad, 4) | dict.fromkeys(good, 1)
    assert sorted(entry["value"] for entry in scene.done("good-")) == sorted(good)

    topics = scene.topics("walking")
    assert sorted(topics) == ["failed", "redrive", "retry.1s", "retry.2s", "retry.5s"]
    for name, topic in topics.items():
        settings = topic["settings"]
        assert topic["partitions"] == PARTITIONS, name
        assert settings["cleanup.policy"] == "delete", name
        assert settings["message.timestamp.type"] == "LogAppendTime", name
        headers = 131_072 if name == "failed" else 65_536
        assert int(settings["max.message.bytes"]) == 1_048_588 + headers, name
        days = 30 if name in ("failed", "redrive") else 7
        assert int(settings["retention.ms"]) == days * 86_400_000, name

    def shown() -> bool:
        wide = scene.table("consumergroups", "walking", "--output", "wide")
        assert (wide["RETRY"], wide["FAILED"]) == ("0", "12"), wide
        listed = scene.table("retrypolicies", "steps")
        assert (listed["DELAYS"], listed["ATTEMPTS"], listed["TOTAL"], listed["GROUPS"]) == ("1s,2s,5s", "3", "8s", "1")
        return True

    eventually(shown, timeout_s=30, what="the tables show what waits and what failed")


def test_edited_policy_is_followed_without_touching_a_pod(scene: Scene) -> None:
    """New failures follow the new delays; the delays that are gone keep their topics, as spec.deletion says Keep."""
    pods = scene.pods("walking")
    before = scene.status("consumergroups", "walking")["retry"]["policyRevision"]
    scene.apply(policy("steps", "1s", "3s"))

    def published() -> bool:
        return bool(scene.status("consumergroups", "walking")["retry"]["policyRevision"] != before)

    eventually(published, timeout_s=60, what="the new revision is published")
    known = {record["place"] for record in scene.failed("walking")}
    eventually(lambda: "retry.3s" in scene.topics("walking"), timeout_s=30, what="the new delay's topic")

    def followed() -> bool:
        """A worker reads the changed file within the kubelet's time; until then failures follow the old revision."""
        scene.write("walking", ["bad-edited"])
        count = len(known) + 1
        wait_failed(scene, "walking", count)
        (record,) = [record for record in scene.failed("walking") if record["place"] not in known]
        known.add(record["place"])
        return bool(record["headers"]["kr-attempt"] == "2")

    eventually(followed, timeout_s=150, what="a record follows the new delays")
    assert scene.pods("walking") == pods
    assert {"retry.2s", "retry.5s"} <= set(scene.topics("walking"))


def test_redrive_moves_what_its_dry_run_counted_and_a_second_one_nothing(scene: Scene) -> None:
    count = len(scene.failed("walking"))
    assert count > 0

    def finished(name: str) -> dict[str, Any]:
        def probe() -> dict[str, Any] | None:
            status = scene.status("redrives", name)
            return status if status.get("phase") == "Succeeded" else None

        return eventually(probe, timeout_s=90, what=f"redrive {name} has ended")

    scene.apply(redrive("counted", "walking", dryRun=True))
    dry = finished("counted")
    assert (dry["selected"], dry["moved"], dry["remaining"]) == (count, 0, 0)
    assert scene.read("_fleet.walking.redrive") == []

    scene.apply(redrive("moved", "walking"), redrive("again", "walking"))
    real, second = finished("moved"), finished("again")
    assert sorted((status["selected"], status["moved"]) for status in (real, second)) == [(0, 0), (count, count)]
    wait_waiting(scene, "walking", 0)
    back = scene.done("bad-")
    assert len(back) == count
    assert {entry["from"] for entry in back} == {"_fleet.walking.redrive"}
    assert {entry["attempt"] for entry in back} == {0}
    row = scene.table("redrives", "counted")
    assert (row["GROUP"], row["PHASE"], row["SELECTED"], row["MOVED"]) == ("walking", "Succeeded", str(count), "0")


def test_restarted_retry_worker_loses_nothing_and_hands_out_nothing_early(scene: Scene) -> None:
    values = [f"once-{n}" for n in range(50)]
    scene.write("restarted", values)
    wait_waiting(scene, "restarted", len(values))
    scene.kubectl("delete", "pod", "restarted-retry-0", "--wait=false")

    def finished() -> list[dict[str, Any]] | None:
        found = [entry for entry in scene.done("once-") if entry["from"].startswith("_fleet.restarted.")]
        return found if len({entry["value"] for entry in found}) == len(values) else None

    done = eventually(finished, timeout_s=90, what="every record is done")
    assert sorted(entry["value"] for entry in done) == sorted(values)
    assert {entry["attempt"] for entry in done} == {1}
    assert_none_early(done, SLOW_SECONDS)
    assert scene.failed("restarted") == []


def test_sleeping_retry_workers_wake_in_time(scene: Scene) -> None:
    def finished() -> dict[str, Any] | None:
        found = scene.done("once-asleep")
        return found[0] if found else None

    done = eventually(finished, timeout_s=SLEEP_SECONDS + 60, what="the record is done")
    due = done["appended"] + SLEEP_SECONDS * 1000
    assert due <= done["at"] <= due + 15_000, f"{done['at'] - due} ms late"


def test_outage_is_waited_for_and_burns_no_attempt(scene: Scene) -> None:
    """The dependency is away for longer than all delays together: with a budget everything ends done."""
    scene.write("dependent", [f"needs-{n}" for n in range(100)])
    eventually(lambda: len(scene.done("needs-")) >= 100, timeout_s=60, what="the dependency is there")
    scene.switch_dependency(up=False)

    def degraded() -> str | None:
        found = scene.cluster.get("consumergroups.consumerfleet.io", "dependent", namespace=NAMESPACE)
        entry = conditions(found)["Degraded"]
        return str(entry["reason"]) if entry["status"] == "True" else None

    scene.write("dependent", [f"needs-more-{n}" for n in range(200)])
    # Workers are asked when their group is looked at; one of which nothing moves is looked at once a minute.
    reason = eventually(degraded, timeout_s=120, what="the group is Degraded")
    assert "Breaker" in reason or "Budget" in reason, reason
    scene.switch_dependency(up=True)
    eventually(lambda: len(scene.done("needs-more-")) >= 200, timeout_s=90, what="everything is done", poll_s=1.0)
    assert scene.failed("dependent") == []
    eventually(lambda: degraded() is None, timeout_s=120, what="the group is not Degraded any more")


def test_deleted_groups_drain_or_drop_what_waits(scene: Scene) -> None:
    """Drain: what waits is handled first, then the topics go, all but the failed one. Delete: everything goes."""
    scene.write("drained", [f"once-drained-{n}" for n in range(10)])
    scene.write("erased", [f"once-erased-{n}" for n in range(10)])
    wait_waiting(scene, "drained", 10)
    wait_waiting(scene, "erased", 10)
    scene.kubectl("delete", "consumergroups.consumerfleet.io", "drained", "erased", "--timeout=110s")
    assert len({entry["value"] for entry in scene.done("once-drained-")}) == 10
    assert_none_early(scene.done("once-drained-"), SLOW_SECONDS)
    assert scene.done("once-erased-") == []
    eventually(lambda: list(scene.topics("drained")) == ["failed"], timeout_s=30, what="drained keeps the failed topic")
    eventually(lambda: scene.topics("erased") == {}, timeout_s=30, what="erased keeps no topic")
    with pytest.raises(CommandFailed):
        scene.kubectl("get", "statefulset", "erased-retry")
