"""Job and status of a Redrive on a real API server and a real broker. The tests play the Job controller."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from fleet_consumer.contract import naming
from tests.apiserver import objects
from tests.apiserver.conftest import PATIENCE_S, Site
from tests.apiserver.redrives import JOB, NOW, end_job, end_pod, make_pod, patch_status, redrive
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.unit.api.crd_objects import JsonObject

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.together]

MakeSite = Callable[..., Site]


def group(site: Site, broker: KafkaBroker) -> None:
    """A ConsumerGroup with a RetryPolicy of one delay."""
    site.apply(objects.handler_source(site.name), objects.cluster(site.name, broker.bootstrap))
    metadata = {"name": "short", "namespace": site.name}
    policy = {"apiVersion": objects.API_VERSION, "kind": "RetryPolicy", "metadata": metadata}
    site.apply(policy | {"spec": {"sequence": ["5s"]}})
    site.apply(objects.group(site.name, retry={"policyRef": {"name": "short"}}))


def wait_phase(site: Site, phase: str, reason: str, name: str = "fixed") -> JsonObject:
    """Wait until the Redrive is in this phase for this reason; return its status."""

    def seen() -> JsonObject:
        status: JsonObject = site.status("redrives", name)
        reasons = {c["reason"] for c in status.get("conditions", ())}
        assert status.get("phase") == phase, status
        assert reason in reasons, status
        return status

    return eventually(seen, timeout_s=PATIENCE_S, what=f"phase {phase} ({reason})")


def redriven_of(site: Site) -> JsonObject | None:
    """The findings of the group's Redrives, as its state keeps them; None without any."""
    retries: JsonObject = site.get("operatorstates", "flights.consumergroup")["data"].get("retries", {})
    return retries.get("redriven")


def test_reasons_to_wait_follow_each_other_until_the_job_runs(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("redrive-waits")
    here.apply(redrive(here))
    wait_phase(here, "Pending", "GroupNotFound")
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
    here.apply(objects.group(here.name))
    wait_phase(here, "Pending", "RetryNotConfigured")
    group(here, broker)
    status = wait_phase(here, "Running", "Running")
    assert "startedAt" in status
    job = here.get("jobs", JOB)
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Redrive", here.get("redrives", "fixed")["metadata"]["uid"])
    config = json.loads(here.get("configmaps", JOB)["data"]["redrive.json"])
    assert (config["groupId"], config["partitions"]) == (f"{here.name}.flights", 6)


def test_life_of_a_redrive(site: MakeSite, broker: KafkaBroker) -> None:
    """A Redrive runs, shows its run's commits, pauses, resumes, ends with its run's message, and outlives its Job."""
    here = site("redrive-life")
    group(here, broker)
    here.apply(redrive(here))
    wait_phase(here, "Running", "Running")
    job = here.get("jobs", JOB)
    make_pod(here, job, "first")
    counts = {"selected": 3, "moved": 2, "guarded": 1, "movedBefore": 4, "failedAgain": 2}
    commit_progress(here, broker, {"v": 1, "end": 10, **counts}, offset=4)

    def counted() -> bool:
        status = here.status("redrives", "fixed")
        assert {key: status.get(key) for key in (*counts, "remaining")} == counts | {"remaining": 6}, status
        return True

    eventually(counted, timeout_s=PATIENCE_S, what="the run's own counts")

    here.apply(redrive(here, suspend=True))
    wait_phase(here, "Paused", "Suspended")
    assert here.get("jobs", JOB)["spec"]["suspend"] is True
    here.apply(redrive(here))
    wait_phase(here, "Running", "WaitingForLastRun")
    end_pod(here, "first", {"ok": False, "reason": "Stopped", "message": "stopped"}, code=21)
    wait_phase(here, "Running", "Running")
    resumed = here.get("jobs", JOB)
    assert not resumed["spec"].get("suspend")
    assert resumed["metadata"]["uid"] != job["metadata"]["uid"], "a Job has the settings of the time when it was made"

    make_pod(here, resumed, "second")
    end_pod(here, "second", {"ok": True, "selected": 7, "moved": 7, "guarded": 1, "refused": 0, "redrivenTo": 0})
    end_job(here)
    status = wait_phase(here, "Succeeded", "AllMoved")
    assert [status[key] for key in ("selected", "moved", "guarded", "remaining", "redrivenTo")] == [7, 7, 1, 0, 0]
    found = {"topic_id": status["failedTopicId"], "to": 0}
    eventually(lambda: redriven_of(here) == found, timeout_s=PATIENCE_S, what="the findings in the group's state")
    header, row = here.kubectl("get", "krd", "fixed").strip().splitlines()
    assert header.split() == ["NAME", "GROUP", "PHASE", "REASON", "SELECTED", "MOVED", "RATE", "AGE"]
    shown = row.split()
    assert (shown[:3], shown[4:6]) == (["fixed", "flights", "Succeeded"], ["7", "7"])
    here.kubectl("delete", "job", JOB, "--wait=false")
    here.apply(redrive(here, suspend=True))

    def renewed() -> bool:
        body = here.get("redrives", "fixed")
        return bool(body["status"]["observedGeneration"] == body["metadata"]["generation"])

    eventually(renewed, timeout_s=PATIENCE_S, what="the edit to be seen")
    assert here.get("redrives", "fixed")["status"]["phase"] == "Succeeded"


def test_suspended_group_pauses_its_redrive_and_the_records_that_it_names_reach_the_run(
    site: MakeSite, broker: KafkaBroker
) -> None:
    here = site("redrive-group-asleep")
    group(here, broker)
    named = [{"partition": 3, "offset": 17}, {"partition": 0, "offset": 4}]
    here.apply(redrive(here, records=named))
    wait_phase(here, "Running", "Running")
    assert json.loads(here.get("configmaps", JOB)["data"]["redrive.json"])["filter"]["records"] == named
    here.kubectl("patch", "kcg/flights", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    wait_phase(here, "Paused", "GroupSuspended")
    assert here.get("jobs", JOB)["spec"]["suspend"] is True
    here.kubectl("patch", "kcg/flights", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    wait_phase(here, "Running", "Running")
    assert here.get("jobs", JOB)["spec"]["suspend"] is False


def test_new_rate_is_a_new_job(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("redrive-rate")
    group(here, broker)
    here.apply(redrive(here))
    wait_phase(here, "Running", "Running")
    first = here.get("jobs", JOB)["metadata"]["uid"]
    here.apply(redrive(here, rate={"recordsPerSecond": 50}))

    def replaced() -> bool:
        job = here.get("jobs", JOB)
        return bool(
            job["metadata"]["uid"] != first
            and job["metadata"]["annotations"]["consumerfleet.io/records-per-second"] == "50"
        )

    eventually(replaced, timeout_s=PATIENCE_S, what="a Job with the new rate")
    assert json.loads(here.get("configmaps", JOB)["data"]["redrive.json"])["recordsPerSecond"] == 50


def test_deleted_group_cancels_its_redrive(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("redrive-cancelled")
    group(here, broker)
    here.apply(redrive(here), redrive(here, "waits"))
    wait_phase(here, "Running", "Running")
    wait_phase(here, "Pending", "AnotherRedriveRuns", "waits")
    here.kubectl("delete", "kcg/flights")
    wait_phase(here, "Cancelled", "GroupDeleted")
    here.wait_names("jobs")
    wait_phase(here, "Pending", "GroupNotFound", "waits")


def test_filter_that_is_too_large_is_a_final_failure(site: MakeSite) -> None:
    """The API server takes every regular expression; only the operator bounds the size of its program."""
    here = site("redrive-refused")
    here.apply(redrive(here, filter={"errorRegex": "[\\p{L}]{1,100}b"}))
    status = wait_phase(here, "Failed", "FilterRefused")
    assert "errorRegex" in status["conditions"][0]["message"]


def test_job_and_its_pod_are_taken_at_the_restricted_level(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("redrive-strict")
    here.api.kubectl("label", "namespace", here.name, "pod-security.kubernetes.io/enforce=restricted")
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": here.name}}
    here.apply(account)
    group(here, broker)
    here.apply(redrive(here, filter={"reasons": ["Exhausted"]}, maxRecords=5, dryRun=True))
    wait_phase(here, "Running", "Running")
    make_pod(here, here.get("jobs", JOB), "strict")


def commit_progress(site: Site, broker: KafkaBroker, metadata: JsonObject, *, offset: int) -> None:
    """Commit progress as a run does, by another client."""
    uid = site.get("redrives", "fixed")["metadata"]["uid"]
    group_id = f"{site.name}.flights"
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": naming.redrive_group(group_id, uid)})
    place = TopicPartition(naming.failed_topic(group_id), 0, offset, json.dumps(metadata))
    try:
        consumer.commit(offsets=[place], asynchronous=False)
    finally:
        consumer.close()


def test_finished_redrive_is_waited_for_and_deleted_after_its_group_recorded_it(
    site: MakeSite, broker: KafkaBroker
) -> None:
    """As a Job: `kubectl wait` sees the end, the object is removed automatically, its result stays."""
    here = site("redrive-ttl")
    group(here, broker)
    here.apply(redrive(here))
    wait_phase(here, "Running", "Running")
    make_pod(here, here.get("jobs", JOB), "only")
    end_pod(here, "only", {"ok": True, "selected": 7, "moved": 7, "guarded": 1, "refused": 0, "redrivenTo": 3})
    end_job(here)
    here.kubectl("wait", "--for=condition=Complete", "redrive/fixed", f"--timeout={PATIENCE_S:.0f}s")
    topic_id = here.status("redrives", "fixed")["failedTopicId"]
    here.kubectl("patch", "krd/fixed", "--type=merge", "-p", '{"spec": {"ttlSecondsAfterFinished": 1}}')
    here.kubectl("wait", "--for=delete", "redrive/fixed", f"--timeout={PATIENCE_S:.0f}s")
    assert redriven_of(here) == {"topic_id": topic_id, "to": 3}, "recorded before it was deleted"


def test_failed_redrive_is_seen_by_kubectl_wait(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("redrive-fails")
    group(here, broker)
    here.apply(redrive(here, ttlSecondsAfterFinished=3600))
    wait_phase(here, "Running", "Running")
    make_pod(here, here.get("jobs", JOB), "only")
    end_pod(here, "only", {"ok": False, "reason": "TopicNotFound", "message": "no such topic"}, code=20)
    times = {"lastProbeTime": NOW, "lastTransitionTime": NOW}
    conditions = [{"type": kind, "status": "True", **times} for kind in ("FailureTarget", "Failed")]
    patch_status(
        here, "jobs", JOB, {"startTime": NOW, "failed": 1, "uncountedTerminatedPods": {}, "conditions": conditions}
    )
    here.kubectl("wait", "--for=condition=Failed", "redrive/fixed", f"--timeout={PATIENCE_S:.0f}s")
    assert here.condition("redrives", "fixed", "Failed")["reason"] == "TopicNotFound"
    assert here.condition("redrives", "fixed", "Complete")["status"] == "False"
