"""A group with retries on a real API server and a real broker: topics, policies, retry workers, edits of the policy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from fleet_consumer.contract.policies import parse_policies
from tests.apiserver import objects
from tests.apiserver.conftest import PARTITIONS, PATIENCE_S, Site
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.support.writing import SureProducer

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.together]

MakeSite = Callable[..., Site]


def start_fleet(here: Site, broker: KafkaBroker, *sequence: str, **spec: Any) -> None:
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
    here.apply(objects.policy(here.name, *sequence))
    here.apply(objects.group(here.name, **{"retry": objects.retry(), **spec}))


def policies_of(here: Site) -> dict[str, Any]:
    """The policies that workers get; raises NotFoundError (an AssertionError) before they exist."""
    found = here.get("configmaps", "flights-fleet-retry")
    policies: dict[str, Any] = json.loads(found["data"]["policies.json"])
    return policies


def state_of(here: Site) -> dict[str, Any]:
    """The retries part of the group's state; raises NotFoundError before it remembers anything."""
    state: dict[str, Any] = here.get("operatorstates", "flights.consumergroup")["data"]["retries"]
    return state


def topics_of(here: Site, broker: KafkaBroker) -> set[str]:
    """The managed topics of the fleet, by purpose."""
    prefix = f"_fleet.{here.name}.flights."
    known = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=20).topics
    return {name.removeprefix(prefix) for name in known if name.startswith(prefix)}


def wait_topics(here: Site, broker: KafkaBroker, wanted: set[str]) -> None:
    """Wait until the fleet's managed topics are exactly these."""

    def seen() -> bool:
        assert topics_of(here, broker) == wanted, topics_of(here, broker)
        return True

    eventually(seen, timeout_s=PATIENCE_S, what=f"topics {sorted(wanted)}")


def follow(here: Site, attempts: int) -> bool:
    """Return whether new failures follow the policy's newest revision, and it has so many attempts."""
    policies = policies_of(here)
    current = policies["current"]
    newest = here.status("retrypolicies", "standard").get("revision")
    return current == newest and len(policies["revisions"][current]["sequence"]) == attempts


def produce(broker: KafkaBroker, topic: str, count: int = 1) -> None:
    """Write records to partition 0 and the next ones."""
    producer = SureProducer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce(topic, f"{number}".encode(), partition=number % PARTITIONS)
    assert producer.flush(20) == 0


def wait_event(here: Site, reason: str, words: str) -> None:
    """Wait until an Event for this reason contains this text."""

    def posted() -> bool:
        notes = [item["note"] for item in here.every("events", "") if item["reason"] == reason]
        assert [note for note in notes if words in note], notes
        return True

    eventually(posted, timeout_s=PATIENCE_S, what=f"an Event {reason}: {words}")


def replicas_of(here: Site, name: str) -> int:
    return int(here.get("statefulsets", name)["spec"]["replicas"])


def test_fleet_with_retries_has_every_child(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("retry")
    start_fleet(here, broker, "5s", "60s", "5s", deletion={})
    owner = here.wait_ready_replicas(1)
    eventually(
        lambda: replicas_of(here, "flights-fleet-retry") == 1, timeout_s=PATIENCE_S, what="a worker for the 5 s delay"
    )
    for kind in ("statefulsets", "services"):
        here.wait_names(kind, "flights-fleet", "flights-fleet-retry")
    assert here.names("poddisruptionbudgets") == [], "one worker needs none"
    for kind in ("statefulsets", "services", "configmaps"):
        for child in here.every(kind):
            (reference,) = child["metadata"]["ownerReferences"]
            assert (reference["uid"], reference["controller"]) == (owner["metadata"]["uid"], True)
    main, retry = (
        here.get("statefulsets", name)["spec"]["template"] for name in ("flights-fleet", "flights-fleet-retry")
    )
    (main_worker,), (retry_worker,) = main["spec"]["containers"], retry["spec"]["containers"]
    assert retry_worker["args"] == [*main_worker["args"], "--role", "retry"]
    assert retry_worker["volumeMounts"] == main_worker["volumeMounts"]
    assert {"name": "consumer-fleet-retry", "mountPath": "/etc/fleet/retry", "readOnly": True} in main_worker[
        "volumeMounts"
    ]
    assert retry["metadata"]["labels"]["app.kubernetes.io/component"] == "retry"


def test_workers_get_a_policy_they_can_parse(site: MakeSite, broker: KafkaBroker) -> None:
    """The workers' own parser reads the operator's file; the topics exist by then."""
    here = site("retry")
    start_fleet(here, broker, "5s", "60s", "5s")
    policies = parse_policies(eventually(lambda: policies_of(here), timeout_s=PATIENCE_S, what="policies"))
    assert policies.newest.sequence == (5, 60, 5)
    assert policies.newest.label == f"standard@{here.get('retrypolicies', 'standard')['status']['revision']}"
    assert (policies.delays, policies.partitions) == (("5s", "1m"), 6)
    assert topics_of(here, broker) == {"retry.5s", "retry.1m", "redrive", "failed"}


def test_waiting_records_wake_the_retry_workers_before_they_are_due(site: MakeSite, broker: KafkaBroker) -> None:
    """With one record due in an hour no worker runs. With another due within a minute one does."""
    here = site("retry")
    start_fleet(here, broker, "40s", "1h")
    here.wait_ready_replicas(1)
    eventually(
        lambda: replicas_of(here, "flights-fleet-retry") == 0, timeout_s=PATIENCE_S, what="retry workers, asleep"
    )
    produce(broker, f"_fleet.{here.name}.flights.retry.1h")

    def next_due() -> str:
        return str(here.status("consumergroups", "flights").get("retry", {}).get("nextDueAt") or "")

    eventually(next_due, timeout_s=PATIENCE_S, what="the next due time")
    assert replicas_of(here, "flights-fleet-retry") == 0
    produce(broker, f"_fleet.{here.name}.flights.retry.40s")
    eventually(lambda: replicas_of(here, "flights-fleet-retry") == 1, timeout_s=PATIENCE_S, what="a retry worker")
    assert state_of(here)["sizing"]["count"] == 1
    assert replicas_of(here, "flights-fleet") == 1


def test_suspended_fleet_keeps_what_waits_and_tells_what_was_lost(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("retry")
    start_fleet(here, broker, "1h")
    wait_topics(here, broker, {"retry.1h", "redrive", "failed"})
    topic = f"_fleet.{here.name}.flights.retry.1h"
    produce(broker, topic, 4)
    commit(broker, f"{here.name}.flights.retry", topic, 0)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.delete_records([TopicPartition(topic, 0, 1)]).values():
        done.result(20)
    here.apply(objects.group(here.name, retry=objects.retry(), suspend=True))
    here.wait_condition("consumergroups", "flights", "RetriesKept", status="True", reason="KeptWithoutLimit")
    (answer,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    assert answer.result(20)["retention.ms"].value == "-1"

    def counted() -> bool:
        retry = here.status("consumergroups", "flights")["retry"]
        ends = [{"topic": topic, "partition": 0, "offset": 1}]
        return (retry.get("expired"), retry.get("expiredTo"), "safeUntil" in retry) == (1, ends, False)

    eventually(counted, timeout_s=PATIENCE_S, what="one record to be counted as expired")
    wait_event(here, "RetriesExpired", "and are lost: 1, 1 in all")


def test_edit_of_the_policy_reaches_running_pods_without_a_restart(site: MakeSite, broker: KafkaBroker) -> None:
    """Both revisions are published while something waits; the pods are annotated, so that kubelets update at once."""
    here = site("retry")
    start_fleet(here, broker, "5s", "1h")
    here.wait_ready_replicas(1)
    before = policies_of(here)
    (pod,) = here.every("pods", "app.kubernetes.io/component=worker")
    produce(broker, f"_fleet.{here.name}.flights.retry.1h")
    for sequence in (("5s", "5s", "2h"), ("30m",)):
        here.apply(objects.policy(here.name, *sequence))
        eventually(partial(follow, here, len(sequence)), timeout_s=PATIENCE_S, what="the edit to be published")
    after = policies_of(here)
    newest = here.get("retrypolicies", "standard")["status"]["revision"]
    assert (after["current"], after["delays"]) == (newest, ["5s", "30m", "1h", "2h"])
    assert sorted(len(revision["sequence"]) for revision in after["revisions"].values()) == [1, 2, 3]
    assert before["revisions"].items() <= after["revisions"].items()
    assert topics_of(here, broker) == {"retry.5s", "retry.30m", "retry.1h", "retry.2h", "redrive", "failed"}
    assert set(state_of(here)["superseded"]) == set(after["revisions"]) - {newest}

    def touched() -> str:
        (now,) = here.every("pods", "app.kubernetes.io/component=worker")
        assert now["metadata"]["uid"] == pod["metadata"]["uid"], "the pod was replaced"
        return str(now["metadata"]["annotations"].get("consumerfleet.io/retry-policies", ""))

    eventually(touched, timeout_s=PATIENCE_S, what="the pod to be touched")
    records = (f"standard-{revision}" for revision in after["revisions"])
    here.wait_names("configmaps", *records, selector="consumerfleet.io/retry-policy=standard")


def test_group_waits_for_its_policy_and_keeps_the_last_good_one(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("retry")
    here.apply(objects.handler_source(here.name), objects.cluster(here.name, broker.bootstrap))
    here.apply(objects.group(here.name, retry=objects.retry()))
    found = here.wait_condition("consumergroups", "flights", "Ready", status="False", reason="RetryPolicyNotFound")
    assert "RetryPolicy 'standard' does not exist in namespace" in found["message"]
    assert here.names("statefulsets") == []
    here.apply(objects.policy(here.name, "5s"))
    here.wait_ready_replicas(1)
    here.wait_condition("consumergroups", "flights", "Degraded", status="False", reason="AsWanted")
    current = policies_of(here)["current"]
    here.apply(objects.policy(here.name, *(f"{n}s" for n in range(1, 20))))
    found = here.wait_condition("consumergroups", "flights", "Degraded", status="True", reason="TooManyDelays")
    assert f"workers keep policy revision {current}" in found["message"]
    here.kubectl("delete", "krp/standard")
    here.wait_condition("consumergroups", "flights", "Degraded", status="True", reason="RetryPolicyNotFound")
    assert policies_of(here)["current"] == current
    assert replicas_of(here, "flights-fleet") == 1


def test_group_that_is_called_like_anothers_retries_waits(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("retry")
    start_fleet(here, broker, "5s", group_id=f"{here.name}.a")
    here.wait_ready_replicas(1)
    here.apply(objects.group(here.name, name="later", group_id=f"{here.name}.a.retry"))
    found = here.wait_condition("consumergroups", "later", "Ready", status="False", reason="GroupIdTaken")
    assert f"Kafka group '{here.name}.a.retry' belongs to ConsumerGroup {here.name}/flights" in found["message"]
    here.wait_names("statefulsets", "flights-fleet", "flights-fleet-retry")


def waits(here: Site) -> bool:
    """Return whether the operator has seen a waiting record."""
    return bool(here.status("consumergroups", "flights").get("retry", {}).get("waiting"))


def minutes_ago(minutes: int) -> float:
    return time.time() - 60 * minutes


def remember(here: Site, **times: Any) -> None:
    """Set back times in the group's state, so that minutes pass at once."""
    patch = json.dumps({"data": {"retries": times}})
    here.kubectl("patch", "operatorstates/flights.consumergroup", "--type=merge", "-p", patch)


def commit(broker: KafkaBroker, group_id: str, topic: str, offset: int) -> None:
    """Commit for partition 0 from outside; the group must have no members."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group_id})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_topic_of_a_removed_delay_drains_and_then_goes(site: MakeSite, broker: KafkaBroker) -> None:
    here = site("retry")
    start_fleet(here, broker, "5s", "1h", deletion={"retryTopics": "Drain"})
    here.wait_ready_replicas(1)
    first = policies_of(here)["current"]
    produce(broker, f"_fleet.{here.name}.flights.retry.1h")
    here.apply(objects.policy(here.name, "5s"))
    eventually(partial(follow, here, 1), timeout_s=PATIENCE_S, what="the edit to be published")
    eventually(partial(waits, here), timeout_s=PATIENCE_S, what="the record to be seen")
    remember(here, superseded={first: minutes_ago(10)})
    here.apply(objects.policy(here.name, "5s", "5s"))
    eventually(partial(follow, here, 2), timeout_s=PATIENCE_S, what="another edit to be published")
    assert first in policies_of(here)["revisions"], "a record waits under it"
    assert "retry.1h" in topics_of(here, broker)
    commit(broker, f"{here.name}.flights.retry", f"_fleet.{here.name}.flights.retry.1h", 1)
    eventually(lambda: first not in policies_of(here)["revisions"], timeout_s=60, what="the revision to be forgotten")
    eventually(lambda: policies_of(here)["delays"] == ["5s"], timeout_s=PATIENCE_S, what="the delay to be read no more")
    wait_topics(here, broker, {"retry.5s", "redrive", "failed"})


def test_retry_workers_stay_after_removed_retries_until_nothing_waits(site: MakeSite, broker: KafkaBroker) -> None:
    """Without spec.retry the main workers change at once; the retry workers stay until they are drained."""
    here = site("retry")
    start_fleet(here, broker, "5s", "1h")
    here.wait_ready_replicas(1)
    before = eventually(
        lambda: here.get("statefulsets", "flights-fleet-retry"), timeout_s=PATIENCE_S, what="retry workers"
    )
    produce(broker, f"_fleet.{here.name}.flights.retry.1h")
    here.apply(objects.group(here.name))

    def rolled() -> bool:
        volumes = here.get("statefulsets", "flights-fleet")["spec"]["template"]["spec"]["volumes"]
        return not [volume for volume in volumes if volume["name"] == "consumer-fleet-retry"]

    eventually(rolled, timeout_s=PATIENCE_S, what="main workers without retries")
    eventually(lambda: "ending_since" in state_of(here), timeout_s=PATIENCE_S, what="the end of retries to be noted")
    eventually(partial(waits, here), timeout_s=PATIENCE_S, what="the record to be seen")
    remember(here, ending_since=minutes_ago(10))
    assert here.get("statefulsets", "flights-fleet-retry")["spec"]["template"] == before["spec"]["template"]
    revision = before["metadata"]["annotations"]["consumerfleet.io/revision"]
    assert f"flights-fleet-{revision}" in here.names("configmaps"), "its settings are still mounted"
    commit(broker, f"{here.name}.flights.retry", f"_fleet.{here.name}.flights.retry.1h", 1)
    for kind in ("statefulsets", "services"):
        here.wait_names(kind, "flights-fleet")
