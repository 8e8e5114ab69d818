"""Kafka work of a reconcile, through the observer's own thread: topics, refusals, and their reports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from fleet_consumer.clock import SystemClock
from fleet_consumer.contract import naming
from fleet_consumer.net import SaslSettings
from fleet_operator.api.v1alpha1 import ConsumerGroup
from fleet_operator.observe.observer_pool import ObserverPool
from fleet_operator.observe.subscriptions import GroupSubscription, ObserverSettings, retry_subscription
from fleet_operator.planning.fleet.blocking import cluster_not_found
from fleet_operator.planning.fleet.parts import MAIN, RETRY, FleetPart
from fleet_operator.planning.observation import last_known
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import PolicyRevision, RetryIntent
from fleet_operator.planning.retry.topics import view_group
from fleet_operator.reconcilers.consumergroup.gather import Gathered
from fleet_operator.reconcilers.consumergroup.kafka_side import KafkaSide
from fleet_operator.reconcilers.consumergroup.session import GroupSession, new_session
from fleet_operator.runtime.background import PAUSE_SECONDS, Tasks
from fleet_operator.runtime.events import EventRecorder
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.store import Store
from tests.broker.members import create_topic, delete_topic, unique
from tests.support.clock import StillClock
from tests.support.kafka import KafkaBroker
from tests.support.waiting import eventually_async
from tests.unit.planning.builders import UID, consumer_group
from tests.unit.runtime.memory_kube import MemoryKube

CLUSTER = ("shop", "main")
PATIENCE_S = 240.0
SEQUENCE = ("5s", "30s")
INTENT = RetryIntent(
    policy="standard", wanted=PolicyRevision(hash="a" * 10, content={"sequence": list(SEQUENCE)}), delays=SEQUENCE
)


class Ear:
    """Nothing waits for events here: the tests poll themselves."""

    def cluster_changed(self, cluster: object) -> None:
        assert cluster == CLUSTER

    def group_changed(self, group: object, *, urgent: bool) -> None:
        assert group

    def cluster_polled(self, cluster: object, observation: object, seconds: float) -> None:
        assert seconds >= 0


class Seen(NamedTuple):
    """A visit: whether all topics are as wanted, and why not if that is known."""

    ready: bool | None
    topic_problem: Problem | None


@dataclass
class Side:
    """The Kafka side of one ConsumerGroup, reconciled as often as a test needs."""

    group: ConsumerGroup
    kafka: KafkaSide
    session: GroupSession
    observers: ObserverPool
    clock: StillClock
    recorder: EventRecorder
    intent: RetryIntent | None = INTENT
    events: list[str] = field(default_factory=list)

    def reconcile(self) -> Seen:
        """One visit, and what status gets of it. The pause between two attempts is over at once."""
        self.clock.now += PAUSE_SECONDS + 1
        body: dict[str, Any] = {
            "apiVersion": "consumerfleet.io/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": self.group.metadata.name, "namespace": "shop", "uid": UID},
            "spec": {"clusterRef": {"name": "main"}},
        }
        gathered = Gathered(
            body=body,
            group=self.group,
            cluster=cluster_not_found(*CLUSTER),
            observation=self.observers.latest(CLUSTER),
            handler_files=None,
            older=None,
            parts={part: FleetPart(part=part) for part in (MAIN, RETRY)},
            checks=(),
            config_maps=(),
            worker_reports=(),
        )
        view = view_group(self.group, gathered.observation, self.intent)
        shown = view_group(self.group, last_known(gathered.observation, self.group.group_id), self.intent)
        self.kafka.keep_topics(self.session, gathered, view.topics)
        return Seen(view.topics.ready, shown.topics.problem or self.session.findings.topic_refusal)

    def rights(self) -> tuple[bool | None, bool | None]:
        """The rights to be a member of the main and of the retry group."""
        seen = self.observers.latest(CLUSTER)
        group = seen.groups.get(self.group.group_id) if seen is not None else None
        return (group.may_read, group.retry.may_read if group.retry else None) if group is not None else (None, None)

    async def until_ready(self) -> None:
        async def ready() -> bool:
            seen = self.reconcile()
            return bool(seen.ready) and seen.topic_problem is None

        await eventually_async(ready, timeout_s=PATIENCE_S, what="all topics to be as wanted")

    async def until_problem(self) -> Problem:
        async def reported() -> Problem | None:
            return self.reconcile().topic_problem

        problem = await eventually_async(reported, timeout_s=PATIENCE_S, what="a problem to be reported")
        assert problem is not None
        return problem


@asynccontextmanager
async def side(settings: ObserverSettings, source: str, group_id: str, **topics: Any) -> AsyncIterator[Side]:
    group = consumer_group(
        groupId=group_id,
        topics=[source],
        retry={"policyRef": {"name": "standard"}},
        managedTopics=topics,
        deletion={"retryTopics": "Drain"},
    )
    clock, kube = StillClock(), MemoryKube()
    recorder = EventRecorder(kube, SystemClock(), Metrics(), instance="operator")
    observers = ObserverPool(SystemClock(), Ear())
    kafka = KafkaSide(Store(kube, clock, ()), recorder, observers)
    tasks = Tasks()
    session = new_session(("shop", group.metadata.name), clock, tasks, lambda: None)
    subscription = GroupSubscription(
        group_id=group_id,
        topics=(source,),
        failed_topic=naming.failed_topic(group_id),
        retry=retry_subscription(group_id, SEQUENCE),
    )
    observers.watch(("shop", group.metadata.name), CLUSTER, subscription)
    observers.ensure(CLUSTER, settings)
    try:
        yield Side(group, kafka, session, observers, clock, recorder)
    finally:
        await tasks.close()
        await kafka.creations.close()
        await observers.close()


def plain(broker: KafkaBroker) -> ObserverSettings:
    return ObserverSettings(bootstrap_servers=(broker.bootstrap,), interval_seconds=1.0)


async def test_topics_are_created_while_reconciles_continue(broker: KafkaBroker) -> None:
    source, group_id = create_topic(broker.bootstrap, 2), unique("group")
    async with side(plain(broker), source, group_id) as here:
        await here.until_ready()
        seen = here.observers.latest(CLUSTER)
        assert seen
        flow = seen.groups[group_id].retry
        assert flow
        assert set(flow.topics) == {
            *(naming.retry_topic(group_id, delay) for delay in SEQUENCE),
            naming.redrive_topic(group_id),
            naming.failed_topic(group_id),
        }
        assert {topic.partitions for topic in flow.topics.values()} == {2}


async def test_collision_of_names_is_reported_with_its_remedy_and_resolves(broker: KafkaBroker) -> None:
    """Kafka takes '.' and '_' for the same in its metrics and refuses a topic that differs only in them."""
    source, group_id = create_topic(broker.bootstrap, 1), unique("team.orders")
    rival = naming.retry_topic(group_id.replace(".", "_"), "30s")
    create_topic(broker.bootstrap, 1, rival)
    async with side(plain(broker), source, group_id) as here:
        problem = await here.until_problem()
        assert problem.reason == "TopicNameCollides"
        assert naming.retry_topic(group_id, "30s") in problem.message
        assert "spec.groupId" in problem.message
        delete_topic(broker.bootstrap, rival)
        await here.until_ready()


async def test_more_replicas_than_brokers_is_reported_with_its_remedy(broker: KafkaBroker) -> None:
    source, group_id = create_topic(broker.bootstrap, 1), unique("group")
    async with side(plain(broker), source, group_id, replicationFactor=3) as here:
        problem = await here.until_problem()
        assert problem.reason == "NotEnoughBrokers"
        assert "spec.managedTopics.replicationFactor" in problem.message


async def test_missing_rights_are_reported_with_the_rights_to_grant() -> None:
    """The operator may do nothing at all, and then describe everything and create nothing."""
    acls = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaBroker(properties=acls, sasl_users={"operator": "secret"}) as broker:
        sasl = SaslSettings(mechanism="PLAIN", username="operator", password="secret")
        settings = ObserverSettings(bootstrap_servers=(broker.sasl_bootstrap,), interval_seconds=1.0, sasl=sasl)
        async with side(settings, "orders", unique("group")) as here:

            async def refused() -> bool:
                return here.rights() == (False, False)

            # Without any ACL the brokers do not even name the coordinators.
            await eventually_async(refused, timeout_s=PATIENCE_S, what="a login that has no right")
        grant(broker, AclOperation.DESCRIBE, ResourceType.TOPIC)
        grant(broker, AclOperation.DESCRIBE, ResourceType.GROUP)
        grant(broker, AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
        source, group_id = create_topic(broker.bootstrap, 1), unique("group")
        async with side(settings, source, group_id) as here:
            problem = await here.until_problem()
            assert problem.reason == "AuthorizationFailed"
            assert "begin with _fleet." in problem.message
            grant(broker, AclOperation.CREATE, ResourceType.TOPIC, prefix="_fleet.")
            await here.until_ready()
            # Neither group exists: a claim on one in another namespace rests on the right alone.
            assert here.rights() == (False, False)
            grant(broker, AclOperation.READ, ResourceType.GROUP, prefix=group_id)

            async def may_read() -> bool:
                return here.rights() == (True, True)

            await eventually_async(may_read, timeout_s=PATIENCE_S, what="the right to read")


def grant(broker: KafkaBroker, operation: AclOperation, kind: ResourceType, *, prefix: str = "") -> None:
    """Grant the operator's user an operation on all resources of a kind, or on those that begin with `prefix`."""
    pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
    binding = AclBinding(kind, prefix or "*", pattern, "User:operator", "*", operation, AclPermissionType.ALLOW)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.create_acls([binding]).values():
        done.result(PATIENCE_S)
