"""The topics of a retry flow on a real broker: created, corrected, grown, deleted, or refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from fleet_consumer.contract import naming
from fleet_consumer.contract.managed_topics import WantedTopic
from fleet_operator.api.v1alpha1 import ConsumerGroup
from fleet_operator.observe.kafka_admin import TopicChanges
from fleet_operator.planning.observation import ClusterObservation
from fleet_operator.planning.retry.intent import PolicyRevision, RetryIntent
from fleet_operator.planning.retry.topics import TopicsPlan, plan_topics
from tests.broker.members import Member, create_topic, grow_topic, settings, unique
from tests.observe.polls import PATIENCE_S, Watcher, commit, watching, write
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually
from tests.unit.planning.builders import consumer_group

pytestmark = pytest.mark.together

SOURCE_PARTITIONS = 2


def intent(*delays: str, drained_delays: tuple[str, ...] = ()) -> RetryIntent:
    revision = PolicyRevision(hash="a" * 10, content={"sequence": list(delays)})
    return RetryIntent(policy="standard", wanted=revision, delays=delays, drained_delays=drained_delays)


@dataclass
class Keeper:
    """The topics of one group, kept as the operator keeps them: poll, plan, act, poll again."""

    group: ConsumerGroup
    source: str
    watcher: Watcher

    def plan(self, intended: RetryIntent) -> TopicsPlan:
        seen: ClusterObservation = self.watcher.poll()
        counts = {self.source: seen.topics[self.source].partitions}
        return plan_topics(self.group, intended, counts, seen)

    def act(self, plan: TopicsPlan) -> TopicChanges:
        retry_group = naming.retry_group(self.group.group_id)
        done = self.watcher.admin.change_topics(plan, retry_group=retry_group)
        self.watcher.part.flow.invalidate_topics(done.changed)
        return done

    def converge(self, intended: RetryIntent) -> TopicsPlan:
        """Act until nothing is left to do; return the last plan."""

        def settled() -> TopicsPlan | None:
            plan = self.plan(intended)
            if plan.idle and plan.ready:
                return plan
            done = self.act(plan)
            assert done.refusals == []
            return None

        plan = eventually(settled, timeout_s=PATIENCE_S, what="the topics to be as wanted")
        assert plan is not None
        return plan

    def await_setting(self, topic: str, name: str, value: str) -> None:
        """Wait until the operator sees a setting that another client has changed; a minute would do too."""

        def noticed() -> bool:
            self.watcher.part.flow.invalidate_topics([topic])
            self.watcher.poll()
            return (self.watcher.part.flow.settings.known(topic) or {}).get(name) == value

        eventually(noticed, timeout_s=PATIENCE_S, what=f"{name}={value} to be noticed")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def keeper(
    stack: ExitStack,
    broker: KafkaBroker,
    *delays: str,
    group_id: str | None = None,
    deletion: str = "Drain",
    **topics: Any,
) -> Keeper:
    """A group with its own source topic; `delays` are observed, drained ones too."""
    source = create_topic(broker.bootstrap, SOURCE_PARTITIONS)
    group = consumer_group(
        groupId=group_id or unique("group"),
        topics=[source],
        retry={"policyRef": {"name": "standard"}},
        managedTopics=topics,
        deletion={"retryTopics": deletion},
    )
    watcher = stack.enter_context(watching(broker.bootstrap, group.group_id, source, delays))
    eventually(
        lambda: (
            watcher.poll().topics[source].partitions == SOURCE_PARTITIONS and watcher.flow().source_max_message_bytes
        ),
        timeout_s=PATIENCE_S,
        what="the source topic to be seen",
    )
    return Keeper(group, source, watcher)


def settings_of(broker: KafkaBroker, topic: str) -> dict[str, str]:
    """The settings of a topic, by another client."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (answer,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in answer.result(PATIENCE_S).items()}


def change(broker: KafkaBroker, topic: str, name: str, value: str) -> None:
    """Change a topic's setting by another client."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
    ).values():
        done.result(PATIENCE_S)


def partitions_of(broker: KafkaBroker, topic: str) -> int | None:
    """The number of partitions of a topic, by another client; None if there is no such topic."""
    found = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=PATIENCE_S).topics
    return len(found[topic].partitions) if topic in found else None


def await_partitions(broker: KafkaBroker, topic: str, count: int | None) -> None:
    """Wait until another client sees a topic with so many partitions, or no topic."""
    eventually(lambda: partitions_of(broker, topic) == count, timeout_s=PATIENCE_S, what=f"{topic}: {count} partitions")


def test_topics_are_made_with_the_settings_that_due_times_and_sizes_need(broker: KafkaBroker, stack: ExitStack) -> None:
    here = keeper(stack, broker, "5s", "30s", failedRetentionSeconds=3600)
    change(broker, here.source, "max.message.bytes", "2000000")
    here.await_setting(here.source, "max.message.bytes", "2000000")
    here.converge(intent("5s", "30s"))
    group_id = here.group.group_id
    hours = {
        naming.retry_topic(group_id, "5s"): 30 * 24,
        naming.retry_topic(group_id, "30s"): 30 * 24,
        naming.redrive_topic(group_id): 30 * 24,
        naming.failed_topic(group_id): 1,
    }
    here.watcher.await_topics(list(hours)[:-1])
    for topic, retention in hours.items():
        await_partitions(broker, topic, SOURCE_PARTITIONS)
        found = settings_of(broker, topic)
        assert found["message.timestamp.type"] == "LogAppendTime"
        assert found["cleanup.policy"] == "delete"
        headers = 131_072 if topic == naming.failed_topic(group_id) else 65_536
        assert found["max.message.bytes"] == str(2_000_000 + headers)
        assert found["retention.ms"] == str(retention * 3_600_000)


def test_drift_is_corrected_and_foreign_settings_stay(broker: KafkaBroker, stack: ExitStack) -> None:
    here = keeper(stack, broker, "5s")
    here.converge(intent("5s"))
    topic = naming.retry_topic(here.group.group_id, "5s")
    change(broker, topic, "cleanup.policy", "compact")
    change(broker, topic, "segment.bytes", "12345678")
    change(broker, here.source, "max.message.bytes", "3000000")
    here.await_setting(topic, "cleanup.policy", "compact")
    here.await_setting(here.source, "max.message.bytes", "3000000")
    here.converge(intent("5s"))
    found = settings_of(broker, topic)
    assert (found["cleanup.policy"], found["segment.bytes"]) == ("delete", "12345678")
    assert found["max.message.bytes"] == str(3_000_000 + 65_536)


def test_suspended_group_keeps_what_waits_until_it_is_handled(broker: KafkaBroker, stack: ExitStack) -> None:
    here = keeper(stack, broker, "5s", "30s")
    here.converge(intent("5s", "30s"))
    short, long = (naming.retry_topic(here.group.group_id, delay) for delay in ("5s", "30s"))
    usual = settings_of(broker, short)["retention.ms"]
    write(broker.bootstrap, short, 0, 2)
    here.group = here.group.model_copy(update={"spec": here.group.spec.model_copy(update={"suspend": True})})

    def kept(count: int, retention: str) -> bool:
        here.converge(intent("5s", "30s"))
        seen = here.watcher.known().topics[short]
        found = [settings_of(broker, topic)["retention.ms"] for topic in (short, long)]
        return (seen.waiting, found) == (count, [retention, usual])

    eventually(lambda: kept(2, "-1"), timeout_s=PATIENCE_S, what="retention to be lifted")
    commit(broker.bootstrap, naming.retry_group(here.group.group_id), {(short, 0): 2})
    eventually(lambda: kept(0, usual), timeout_s=PATIENCE_S, what="the limit to return")


def test_topics_grow_with_their_source(broker: KafkaBroker, stack: ExitStack) -> None:
    here = keeper(stack, broker, "5s")
    here.converge(intent("5s"))
    grow_topic(broker.bootstrap, here.source, 5)
    eventually(
        lambda: here.watcher.poll().topics[here.source].partitions == 5, timeout_s=PATIENCE_S, what="the source to grow"
    )
    here.converge(intent("5s"))
    for topic in (naming.retry_topic(here.group.group_id, "5s"), naming.failed_topic(here.group.group_id)):
        await_partitions(broker, topic, 5)


def test_retired_topic_is_deleted_when_it_is_drained_and_not_before(broker: KafkaBroker, stack: ExitStack) -> None:
    here = keeper(stack, broker, "5s", "30s")
    here.converge(intent("5s", "30s"))
    group_id = here.group.group_id
    drained_delays = naming.retry_topic(group_id, "30s")
    write(broker.bootstrap, drained_delays, 0, 3)
    intended = intent("5s", drained_delays=("30s",))
    assert here.watcher.known().topics[drained_delays].waiting == 3
    assert here.plan(intended).idle
    commit(broker.bootstrap, naming.retry_group(group_id), {(drained_delays, 0): 3})
    plan = here.plan(intended)
    assert plan.delete == (drained_delays,)
    assert here.act(plan).deleted == [drained_delays]
    await_partitions(broker, drained_delays, None)
    here.converge(intended)


def test_record_written_after_the_poll_saves_its_topic(broker: KafkaBroker, stack: ExitStack) -> None:
    """The plan is old; the live state decides."""
    here = keeper(stack, broker, "5s", "30s")
    here.converge(intent("5s", "30s"))
    drained_delays = naming.retry_topic(here.group.group_id, "30s")
    assert here.watcher.known().topics[drained_delays].waiting == 0
    plan = here.plan(intent("5s", drained_delays=("30s",)))
    assert plan.delete == (drained_delays,)
    write(broker.bootstrap, drained_delays, 1, 1)
    assert here.act(plan) == TopicChanges()
    await_partitions(broker, drained_delays, SOURCE_PARTITIONS)


def test_retired_topic_stays_where_topics_are_kept(broker: KafkaBroker, stack: ExitStack) -> None:
    here = keeper(stack, broker, "5s", "30s", deletion="Keep")
    here.converge(intent("5s", "30s"))
    assert here.converge(intent("5s", drained_delays=("30s",))).delete == ()


def test_name_that_differs_only_in_dots_is_refused_with_the_remedy(broker: KafkaBroker, stack: ExitStack) -> None:
    name = unique("team.orders")
    keeper(stack, broker, "5s", group_id=name).converge(intent("5s"))
    other = keeper(stack, broker, "5s", group_id=name.replace(".", "_"))
    done = other.act(other.plan(intent("5s")))
    assert {refusal.reason for refusal in done.refusals} == {"TopicNameCollides"}
    assert done.made == []


def test_more_replicas_than_brokers_are_refused_with_a_reason(broker: KafkaBroker, stack: ExitStack) -> None:
    here = keeper(stack, broker, "5s", replicationFactor=3)
    done = here.act(here.plan(intent("5s")))
    assert {refusal.reason for refusal in done.refusals} == {"NotEnoughBrokers"}


def test_waiting_records_are_counted_live_and_deleted_with_their_topics(broker: KafkaBroker, stack: ExitStack) -> None:
    """The needs of a ConsumerGroup's deletion: counts, topics, groups."""
    here = keeper(stack, broker, "5s")
    here.converge(intent("5s"))
    group_id = here.group.group_id
    retry, failed, retry_group = naming.retry_topic(group_id, "5s"), naming.failed_topic(group_id), f"{group_id}.retry"
    write(broker.bootstrap, retry, 0, 5)
    write(broker.bootstrap, failed, 1, 2)
    commit(broker.bootstrap, retry_group, {(retry, 0): 4})
    assert here.watcher.admin.read_waiting(retry_group, [retry, "absent"]) == {retry: 1}
    assert here.watcher.admin.count_records(failed) == 2
    assert here.watcher.admin.count_records("absent") == 0
    assert here.watcher.admin.delete_topics([retry, "absent"]) == []
    await_partitions(broker, retry, None)
    assert here.watcher.admin.delete_groups([retry_group, "absent"]) == []
    listed = AdminClient({"bootstrap.servers": broker.bootstrap}).list_consumer_groups().result(PATIENCE_S)
    assert retry_group not in {found.group_id for found in listed.valid}


def test_group_with_members_is_not_deleted(broker: KafkaBroker, stack: ExitStack) -> None:
    here = keeper(stack, broker, "5s")
    busy = unique("busy")
    with Member(settings(broker.bootstrap, busy), [here.source]) as member:
        eventually(lambda: member.owned, timeout_s=PATIENCE_S, what="an assignment")
        (refusal,) = here.watcher.admin.delete_groups([busy])
        assert (refusal.subject, refusal.reason) == (busy, "NonEmptyGroup")


def test_topic_that_is_made_meanwhile_is_as_good(broker: KafkaBroker, stack: ExitStack) -> None:
    here = keeper(stack, broker, "5s")
    plan = here.plan(intent("5s"))
    assert here.act(plan).refusals == here.act(plan).refusals == []
    wanted = WantedTopic(name=naming.failed_topic(here.group.group_id), partitions=SOURCE_PARTITIONS + 1)
    await_partitions(broker, wanted.name, SOURCE_PARTITIONS)
    grown = here.act(TopicsPlan(grow=(wanted,)))
    await_partitions(broker, wanted.name, SOURCE_PARTITIONS + 1)
    assert (grown.grown, here.act(TopicsPlan(grow=(wanted,))).grown) == ([wanted.name], [])
