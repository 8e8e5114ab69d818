"""A Redrive's needs, its objects, the parsing of its runs, and its status."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.contract.redrive_config import parse_config
from fleet_consumer.redrive.selection import matches
from fleet_operator.api.v1alpha1 import ConsumerGroup, KafkaCluster, Redrive
from fleet_operator.planning import times
from fleet_operator.planning.fleet.blocking import cluster_not_found
from fleet_operator.planning.observation import ClusterObservation, ManagedTopic, RetryObservation, TopicObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.redrive import manifests as redrive_manifests
from fleet_operator.planning.redrive.manifests import CLOCKS_S
from fleet_operator.planning.redrive.phase import (
    JobReport,
    RedriveFacts,
    RedriveProgress,
    RunPod,
    Target,
    at_work,
    find_obstacle,
    find_refusal,
    read_progress,
    read_run_pods,
    target_of,
)
from fleet_operator.planning.redrive.status import project_redrive_status
from fleet_operator.planning.run import (
    UNREADABLE_RATE,
    Act,
    JobFacts,
    ReferencedGroup,
    RunDecision,
    RunState,
    read_job,
    renew_final_status,
)
from tests.unit.planning import builders
from tests.unit.planning.redrive.test_phase import redrive
from tests.unit.redrive.documents import failed

NOW = builders.NOW
TARGET = Target(partitions=6, max_message_bytes=1_114_124)
PAUSED = {"consumerfleet.io/paused": "true"}
SASL = {"mechanism": "SCRAM-SHA-512", "secretRef": {"name": "login"}}


def group(**spec: Any) -> ConsumerGroup:
    return builders.consumer_group(**({"retry": {"policyRef": {"name": "standard"}}} | spec))


def seen(**topics: str | None) -> ClusterObservation:
    """A cluster with the failed and the redrive topic, each with an error or none."""
    flow = {"failed": None, "redrive": None} | topics
    observed = {f"_fleet.orders.{kind}": TopicObservation(partitions=6, error=error) for kind, error in flow.items()}
    retry = RetryObservation(observed_at=NOW, source_max_message_bytes=2_000_000)
    return builders.observation(builders.observed_group(retry=retry), topics=observed)


def found(
    of: ConsumerGroup | None, cluster: KafkaCluster | Problem | None, observed: ClusterObservation | None
) -> ReferencedGroup:
    return ReferencedGroup(group=of, cluster=cluster, seen=observed)


def test_missing_prerequisites_are_named_in_order() -> None:
    cluster, wanted = builders.kafka_cluster(), redrive()
    absent = cluster_not_found("shop", "main")
    unlabelled = builders.unreachable("SecretNotLabelled")
    away = replace(seen(), reachable=False, reason="BrokerUnreachable", message="kafka:9092 does not answer")
    for problem, reason in (
        (find_obstacle(wanted, found(None, None, None)), "GroupNotFound"),
        (find_obstacle(wanted, found(builders.consumer_group(), cluster, seen())), "RetryNotConfigured"),
        (find_obstacle(wanted, found(group(), cluster, replace(seen(), current=False))), "NotYetObserved"),
        (
            find_obstacle(wanted, found(group(), cluster, unlabelled)),
            "SecretNotLabelled",
        ),
        (find_obstacle(wanted, found(group(suspend=True), absent, None)), "GroupSuspended"),
        (find_obstacle(wanted, found(group(annotations=PAUSED), absent, None)), "PausedByAnnotation"),
        (find_obstacle(redrive(dryRun=True), found(group(annotations=PAUSED), cluster, seen())), "PausedByAnnotation"),
        (find_obstacle(wanted, found(group(), absent, None)), "ClusterNotFound"),
        (find_obstacle(wanted, found(group(), cluster, None)), "NotYetObserved"),
        (find_obstacle(wanted, found(group(), cluster, away)), "BrokerUnreachable"),
        (find_obstacle(wanted, found(group(), cluster, seen(redrive="TopicNotFound"))), "TopicsNotReady"),
        (find_obstacle(wanted, found(group(), cluster, replace(seen(), topics={}))), "TopicsNotReady"),
    ):
        assert problem is not None
        assert problem.reason == reason
        assert problem.message
    assert find_obstacle(wanted, found(group(), cluster, seen())) is None


def test_dry_run_needs_no_retry_workers() -> None:
    counting = redrive(dryRun=True)
    assert find_obstacle(counting, found(group(suspend=True), builders.kafka_cluster(), seen())) is None


def test_target_is_the_redrive_topic_with_room_for_headers() -> None:
    assert target_of(group(), seen()) == Target(partitions=6, max_message_bytes=2_000_000 + 65_536)
    observed = seen().groups["orders"]
    assert observed.retry is not None
    topics = {"_fleet.orders.redrive": ManagedTopic(partitions=6, configs={"max.message.bytes": "5000000"})}
    raised = replace(observed, retry=replace(observed.retry, topics=topics))
    found = target_of(group(), replace(seen(), groups={"orders": raised}))
    assert found.max_message_bytes == 5_000_000, "it was made when the source took more"
    blind = replace(seen(), groups={})
    assert target_of(group(), blind).max_message_bytes == 1_048_588 + 65_536


@pytest.mark.parametrize("text", ["(?=a)a", "(", "(a)\\1"])
def test_pattern_that_re2_does_not_take_is_refused(text: str) -> None:
    """Matched in a run's loop, it would stop the run indefinitely."""
    for field in ("errorRegex", "keyRegex"):
        found = find_refusal(redrive(filter={field: text}))
        assert found is not None
        assert field in found.message
    assert find_refusal(redrive(filter={"errorRegex": "^shop\\.Refused: .*stock"})) is None


def test_time_that_is_none_is_refused() -> None:
    found = find_refusal(redrive(filter={"fromTime": "yesterday"}))
    assert found is not None
    assert "fromTime" in found.message
    assert find_refusal(redrive(filter={"fromTime": "2026-01-31T12:00:00Z"})) is None


END_MS = round((NOW + CLOCKS_S) * 1000)


def settings_of(wanted: Redrive, *, now: float = NOW, target: Target = TARGET) -> dict[str, Any]:
    return redrive_manifests.redrive_config(wanted, group(), builders.kafka_cluster(), target, run_id="r1", now=now)


def test_records_that_failed_after_the_first_start_are_none_of_a_later_one() -> None:
    """Kafka has forgotten the ends that the first start recorded: only the settings have the time."""
    first = settings_of(redrive())["filter"]["toTime"]
    month = NOW + 30 * 86_400
    again = redrive(status={"startedAt": times.to_text(NOW)}, rate={"recordsPerSecond": 1})
    assert (first, settings_of(again, now=month)["filter"]["toTime"]) == (END_MS, END_MS)
    wanted = parse_config(settings_of(again, now=month)).filter
    assert [matches(wanted, failed(0, at=at)) for at in (END_MS - 1, END_MS)] == [True, False]


def test_earlier_end_of_a_filter_stays() -> None:
    early = redrive(filter={"toTime": "1970-01-01T00:00:09Z"})
    assert settings_of(early)["filter"]["toTime"] == 9_000
    late = redrive(filter={"toTime": "2100-01-01T00:00:00Z"})
    assert settings_of(late)["filter"]["toTime"] == END_MS


def test_times_of_the_writers_own_clocks_end_no_run() -> None:
    """A failed topic that the operator may not change to LogAppendTime: a fast clock would leave out a record."""
    observed = seen().groups["orders"]
    assert observed.retry is not None
    for kind, trusted in (("CreateTime", False), ("LogAppendTime", True)):
        topics = {"_fleet.orders.failed": ManagedTopic(partitions=6, configs={"message.timestamp.type": kind})}
        found = replace(observed, retry=replace(observed.retry, topics=topics))
        target = target_of(group(), replace(seen(), groups={"orders": found}))
        assert target.append_times is trusted
    blind = replace(TARGET, append_times=False)
    assert settings_of(redrive(), target=blind)["filter"]["toTime"] is None


def test_settings_of_a_run() -> None:
    chosen = {"reasons": ["Fatal"], "keyRegex": "^eu-", "fromTime": "1970-01-01T00:00:01.5Z"}
    wanted = redrive(filter=chosen, rate={"recordsPerSecond": 7}, maxRecords=9, dryRun=True, maxRedrives=2)
    found = settings_of(wanted)
    assert found == {
        "version": 1,
        "id": "r1",
        "name": "fixed",
        "namespace": "shop",
        "groupId": "orders",
        "connection": {"bootstrapServers": ["kafka:9092"], "tls": None, "sasl": None},
        "filter": {"reasons": ["fatal"], "errorRegex": None, "keyRegex": "^eu-", "fromTime": 1500, "toTime": END_MS},
        "recordsPerSecond": 7,
        "maxRecords": 9,
        "dryRun": True,
        "maxRedrives": 2,
        "partitions": 6,
        "maxMessageBytes": 1_114_124,
        "log": {"level": "Info", "format": "Json"},
    }


def test_run_writes_with_the_properties_of_the_groups_producers() -> None:
    """Without any there is no such field: a group's own image may be of a version that does not know it."""
    fleet = group(producer={"properties": {"linger.ms": "50"}})
    found = redrive_manifests.redrive_config(redrive(), fleet, builders.kafka_cluster(), TARGET, run_id="r1", now=NOW)
    assert found["producer"] == {"properties": {"linger.ms": "50"}}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"filter": {"reasons": ["Fatal"], "errorRegex": "^a", "keyRegex": "b", "toTime": "2026-01-31T12:00:00Z"}},
        {"rate": {"recordsPerSecond": 7}, "maxRecords": 9, "dryRun": True, "maxRedrives": 2},
        {"records": [{"partition": 3, "offset": 17}, {"partition": 3, "offset": 18}]},
    ],
)
def test_run_parses_the_rendered_settings(spec: dict[str, Any]) -> None:
    """Both sides of the contract; whatever one side adds alone fails here."""
    wanted = redrive(**spec)
    cluster = builders.kafka_cluster(sasl=SASL)
    found = parse_config(redrive_manifests.redrive_config(wanted, group(), cluster, TARGET, run_id="r1", now=NOW))
    assert (found.id, found.group_id, found.name, found.namespace) == ("r1", "orders", "fixed", "shop")
    assert (found.dry_run, found.max_records) == (wanted.spec.dry_run, wanted.spec.max_records)
    assert (found.records_per_second, found.max_redrives) == (wanted.rate, wanted.spec.max_redrives)


def job_of(**spec: Any) -> dict[str, Any]:
    cluster = builders.kafka_cluster(sasl=SASL)
    return redrive_manifests.job(redrive(rate={"recordsPerSecond": 7}), group(**spec), cluster, image="worker:1")


def test_pod_of_a_run_is_the_workers_pod_with_another_command() -> None:
    worker = {"name": "worker", "env": [{"name": "HTTPS_PROXY", "value": "p"}]}
    first, side = {"name": "first", "image": "i"}, {"name": "side", "image": "i"}
    wanted = {"containers": [worker, side], "initContainers": [first], "nodeSelector": {"disk": "fast"}}
    pod = job_of(template={"spec": wanted})["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (container["image"], container["command"]) == ("worker:1", ["fleet-consumer"])
    assert container["args"] == ["redrive", "--config", "/etc/consumer-fleet/redrive.json"]
    assert not {"startupProbe", "livenessProbe", "readinessProbe", "ports"} & set(container)
    assert container["env"][0] == {"name": "HTTPS_PROXY", "value": "p"}
    assert (pod["nodeSelector"], pod["restartPolicy"]) == ({"disk": "fast"}, "Never")
    assert "initContainers" not in pod
    sources = pod["volumes"][0]["projected"]["sources"]
    assert sources[0]["configMap"]["name"] == "fixed-redrive"
    assert [source["secret"]["name"] for source in sources[1:]] == ["login"]


def test_run_that_cannot_succeed_is_not_tried_again() -> None:
    spec = job_of()["spec"]
    evicted, settings = spec["podFailurePolicy"]["rules"]
    assert (evicted["action"], settings["action"]) == ("Ignore", "FailJob")
    assert settings["onExitCodes"] == {"containerName": "worker", "operator": "In", "values": [20]}
    assert spec["podReplacementPolicy"] == "Failed", "two runs at once would move records twice"
    assert spec["ttlSecondsAfterFinished"] == 86_400


def test_children_belong_to_the_redrive_and_are_found_by_their_group() -> None:
    made = [job_of(), redrive_manifests.config_map(redrive(), {"a": 1})]
    for body in made:
        assert body["metadata"]["name"] == "fixed-redrive"
        (owner,) = body["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Redrive", "r1", True)
        assert body["metadata"]["labels"]["consumerfleet.io/group"] == "orders"
        assert body["metadata"]["labels"]["consumerfleet.io/redrive"] == "fixed"
        assert body["metadata"]["labels"]["app.kubernetes.io/component"] == "redrive"
    assert job_of()["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"] == "redrive"
    assert read_job(job_of()) == JobFacts(state=RunState.ACTIVE, rate=7)


def test_job_is_read_as_its_controller_left_it() -> None:
    def condition(kind: str) -> dict[str, Any]:
        return {"status": {"conditions": [{"type": kind, "status": "True", "reason": "BackoffLimitExceeded"}]}}

    base = {"metadata": {"annotations": {"consumerfleet.io/records-per-second": "unlimited"}}, "spec": {}}
    assert read_job(None) is None
    assert read_job(base) == JobFacts(state=RunState.ACTIVE)
    assert read_job(base | condition("Complete")) == JobFacts(state=RunState.COMPLETE)
    failed = read_job(base | condition("Failed"))
    assert failed is not None
    assert failed.problem is not None
    assert (failed.state, failed.problem.reason) == (RunState.FAILED, "BackoffLimitExceeded")
    suspended = read_job(base | {"spec": {"suspend": True}})
    assert suspended == JobFacts(state=RunState.SUSPENDED)
    damaged = read_job({"metadata": {"annotations": {"consumerfleet.io/records-per-second": "soon"}}})
    assert damaged == JobFacts(state=RunState.ACTIVE, rate=UNREADABLE_RATE)


def pod(name: str, phase: str, *, job: str = "j1", **container: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "creationTimestamp": f"2026-01-01T00:00:0{name}Z",
        "ownerReferences": [{"kind": "Job", "uid": job}],
    }
    return {"metadata": metadata, "status": {"phase": phase, "containerStatuses": [{"state": container}]}}


def test_pods_are_read_in_the_order_of_their_making() -> None:
    word = 'log line\n{"ok": true, "selected": 5, "moved": 4, "guarded": 1}\n'
    found = read_run_pods(
        [
            pod("3", "Pending", waiting={"reason": "ErrImagePull", "message": "gone"}),
            pod("2", "Succeeded", terminated={"message": word}),
            pod("1", "Failed", terminated={"message": "Killed"}),
            pod("4", "Succeeded", job="another", terminated={"message": word}),
        ],
        job_uid="j1",
    )
    assert [run.name for run in found] == ["1", "2", "3", "4"]
    assert [run.report for run in found] == [
        None,
        JobReport(ok=True, counts=RedriveProgress(selected=5, moved=4, guarded=1)),
        None,
        None,
    ]
    assert found[2].waiting is not None
    assert found[2].waiting.reason == "ErrImagePull"
    facts = RedriveFacts(redrive=redrive(), pods=found)
    assert facts.report == JobReport(ok=True, counts=RedriveProgress(selected=5, moved=4, guarded=1))


def test_possible_writers_are_found_from_jobs_and_pods() -> None:
    def labelled(body: dict[str, Any], name: str) -> dict[str, Any]:
        metadata = {"name": f"{name}-redrive", "labels": {"consumerfleet.io/redrive": name}}
        return body | {"metadata": metadata | body.get("metadata", {}) | {"labels": metadata["labels"]}}

    done = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    jobs = [labelled({}, "runs"), labelled(done, "done"), labelled({"spec": {"suspend": True}}, "held")]
    assert at_work(jobs, []) == ("runs",)
    copied = labelled({"metadata": {"name": "copy"}}, "runs")
    assert at_work([copied], []) == (), "a Job of another name is no run's"
    worker = pod("1", "Running")
    pods = [worker, labelled(pod("2", "Failed"), "done"), labelled(pod("3", "Running"), "ending")]
    assert at_work([], pods) == ("ending",), "workers are no run, and a pod may outlive its Job"
    stray = labelled(pod("4", "Running"), "ghost")
    del stray["metadata"]["ownerReferences"]
    assert at_work([], [stray]) == (), "no Job has made it"
    stray["metadata"]["labels"]["batch.kubernetes.io/job-name"] = "ghost-redrive"
    assert at_work([], [stray]) == ("ghost",), "a pod that was made by a Job may lose its owner"


@given(st.text() | st.binary().map(repr) | st.recursive(st.integers() | st.text(), st.lists).map(json.dumps))
def test_foreign_offset_metadata_is_not_progress(text: str) -> None:
    found = read_progress([(3, text)])
    assert found is None or found == RedriveProgress(selected=0, moved=0, guarded=0, remaining=0)


def test_progress_is_the_sum_of_all_partitions() -> None:
    metadata = '{"v":1,"end":10,"selected":3,"moved":2,"guarded":1}'
    negative = '{"v":1,"end":4,"selected":-3,"moved":true,"guarded":null}'
    found = read_progress([(4, metadata), (5, negative)])
    assert found == RedriveProgress(selected=3, moved=2, guarded=1, remaining=6)
    assert read_progress([(4, metadata + "\0")]) is not None, "as librdkafka commits it"
    assert read_progress([]) is None


def status(facts: RedriveFacts, decision: RunDecision, progress: RedriveProgress | None = None) -> dict[str, Any]:
    return project_redrive_status(facts, decision, progress, None, NOW)


RUNNING = RunDecision("Running", "Running", "moving failed records")
HALF = RedriveProgress(selected=5, moved=4, guarded=1, remaining=10)


def test_status_follows_the_counts_and_never_takes_one_back() -> None:
    first = status(RedriveFacts(redrive=redrive()), RUNNING)
    assert (first["phase"], "selected" in first) == ("Running", False)
    second = status(RedriveFacts(redrive=redrive(status=first)), RUNNING, HALF)
    assert [second[name] for name in ("selected", "moved", "guarded", "remaining")] == [5, 4, 1, 10]
    stale = status(RedriveFacts(redrive=redrive(status=second)), RUNNING, replace(HALF, moved=1))
    assert stale["moved"] == 4
    blind = status(RedriveFacts(redrive=redrive(status=second)), RUNNING)
    assert blind == second
    word = RunPod(
        name="a", ended=True, report=JobReport(ok=True, counts=RedriveProgress(selected=9, moved=8, guarded=1))
    )
    facts = RedriveFacts(redrive=redrive(status=second), pods=(word,))
    last = status(facts, RunDecision("Succeeded", "AllMoved", "all was moved"))
    assert [last[name] for name in ("selected", "moved", "guarded", "remaining")] == [9, 8, 1, 0]
    assert last["ratePerSecond"] == 8
    assert last["startedAt"] == first["startedAt"]
    assert {c["type"]: c["status"] for c in last["conditions"]} == {
        "Ready": "True",
        "Complete": "True",
        "Failed": "False",
    }


CREATED = replace(RUNNING, act=Act.CREATE)
DONE = RunDecision("Succeeded", "AllMoved", "all was moved")


def test_redriven_count_of_a_run_belongs_to_the_topic_before_its_first_job() -> None:
    first = status(RedriveFacts(redrive=redrive(), failed_topic_id="first"), CREATED)
    assert first["failedTopicId"] == "first"
    again = status(RedriveFacts(redrive=redrive(status=first), failed_topic_id="made-again"), CREATED)
    assert again["failedTopicId"] == "first"
    word = RunPod(name="a", ended=True, report=JobReport(ok=True, redriven_to=70))
    last = status(RedriveFacts(redrive=redrive(status=again), failed_topic_id="made-again", pods=(word,)), DONE)
    assert (last["failedTopicId"], last["redrivenTo"]) == ("first", 70)


def test_run_without_a_known_topic_id_reports_nothing_about_a_later_topic() -> None:
    """The operator died between the Job and the status: what it sees now may have been created again since."""
    job = JobFacts(state=RunState.ACTIVE)
    assert "failedTopicId" not in status(RedriveFacts(redrive=redrive(), failed_topic_id="later", job=job), RUNNING)


def test_a_run_of_an_earlier_version_finds_nothing_put_back() -> None:
    word = RunPod(name="a", ended=True, report=JobReport(ok=True, counts=RedriveProgress(moved=8)))
    assert "redrivenTo" not in status(RedriveFacts(redrive=redrive(), pods=(word,)), DONE)


def test_edited_redrive_that_has_ended_stays_ended() -> None:
    ended = status(RedriveFacts(redrive=redrive()), RunDecision("Succeeded", "AllMoved", "all was moved"))
    renewed = renew_final_status(ended, 7)
    assert renewed["observedGeneration"] == 7
    assert {c["observedGeneration"] for c in renewed["conditions"]} == {7}
    assert renewed["finishedAt"] == ended["finishedAt"]
