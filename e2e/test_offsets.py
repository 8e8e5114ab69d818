"""Declared offsets: an OffsetReset to a time under a running fleet, and a skipped record that kills its worker."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any, Final

import pytest
import yaml

from e2e.cluster import PATIENCE_S, eventually
from e2e.conftest import Fleets
from e2e.demo.fleet import EXAMPLE, FlightFleet

API_VERSION: Final = "consumerfleet.io/v1alpha1"
FIRST: Final = 60
SECOND: Final = 60
CULPRIT: Final = "killer"
SKIP_S: Final = 240
"""The kubelet waits up to 80 seconds before it restarts a container that died often."""

HANDLER: Final = """
import os

from fleet_consumer import Produce


def handle(record):
    value = record.value.decode()
    if value == "killer":
        os._exit(1)  # a SIGKILL to itself is lost on the first process of a container
    if value.startswith("bad"):
        raise ValueError(f"{value} is bad")
    return Produce("OUTPUT", value)
"""


def manifests(fleet: FlightFleet, *, retries: bool) -> list[dict[str, Any]]:
    """The example's group with this module's handler; with retries after two seconds, once."""
    handler, kafka, group = fleet.manifests()
    handler["data"] = {"handler.py": HANDLER.replace("OUTPUT", fleet.output)}
    del group["spec"]["handler"]["decode"]
    group["spec"]["consumer"] = {"commitIntervalSeconds": 1}
    if not retries:
        return [handler, kafka, group]
    policy = next(
        each for each in yaml.safe_load_all((EXAMPLE / "fleet.yaml").read_text()) if each["kind"] == "RetryPolicy"
    )
    policy["spec"] = {"sequence": ["2s"]}
    group["spec"]["retry"] = {"policyRef": {"name": policy["metadata"]["name"]}, "worker": {"maxReplicas": 1}}
    return [handler, kafka, policy, group]


def patch(fleet: FlightFleet, offsets: dict[str, Any] | None) -> None:
    body = json.dumps({"spec": {"offsets": offsets}})
    fleet.kubectl("patch", "kcg", fleet.name, "--type=merge", "--patch", body)


def write(fleet: FlightFleet, values: list[str]) -> None:
    fleet.inside("write", "--topic", fleet.source, "--keyed", stdin="\n".join(values).encode())


def done(fleet: FlightFleet) -> Counter[str]:
    return Counter(fleet.inside("read", "--topic", fleet.output)["values"])


def failed(fleet: FlightFleet) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = fleet.inside("read", "--topic", fleet.failed)["records"]
    return found


def offsets_of(fleet: FlightFleet) -> dict[str, Any]:
    found: dict[str, Any] = fleet.group().get("status", {}).get("offsets", {})
    return found


def reset_status(fleet: FlightFleet) -> dict[str, Any]:
    found = fleet.cluster.get("offsetresets.consumerfleet.io", "again", namespace=fleet.namespace) or {}
    status: dict[str, Any] = found.get("status", {})
    return status


@pytest.mark.together
def test_reset_to_a_time_under_a_running_fleet_handles_every_record_from_there_again(fleets: Fleets) -> None:
    """Failing records are retried again; records before the time, and the retry workers, are not affected."""
    first = [f"{'bad' if n % 10 == 0 else 'good'}-first-{n}" for n in range(FIRST)]
    second = [f"{'bad' if n % 10 == 0 else 'good'}-second-{n}" for n in range(SECOND)]
    good = {value for value in first + second if value.startswith("good")}
    bad_second = {value for value in second if value.startswith("bad")}
    with fleets.named("reset") as fleet:
        fleet.cluster.apply(manifests(fleet, retries=True), namespace=fleet.namespace)
        fleet.wait_stable(members=2)
        write(fleet, first)
        time.sleep(2)  # times in a spec have whole seconds, and the test is about records' own times
        between = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        time.sleep(2)
        write(fleet, second)
        eventually(lambda: set(done(fleet)) == good, timeout_s=PATIENCE_S, what="the first pass")
        all_bad = len([value for value in first + second if value.startswith("bad")])
        eventually(lambda: len(failed(fleet)) == all_bad, timeout_s=PATIENCE_S, what="the failed ones", poll_s=2.0)

        spec = {"groupRef": {"name": fleet.name}, "to": "Time", "time": between}
        wanted = {"apiVersion": API_VERSION, "kind": "OffsetReset", "metadata": {"name": "again"}, "spec": spec}
        fleet.cluster.apply([wanted], namespace=fleet.namespace)
        seen_down = False

        def reset() -> bool:
            nonlocal seen_down
            seen_down = seen_down or fleet.group()["status"].get("targetReplicas") == 0
            status = reset_status(fleet)
            assert status.get("phase") == "Succeeded", status
            return True

        eventually(reset, timeout_s=PATIENCE_S, what="the reset", poll_s=0.2)
        assert seen_down, "the fleet was down meanwhile"
        status = reset_status(fleet)
        before, after = (
            {each["partition"]: each["offset"] for each in status[name]} for name in ("previous", "resolved")
        )
        assert sum(before.values()) - sum(after.values()) == SECOND, status
        fleet.wait_stable(members=2)

        def again() -> bool:
            found = done(fleet)
            assert {value for value, count in found.items() if count == 2} == {v for v in second if v in good}, found
            assert {value for value, count in found.items() if count == 1} == {v for v in first if v in good}, found
            return True

        eventually(again, timeout_s=PATIENCE_S, what="every record from there on to be handled again", poll_s=2.0)

        def failed_again() -> bool:
            found = Counter(record["value"] for record in failed(fleet))
            assert {value for value, count in found.items() if count == 2} == bad_second, found
            return True

        eventually(failed_again, timeout_s=PATIENCE_S, what="failing ones to be retried and to fail again", poll_s=2.0)
        assert {record["headers"]["kr-attempt"] for record in failed(fleet)} == {"1"}, "each with all its attempts"
        fleet.kubectl("delete", "kor", "again")
        fleet.cluster.apply([wanted], namespace=fleet.namespace)
        eventually(reset, timeout_s=PATIENCE_S, what="the object that is made again to show that it was done")
        assert fleet.group()["status"]["targetReplicas"] == 2
        found = done(fleet)
        assert max(found.values()) == 2, found


@pytest.mark.together
def test_skipped_record_that_kills_its_worker_goes_to_the_failed_topic(fleets: Fleets) -> None:
    """The list reaches crash-looping workers without a rollout."""
    values = [f"good-{n}" for n in range(200)]
    with fleets.named("skip") as fleet:
        fleet.cluster.apply(manifests(fleet, retries=False), namespace=fleet.namespace)
        fleet.wait_stable(members=2)
        write(fleet, [*values[:100], CULPRIT, *values[100:]])
        records = fleet.inside("read", "--topic", fleet.source)["records"]
        (place,) = (record["place"] for record in records if record["value"] == CULPRIT)
        partition, _, offset = place.partition("-")
        selector = f"consumerfleet.io/group={fleet.name}"

        def died() -> bool:
            pods = fleet.cluster.list("pods", namespace=fleet.namespace, selector=selector)
            return any(each["restartCount"] for pod in pods for each in pod["status"].get("containerStatuses", ()))

        eventually(died, timeout_s=PATIENCE_S, what="a worker to be killed by the record", poll_s=0.5)
        before = fleet.cluster.get("statefulsets", fleet.workers, namespace=fleet.namespace) or {}
        patch(fleet, {"skip": [{"topic": fleet.source, "partition": int(partition), "offset": int(offset)}]})

        def skipped() -> bool:
            found = failed(fleet)
            assert [record["value"] for record in found] == [CULPRIT]
            (record,) = found
            assert record["headers"]["kr-reason"] == "skipped", record["headers"]
            return True

        eventually(skipped, timeout_s=SKIP_S, what="the record to be skipped", poll_s=2.0)
        eventually(lambda: fleet.lag()["lag"] == 0, timeout_s=SKIP_S, what="all to be committed", poll_s=1.0)
        assert set(done(fleet)) == set(values)

        def shown() -> bool:
            states = [entry["state"] for entry in offsets_of(fleet).get("skipped", ())]
            assert states in (["Skipped"], ["Passed"]), states
            return True

        eventually(shown, timeout_s=PATIENCE_S, what="the status to say so", poll_s=2.0)
        after = fleet.cluster.get("statefulsets", fleet.workers, namespace=fleet.namespace) or {}
        assert after["spec"]["template"] == before["spec"]["template"], "without a rollout"
