"""Retries on real pods: delays, restarts, sleep, edits, outages, redrives, deletion.

Each test has its own group of the scene, and deletes it at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from e2e.cluster import PATIENCE_S, conditions, eventually
from e2e.install import Installation
from e2e.retry_scene import (
    NAMESPACE,
    PARTITIONS,
    SLEEP_DELAY,
    SLEEP_SECONDS,
    SLOW_SECONDS,
    Scene,
    made_scene,
    policy,
    redrive,
)
from tests.support.together import Later

pytestmark = pytest.mark.together

WAKE_SECONDS = 30


@pytest.fixture(scope="session")
def scene_later(installation: Installation) -> Iterator[Later[Scene]]:
    with Later(lambda: made_scene(installation)) as later:
        yield later


@pytest.fixture
def scene(scene_later: Later[Scene]) -> Scene:
    """The groups with retries, each for one test."""
    return scene_later.get()


def wait_appended(scene: Scene, name: str, delay: str, count: int) -> None:
    """Wait until this many records were written to one of a group's delay topics."""
    eventually(
        lambda: scene.appended(name, delay) == count, timeout_s=PATIENCE_S, what=f"{count} records of {name} wait"
    )


def wait_failed(scene: Scene, name: str, count: int, *, timeout_s: float = 120) -> list[dict[str, Any]]:
    """Wait until a group's failed topic holds this many records; returns them."""

    def probe() -> list[dict[str, Any]] | None:
        found = scene.failed(name)
        assert len(found) == count, f"{len(found)} records"
        return found

    return eventually(probe, timeout_s=timeout_s, what=f"{count} failed records of {name}")


def assert_none_early(done: list[dict[str, Any]], delay_s: int) -> None:
    """Due time is append time plus delay; `appended` is the broker's own stamp in the retry topic."""
    early = [entry for entry in done if entry["at"] < entry["appended"] + delay_s * 1000]
    assert early == []


def test_retry_workers_sleep_until_the_record_that_waits_is_nearly_due(scene: Scene) -> None:
    """The waiting record is counted and its due time reported while no worker runs; then one runs in time."""
    scene.write("sleeping", ["once-asleep"])

    def reported() -> bool:
        retry = scene.status("consumergroups", "sleeping").get("retry", {})
        assert retry.get("waiting") == 1, retry
        assert retry.get("nextDueAt"), retry
        due = datetime.fromisoformat(retry["nextDueAt"]).timestamp()
        (waiting,) = scene.read(f"_fleet.sleeping.retry.{SLEEP_DELAY}")
        assert abs(due - (waiting["timestamp"] / 1000 + SLEEP_SECONDS)) < 2, (retry, waiting)
        found = scene.cluster.get("statefulset", "sleeping-fleet-retry", namespace=NAMESPACE)
        assert found is not None
        assert found["spec"]["replicas"] == 0
        return True

    eventually(reported, timeout_s=SLEEP_SECONDS - WAKE_SECONDS, what="the record waits, its workers sleep")

    def finished() -> dict[str, Any] | None:
        found = scene.done("once-asleep")
        return found[0] if found else None

    done = eventually(finished, timeout_s=SLEEP_SECONDS + 60, what="the record is done", poll_s=1.0)
    due = done["appended"] + SLEEP_SECONDS * 1000
    assert due <= done["at"] <= due + 15_000, f"{done['at'] - due} ms late"
    scene.drop("sleeping")


def test_records_walk_through_every_delay_and_end_in_the_failed_topic(scene: Scene) -> None:
    """Three delays, three topics, four deliveries; other records do not wait, and every table shows them."""
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
    wanted = dict.fromkeys(bad, 4) | dict.fromkeys(good, 1)
    eventually(
        lambda: scene.deliveries("walking") == wanted, timeout_s=PATIENCE_S, what="the deliveries to be in the logs"
    )
    eventually(
        lambda: sorted(entry["value"] for entry in scene.done("good-")) == sorted(good),
        timeout_s=PATIENCE_S,
        what="the others",
    )
    topics = scene.topics("walking")
    assert sorted(topics) == ["failed", "redrive", "retry.1s", "retry.2s", "retry.5s"]
    for name, topic in topics.items():
        settings = topic["settings"]
        assert topic["partitions"] == PARTITIONS, name
        assert settings["cleanup.policy"] == "delete", name
        assert settings["message.timestamp.type"] == "LogAppendTime", name
        headers = 131_072 if name == "failed" else 65_536
        assert int(settings["max.message.bytes"]) == 1_048_588 + headers, name
        days = {"redrive": 30 + 7 + 1}.get(name, 30)  # the ledger outlives a segment of failed records
        assert int(settings["retention.ms"]) == days * 86_400_000, name

    def shown() -> bool:
        wide = scene.table("consumergroups", "walking", "--output", "wide")
        assert (wide["RETRY"], wide["FAILED"]) == ("0", "12"), wide
        listed = scene.table("retrypolicies", "steps")
        assert (listed["DELAYS"], listed["ATTEMPTS"], listed["TOTAL"], listed["GROUPS"]) == ("1s,2s,5s", "3", "8s", "1")
        return True

    eventually(shown, timeout_s=PATIENCE_S, what="the tables show what waits and what failed")
    scene.drop("walking")


def test_edited_policy_is_followed_without_touching_a_pod(scene: Scene) -> None:
    """New failures follow the new delays; removed delays keep their topics, by spec.deletion."""
    pods = scene.wait_pods("edited", "edited-fleet-0", "edited-fleet-retry-0")
    before = scene.status("consumergroups", "edited")["retry"]["policyRevision"]
    scene.apply(policy("edited", "1s", "3s"))

    def published() -> bool:
        return bool(scene.status("consumergroups", "edited")["retry"]["policyRevision"] != before)

    eventually(published, timeout_s=PATIENCE_S, what="the new revision is published")
    eventually(lambda: "retry.3s" in scene.topics("edited"), timeout_s=PATIENCE_S, what="the new delay's topic")
    known = set[str]()

    def followed() -> bool:
        """A worker reads the changed file after the kubelet's delay; until then failures follow the old revision."""
        scene.write("edited", ["bad-edited"])
        found = wait_failed(scene, "edited", len(known) + 1)
        (record,) = [record for record in found if record["place"] not in known]
        known.add(record["place"])
        return bool(record["headers"]["kr-attempt"] == "2")

    eventually(followed, timeout_s=PATIENCE_S, what="a record follows the new delays")
    assert scene.pods("edited") == pods
    assert {"retry.2s", "retry.5s"} <= set(scene.topics("edited"))
    scene.drop("edited")


def test_redrive_moves_the_records_of_its_dry_run_and_a_second_one_none(scene: Scene) -> None:
    values = [f"bad-redriven-{n}" for n in range(12)]
    count = len(values)
    scene.write("redriven", values)
    wait_failed(scene, "redriven", count)

    def finished(name: str) -> dict[str, Any]:
        def probe() -> dict[str, Any] | None:
            status = scene.status("redrives", name)
            return status if status.get("phase") == "Succeeded" else None

        return eventually(probe, timeout_s=PATIENCE_S, what=f"redrive {name} has ended")

    scene.apply(redrive("counted", "redriven", dryRun=True))
    dry = finished("counted")
    assert (dry["selected"], dry["moved"], dry["remaining"]) == (count, 0, 0)
    assert scene.read("_fleet.redriven.redrive") == []

    scene.apply(redrive("moved", "redriven"), redrive("again", "redriven"))
    real, second = finished("moved"), finished("again")
    assert sorted((status["selected"], status["moved"]) for status in (real, second)) == [(0, 0), (count, count)]
    eventually(lambda: scene.waiting("redriven") == 0, timeout_s=PATIENCE_S, what="what was put back is handled")
    back = scene.done("bad-redriven-")
    assert sorted(entry["value"] for entry in back) == sorted(values)
    assert {entry["from"] for entry in back} == {"_fleet.redriven.redrive"}
    assert {entry["attempt"] for entry in back} == {0}
    row = scene.table("redrives", "counted")
    assert (row["GROUP"], row["PHASE"], row["SELECTED"], row["MOVED"]) == ("redriven", "Succeeded", str(count), "0")
    scene.drop("redriven")


def test_restarted_retry_worker_loses_nothing_and_delivers_nothing_early(scene: Scene) -> None:
    scene.wait_pods("restarted", "restarted-fleet-0", "restarted-fleet-retry-0")
    values = [f"once-{n}" for n in range(50)]
    scene.write("restarted", values)
    wait_appended(scene, "restarted", f"{SLOW_SECONDS}s", len(values))
    scene.kubectl("delete", "pod", "restarted-fleet-retry-0", "--wait=false")

    def finished() -> list[dict[str, Any]] | None:
        found = [entry for entry in scene.done("once-") if entry["from"].startswith("_fleet.restarted.")]
        return found if len({entry["value"] for entry in found}) == len(values) else None

    done = eventually(finished, timeout_s=PATIENCE_S, what="every record is done")
    assert sorted(entry["value"] for entry in done) == sorted(values)
    assert {entry["attempt"] for entry in done} == {1}
    assert_none_early(done, SLOW_SECONDS)
    assert scene.failed("restarted") == []
    scene.drop("restarted")


def test_outage_pauses_and_uses_no_attempt(scene: Scene) -> None:
    """The dependency is down for longer than all delays together: with a budget every record is handled in the end."""
    scene.write("dependent", [f"needs-{n}" for n in range(100)])
    eventually(lambda: len(scene.done("needs-")) >= 100, timeout_s=PATIENCE_S, what="the dependency is there")
    scene.switch_dependency(up=False)

    def degraded() -> str | None:
        found = scene.cluster.get("consumergroups.consumerfleet.io", "dependent", namespace=NAMESPACE)
        entry = conditions(found).get("Degraded", {})
        return str(entry["reason"]) if entry.get("status") == "True" else None

    scene.write("dependent", [f"needs-more-{n}" for n in range(200)])
    # Workers are asked when their group is observed: once a minute if it is idle.
    reason = eventually(degraded, timeout_s=PATIENCE_S, what="the group is Degraded")
    assert "Breaker" in reason or "Budget" in reason, reason
    scene.switch_dependency(up=True)
    eventually(
        lambda: len(scene.done("needs-more-")) >= 200, timeout_s=PATIENCE_S, what="everything is done", poll_s=1.0
    )
    assert scene.failed("dependent") == []
    eventually(lambda: degraded() is None, timeout_s=PATIENCE_S, what="the group is not Degraded any more")
    scene.drop("dependent")


def test_deleted_groups_drain_or_drop_waiting_records(scene: Scene) -> None:
    """Drain: waiting records are handled first, then the topics are deleted, all but the failed one. Delete: all at
    once.
    """
    scene.write("drained", [f"once-drained-{n}" for n in range(10)])
    scene.write("erased", [f"once-erased-{n}" for n in range(10)])
    wait_appended(scene, "drained", f"{SLOW_SECONDS}s", 10)
    wait_appended(scene, "erased", "1h", 10)
    scene.kubectl("delete", "consumergroups.consumerfleet.io", "drained", "erased", "--timeout=290s")
    assert len({entry["value"] for entry in scene.done("once-drained-")}) == 10
    assert_none_early(scene.done("once-drained-"), SLOW_SECONDS)
    assert scene.done("once-erased-") == []
    eventually(
        lambda: list(scene.topics("drained")) == ["failed"], timeout_s=PATIENCE_S, what="drained keeps the failed topic"
    )
    eventually(lambda: scene.topics("erased") == {}, timeout_s=PATIENCE_S, what="erased keeps no topic")
    eventually(
        lambda: scene.cluster.get("statefulset", "erased-fleet-retry", namespace=NAMESPACE) is None,
        timeout_s=PATIENCE_S,
        what="its retry workers are collected",
    )
