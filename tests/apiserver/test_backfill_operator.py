"""Backfills on a real API server and a real broker. The tests play the Spark operator and the driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from fleet_consumer.contract.backfill_config import parse_config
from fleet_operator.planning import times
from tests.apiserver import objects, spark
from tests.apiserver.conftest import PARTITIONS, PATIENCE_S, Site, make_topic
from tests.broker.members import create_topic
from tests.support.apiserver import ApiServer
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer
from tests.unit.api.crd_objects import JsonObject

pytestmark = [pytest.mark.usefixtures("spark_crd", "operator"), pytest.mark.together]

MakeSite = Callable[..., Site]
RECORDS = 12
"""In each partition of the topic `backfilled`."""


@pytest.fixture(scope="session")
def spark_crd(api: ApiServer) -> None:
    spark.install_crd(api)


@pytest.fixture(scope="session")
def topic(broker: KafkaBroker) -> str:
    """A topic with some records in each partition."""
    make_topic(broker, name := "backfilled")
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORDS * PARTITIONS):
        producer.produce(name, str(number), partition=number % PARTITIONS)
    assert producer.flush(30) == 0
    return name


def group(site: Site, broker: KafkaBroker, topic: str = "backfilled", **spec: Any) -> None:
    site.apply(objects.handler_source(site.name), objects.cluster(site.name, broker.bootstrap))
    site.apply(objects.group(site.name, topics=[topic], **spec))


def test_life_of_a_backfill(site: MakeSite, broker: KafkaBroker, topic: str) -> None:
    """It resolves, runs, shows its ledger, survives the death of a driver, and ends."""
    here = site("backfill-life")
    group(here, broker)
    here.apply(spark.backfill(here.name, rate={"recordsPerSecond": 50}))
    application = spark.wait_attempt(here, 1)
    status = here.status("backfills", "again")
    assert status["resolvedRange"] == [{"partition": number, "from": 0, "to": RECORDS} for number in range(PARTITIONS)]
    (owner,) = application["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Backfill", here.get("backfills", "again")["metadata"]["uid"])
    config = parse_config(json.loads(here.get("configmaps", "again-backfill")["data"]["backfill.json"]))
    assert (config.topic, config.ranges[0], config.worker.group_id) == (topic, (0, RECORDS), f"{here.name}.flights")
    assert here.get("configmaps", "again-backfill-handler")["data"] == {"handler.py": objects.HANDLER_SOURCE}
    assert spark.control(here).records_per_second == 50
    spark.set_state(here, 1, "RUNNING")
    spark.make_driver(here, 1)
    spark.wait_phase(here, "Running", "Running")
    left = dict.fromkeys(range(PARTITIONS), ((6, RECORDS),))
    spark.write_ledger(here, spark.ledger(1, left, slices_done=1, slices_left=1, counts=spark.counts(36)))

    def counted() -> bool:
        seen = here.status("backfills", "again")
        assert (seen["offsetsCovered"], seen["offsetsTotal"], seen.get("records", {}).get("in")) == (36, 72, 36), seen
        assert seen["progressText"] == "50 %, slice 2 of 2"
        return True

    eventually(counted, timeout_s=PATIENCE_S, what="the driver's counts")
    spark.end_driver(here, 1, 143)
    spark.set_state(here, 1, "FAILED", "driver container failed with ExitCode: 143, Reason: Error")
    spark.wait_attempt(here, 2)
    spark.make_driver(here, 2)
    spark.set_state(here, 2, "RUNNING")
    done = spark.ledger(2, {}, slices_done=2, counts=spark.counts(72), ended=True)
    spark.write_ledger(here, done)
    spark.end_driver(here, 2, 0)
    spark.set_state(here, 2, "COMPLETED")
    status = spark.wait_phase(here, "Succeeded", "AllHandled")
    assert (status["attempts"], status["offsetsCovered"], status["progressText"]) == (2, 72, "100 %, 2 slices")
    assert spark.applications(here) == ["again-1", "again-2"]
    header, row = here.kubectl("get", "kbf", "again").strip().splitlines()
    assert header.split() == ["NAME", "GROUP", "PHASE", "REASON", "PROGRESS", "RATE", "END", "FAILED", "AGE"]
    assert row.split()[:3] == ["again", "flights", "Succeeded"]


def test_reasons_to_wait_follow_each_other_until_the_application_is_made(
    site: MakeSite, broker: KafkaBroker, topic: str
) -> None:
    here = site("backfill-waits")
    here.apply(spark.backfill(here.name, sink={"topic": {"name": f"{here.name}-results"}}, onError="FailedTopic"))
    spark.wait_phase(here, "Pending", "GroupNotFound")
    paused = objects.group(here.name, topics=[topic])
    paused["metadata"]["annotations"] = {"consumerfleet.io/paused": "true"}
    here.apply(paused)
    spark.wait_phase(here, "Pending", "PausedByAnnotation")
    here.kubectl("annotate", "kcg/flights", "consumerfleet.io/paused-")
    spark.wait_phase(here, "Pending", "ClusterNotFound")
    here.apply(objects.cluster(here.name, broker.bootstrap))
    spark.wait_phase(here, "Pending", "HandlerSourceNotFound")
    here.apply(objects.handler_source(here.name))
    spark.wait_phase(here, "Pending", "SinkTopicNotFound")
    make_topic(broker, f"{here.name}-results")
    spark.wait_attempt(here, 1)
    assert here.condition("backfills", "again", "HandlerSupported")["status"] == "True"
    assert here.condition("backfills", "again", "SparkAvailable")["status"] == "True"
    assert here.condition("backfills", "again", "RangeResolved")["reason"] == "Resolved"


FINAL: dict[str, tuple[JsonObject, dict[str, Any], str]] = {
    "a group of several topics": ({}, {"topics": ["backfilled", "flights"]}, "SourceTopicRequired"),
    "a topic that is not there": ({"source": {"topic": "nowhere"}}, {}, "SourceTopicNotFound"),
    "a partition that is not there": ({"source": {"partitions": [2, 77]}}, {}, "PartitionNotFound"),
    "offsets that are not there yet": ({"range": {"offsets": spark.offsets(5, 900)}}, {}, "OffsetsBeyondEnd"),
    "a comparison of an HTTP handler": ({"compare": {"self": True}}, {"http": True}, "HandlerUnsupported"),
    "a handler of the image": ({}, {"image": True}, "SparkImageRequired"),
    "a sink that the group reads": ({"sink": {"topic": {"name": "backfilled"}}}, {}, "SinkTopicRefused"),
    "a sink that the handler writes to": (
        {"sink": {"topic": {"name": "done"}}},
        {"handler": {"outputs": ["done"]}},
        "SinkTopicRefused",
    ),
    "a key pattern that is too large": ({"filter": {"keyRegex": "[\\p{L}]{1,100}b"}}, {}, "FilterRefused"),
}


@pytest.mark.parametrize("case", FINAL)
def test_backfill_that_can_never_run_fails_and_says_why(
    site: MakeSite, broker: KafkaBroker, topic: str, case: str
) -> None:
    wanted, changes, reason = FINAL[case]
    here = site("backfill-never")
    made = objects.group(here.name, **{"topics": [topic], **changes} if not {"http", "image"} & changes.keys() else {})
    if "http" in changes:
        container = {"name": "handler", "image": "shop:1"}
        made["spec"] |= {"handler": {"http": {}}, "template": {"spec": {"containers": [container]}}, "topics": [topic]}
    if "image" in changes:
        made["spec"] |= {"handler": {"python": {"callable": "shop:handle"}}, "topics": [topic]}
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap), made)
    here.apply(spark.backfill(here.name, **wanted))
    status = spark.wait_phase(here, "Failed", reason)
    failed = here.condition("backfills", "again", "Failed")
    assert failed["status"] == "True"
    assert wanted.get("source", {}).get("topic", "") in failed["message"]
    assert spark.applications(here) == []
    handler = here.condition("backfills", "again", "HandlerSupported")["status"]
    assert handler != ("True" if reason in ("HandlerUnsupported", "SparkImageRequired") else "False"), status


def test_ranges_are_resolved_by_time_and_by_offsets(site: MakeSite, broker: KafkaBroker) -> None:
    """Ten records an hour apart in one partition; their times are years ago, and are kept.

    The range that allows for two hours is read up to the first record that is two hours after its end.
    """
    here, name, hour = site("backfill-times"), "hourly", 3_600_000
    create_topic(broker.bootstrap, 1, name, {"retention.ms": "-1"})
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    began = 1_600_000_000_000 // hour * hour
    for number in range(10):
        producer.produce(name, str(number), timestamp=began + number * hour)
    assert producer.flush(30) == 0
    group(here, broker, name)
    text = [times.to_text((began + number * hour) / 1000) for number in range(11)]
    ranges: dict[str, tuple[JsonObject, list[JsonObject]]] = {
        "times": ({"time": {"from": text[2], "to": text[5], "lateSeconds": 0}}, spark.offsets(2, 5)),
        "late": ({"time": {"from": text[2], "to": text[5], "lateSeconds": 7200}}, spark.offsets(2, 7)),
        "to-the-end": ({"time": {"from": text[7], "to": "2100-01-01T00:00:00Z"}}, spark.offsets(7, 10)),
        "too-early": ({"time": {"from": "2000-01-01T00:00:00Z", "to": text[0], "lateSeconds": 0}}, []),
        "too-late": ({"last": {"seconds": 60}}, []),
        "offsets": ({"offsets": spark.offsets(3, 10)}, spark.offsets(3, 10)),
    }
    for case, (wanted, _) in ranges.items():
        here.apply(spark.backfill(here.name, case, range=wanted, dryRun=True))
    for case, (_, expected) in ranges.items():
        reason = "AllCounted" if expected else "RangeEmpty"
        status = spark.wait_phase(here, "Succeeded", reason, case)
        assert (case, status["resolvedRange"]) == (case, expected)
    assert here.status("backfills", "times")["resolvedTime"] == {"from": text[2], "to": text[5]}


def test_records_that_are_gone_fail_a_backfill_unless_it_takes_what_is_there(
    site: MakeSite, broker: KafkaBroker
) -> None:
    here, name = site("backfill-expired"), "expired"
    create_topic(broker.bootstrap, 1, name)
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    for number in range(10):
        producer.produce(name, str(number))
    assert producer.flush(30) == 0
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([TopicPartition(name, 0, 4)]).values():
        future.result(30)
    group(here, broker, name)
    offsets = {"offsets": spark.offsets(2, 8)}
    hour = {"last": {"seconds": 3600}}
    for case, wanted in (("offsets", offsets), ("times", hour)):
        here.apply(spark.backfill(here.name, case, range=wanted, dryRun=True))
        here.apply(spark.backfill(here.name, f"{case}-anyway", range={**wanted, "expired": "Ignore"}, dryRun=True))
    for case, left in (("offsets", spark.offsets(4, 8)), ("times", spark.offsets(4, 10))):
        spark.wait_phase(here, "Failed", "RangeExpired", case)
        status = spark.wait_phase(here, "Succeeded", "AllCounted", f"{case}-anyway")
        assert status["resolvedRange"] == left
        assert here.condition("backfills", f"{case}-anyway", "RangeResolved")["reason"] == "ExpiredIgnored"


def test_range_of_a_group_that_reads_committed_waits_for_an_open_transaction(
    site: MakeSite, broker: KafkaBroker
) -> None:
    here, name = site("backfill-transaction"), "transactional"
    create_topic(broker.bootstrap, 1, name)
    plain = SureProducer({"bootstrap.servers": broker.bootstrap})
    for number in range(3):
        plain.produce(name, str(number))
    assert plain.flush(30) == 0
    writer = SureProducer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    writer.init_transactions(30)
    writer.begin_transaction()
    for number in range(5):
        writer.produce(name, str(number))
    assert writer.flush(30) == 0
    group(here, broker, name, consumer={"isolationLevel": "ReadCommitted"})
    here.apply(spark.backfill(here.name, dryRun=True))
    spark.wait_phase(here, "Resolving", "OpenTransaction")
    here.apply(objects.group(here.name, name="others", topics=[name]))
    here.apply(spark.backfill(here.name, "all", groupRef={"name": "others"}, dryRun=True))
    assert spark.wait_phase(here, "Succeeded", "AllCounted", "all")["resolvedRange"] == spark.offsets(0, 8)
    # A test that takes longer than the transaction may finds it aborted, which ends it as well.
    with suppress(KafkaException):
        writer.commit_transaction(30)
    assert spark.wait_phase(here, "Succeeded", "AllCounted")["resolvedRange"] == spark.offsets(0, 9)


def running(site: MakeSite, broker: KafkaBroker, name: str, **spec: Any) -> Site:
    """A namespace with a Backfill whose first driver runs."""
    here = site(name)
    group(here, broker)
    here.apply(spark.backfill(here.name, **spec))
    spark.wait_attempt(here, 1)
    spark.make_driver(here, 1)
    spark.set_state(here, 1, "RUNNING")
    spark.wait_phase(here, "Running", "Running")
    return here


def test_suspend_rate_and_guard_reach_the_driver(site: MakeSite, broker: KafkaBroker, topic: str) -> None:
    here = running(site, broker, "backfill-orders", guard={"maxLiveBehindSeconds": 600})
    control = spark.control(here)
    assert (control.suspend, control.records_per_second) == (False, None)
    assert control.guard is not None
    first = control.guard.checked

    def renewed() -> bool:
        guard = spark.control(here).guard
        assert guard is not None
        return guard.checked > first

    eventually(renewed, timeout_s=PATIENCE_S, what="the guard's word to be renewed")
    here.apply(spark.backfill(here.name, rate={"recordsPerSecond": 7}))
    spark.wait_control(here, "the new rate", records_per_second=7, guard=None)
    here.apply(spark.backfill(here.name, suspend=True))
    spark.wait_control(here, "the suspension", suspend=True)
    spark.wait_phase(here, "Running", "Stopping")
    left = dict.fromkeys(range(PARTITIONS), ((4, RECORDS),))
    spark.write_ledger(here, spark.ledger(1, left, slices_done=1, slices_left=2, ended=True))
    spark.end_driver(here, 1)
    spark.set_state(here, 1, "COMPLETED")
    status = spark.wait_phase(here, "Paused", "Suspended")
    assert (status["lastEnded"]["reason"], status["lastEnded"]["failuresInARow"]) == ("Stopped", 0)
    here.apply(spark.backfill(here.name))
    application = spark.wait_attempt(here, 2)
    assert application["spec"]["arguments"][-2:] == ["--attempt", "2"]
    assert spark.control(here).suspend is False
    assert spark.applications(here) == ["again-1", "again-2"]


def test_sample_of_a_dry_run_says_what_the_range_takes(site: MakeSite, broker: KafkaBroker, topic: str) -> None:
    sample, settings = {"last": {"seconds": 86400}, "sample": PARTITIONS}, {"ui": True, "dynamicAllocation": {}}
    here = running(site, broker, "backfill-sample", dryRun=True, range=sample, spark=settings)
    assert "port-forward pod/again-1-driver 4040" in here.get("backfills", "again")["status"]["sparkUI"]
    done, whole = replace(spark.counts(PARTITIONS), bytes_in=60), PARTITIONS * RECORDS
    spark.write_ledger(here, spark.ledger(1, {}, ended=True, counts=done, offsets_per_second=1.0))
    spark.end_driver(here, 1)
    spark.set_state(here, 1, "COMPLETED")
    status = spark.wait_phase(here, "Succeeded", "AllHandled")
    assert status["estimate"] == {"records": whole, "failed": 0, "bytes": 60 * RECORDS, "seconds": whole}


def test_next_attempt_waits_for_the_last_pod_of_the_one_before(site: MakeSite, broker: KafkaBroker, topic: str) -> None:
    here = running(site, broker, "backfill-executors")
    spark.make_pod(here, here.get("sparkapplications", "again-1"), "executor")
    spark.end_driver(here, 1, 21, reason="BrokerUnreachable", message="nobody there")
    spark.set_state(here, 1, "FAILED", "driver container failed with ExitCode: 21, Reason: Error")
    status = spark.wait_phase(here, "Running", "WaitingForLastRun")
    assert (status["lastEnded"]["reason"], status["lastEnded"]["message"]) == ("BrokerUnreachable", "nobody there")
    assert spark.applications(here) == ["again-1"]
    here.client.merge_status("pods", here.name, "again-1-executor", {"phase": "Failed"})
    spark.wait_attempt(here, 2)


def test_settings_that_cannot_work_are_a_final_failure(site: MakeSite, broker: KafkaBroker, topic: str) -> None:
    here = running(site, broker, "backfill-hopeless")
    spark.end_driver(here, 1, 20, reason="HandlerNotCallable", message="module `handler` has no `handle`")
    spark.set_state(here, 1, "FAILED", "driver container failed with ExitCode: 20, Reason: Error")
    spark.wait_phase(here, "Failed", "HandlerNotCallable")
    here.kubectl("wait", "--for=condition=Failed", "backfill/again", f"--timeout={PATIENCE_S:.0f}s")


@pytest.mark.parametrize("damage", ["no json", "[1]", json.dumps({"version": 1, "attempt": 1, "ended": True})])
def test_ledger_that_cannot_be_read_ends_the_backfill(
    site: MakeSite, broker: KafkaBroker, topic: str, damage: str
) -> None:
    here = running(site, broker, "backfill-ledger")
    spark.write_ledger(here, damage)
    spark.wait_phase(here, "Failed", "LedgerUnreadable")
    eventually(lambda: spark.applications(here) == [], timeout_s=PATIENCE_S, what="the application to be deleted")


def test_driver_that_cannot_start_is_tried_again_with_what_its_pod_waits_for(
    site: MakeSite, broker: KafkaBroker, topic: str
) -> None:
    here = site("backfill-image")
    group(here, broker)
    here.apply(spark.backfill(here.name, deadlines={"startSeconds": 10}))
    spark.wait_attempt(here, 1)
    spark.make_driver(here, 1, phase="Pending")
    spark.set_state(here, 1, "SUBMITTED")
    waiting = {"reason": "ErrImagePull", "message": "no such image"}
    container = {"name": "spark-kubernetes-driver", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    statuses = {"containerStatuses": [container | {"state": {"waiting": waiting}}]}
    here.client.merge_status("pods", here.name, "again-1-driver", statuses)

    def ended() -> bool:
        assert here.status("backfills", "again").get("lastEnded", {}).get("reason") == "ErrImagePull"
        return "again-1" not in spark.applications(here)

    eventually(ended, timeout_s=PATIENCE_S, what="the application to be deleted")


def test_application_that_no_operator_takes_waits_for_one(site: MakeSite, broker: KafkaBroker, topic: str) -> None:
    here = site("backfill-untaken")
    group(here, broker)
    here.apply(spark.backfill(here.name, deadlines={"startSeconds": 10}))
    spark.wait_phase(here, "Pending", "SparkOperatorNotResponding")


def test_driver_without_progress_is_replaced(site: MakeSite, broker: KafkaBroker, topic: str) -> None:
    here = running(site, broker, "backfill-stalled", deadlines={"progressSeconds": 10}, slice={"maxSeconds": 1})

    def ended() -> bool:
        assert here.status("backfills", "again").get("lastEnded", {}).get("reason") == "NoProgress"
        return spark.applications(here) == []

    eventually(ended, timeout_s=PATIENCE_S, what="the attempt to be ended")
    here.client.merge_status("pods", here.name, "again-1-driver", {"phase": "Failed"})
    spark.wait_attempt(here, 2)


def test_deleted_group_cancels_its_backfill(site: MakeSite, broker: KafkaBroker, topic: str) -> None:
    here = running(site, broker, "backfill-cancelled")
    here.kubectl("delete", "kcg/flights")
    spark.wait_phase(here, "Cancelled", "GroupDeleted")
    eventually(lambda: spark.applications(here) == [], timeout_s=PATIENCE_S, what="the application to be deleted")


def test_all_that_is_made_belongs_to_the_backfill(site: MakeSite, broker: KafkaBroker, topic: str) -> None:
    """So Kubernetes deletes it after the Backfill, which cancels a run that is under way. No finalizer is needed."""
    here = running(site, broker, "backfill-owned")
    body = here.get("backfills", "again")
    assert "finalizers" not in body["metadata"]
    names = {
        "configmaps": ["again-backfill", "again-backfill-handler", "again-control", "again-ledger"],
        "serviceaccounts": ["again-driver"],
        "roles": ["again-driver"],
        "rolebindings": ["again-driver", "again-driver-pods"],
        "sparkapplications": ["again-1"],
    }
    for plural, expected in names.items():
        found = here.every(plural, "consumerfleet.io/backfill=again")
        assert sorted(each["metadata"]["name"] for each in found) == expected
        for each in found:
            (owner,) = each["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["controller"]) == (body["metadata"]["uid"], True)


def test_pods_are_taken_at_the_restricted_level(site: MakeSite, broker: KafkaBroker, topic: str) -> None:
    here = site("backfill-strict")
    here.api.kubectl("label", "namespace", here.name, "pod-security.kubernetes.io/enforce=restricted")
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": here.name}}
    here.apply(account, objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
    template = {
        "spec": {
            "containers": [
                {"name": "worker", "env": [{"name": "REGION", "value": "north"}]},
                {"name": "proxy", "image": "p"},
            ],
            "initContainers": [{"name": "prepare", "image": "p"}],
        }
    }
    here.apply(objects.group(here.name, topics=[topic], template=template))
    claim = {"persistentVolumeClaim": {"claimName": "results"}}
    here.apply(spark.backfill(here.name, sink={"parquet": {"path": "x", "volume": claim}}))
    application = spark.wait_attempt(here, 1)
    spark.make_driver(here, 1)
    spark.make_pod(here, application, "executor")
    driver, executor = (here.get("pods", f"again-1-{role}")["spec"] for role in ("driver", "executor"))
    assert [driver["automountServiceAccountToken"], executor["automountServiceAccountToken"]] == [True, False]
    assert "initContainers" not in driver
    assert [each["name"] for each in executor["initContainers"]] == ["prepare", "proxy"]
    assert {"name": "REGION", "value": "north"} in executor["containers"][0]["env"]
    for spec in (driver, executor):
        (container,) = spec["containers"]
        mounts = {each["mountPath"] for each in container["volumeMounts"]}
        assert {"/etc/consumer-fleet", "/tmp", "/var/lib/consumer-fleet/sink"} <= mounts


def test_finished_backfill_is_deleted_after_its_time(site: MakeSite, broker: KafkaBroker, topic: str) -> None:
    here = site("backfill-ttl")
    group(here, broker)
    here.apply(spark.backfill(here.name, dryRun=True, ttlSecondsAfterFinished=1))
    here.kubectl("wait", "--for=delete", "backfill/again", f"--timeout={PATIENCE_S:.0f}s")


def test_application_of_somebody_else_is_left_alone(site: MakeSite, broker: KafkaBroker, topic: str) -> None:
    here = site("backfill-name-taken")
    group(here, broker)
    size = {"cores": 1, "memory": "512m"}
    spec: JsonObject = {
        "type": "Python",
        "mode": "cluster",
        "sparkVersion": "4.0.0",
        "mainApplicationFile": "local:///x.py",
    }
    spec |= {"driver": size, "executor": size | {"instances": 1}}
    metadata = {"name": "again-1", "namespace": here.name}
    foreign = {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "metadata": metadata}
    here.apply(foreign | {"spec": spec})
    here.apply(spark.backfill(here.name))
    spark.wait_phase(here, "Pending", "RefusedByApiServer")
    assert "ownerReferences" not in here.get("sparkapplications", "again-1")["metadata"]
