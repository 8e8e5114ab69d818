"""`__consumer_offsets` in polls and in changes: every broker is asked, and a missing answer is unknown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from fleet_consumer.net import Disconnected
from fleet_consumer.wire.admin import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    IncrementalAlterConfigsRequest,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import DescribedGroup, DescribedGroupMember
from fleet_consumer.wire.message import Request
from fleet_consumer.wire.topics import MetadataResponse
from fleet_operator.observe import aggregation
from fleet_operator.observe.kafka_admin import KafkaAdmin
from fleet_operator.observe.poll import Poll
from fleet_operator.observe.poll_memory import ClusterMemory, PartMemory
from fleet_operator.observe.subscriptions import CLIENT_ID, GroupSubscription
from fleet_operator.planning.observation import BrokerSettings, ClusterObservation
from tests.support.clock import StillClock
from tests.unit.observe.scripted_cluster import ScriptedCluster
from tests.unit.planning.builders import kafka_cluster

OFFSETS = "__consumer_offsets"
TOLD = {
    "offsets.topic.num.partitions": "6",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.segment.bytes": "1048576",
    "offsets.retention.minutes": "10080",
}


@dataclass
class Sight:
    """Polls of three brokers, one after the other."""

    cluster: ScriptedCluster
    clock: StillClock = field(default_factory=StillClock)
    memory: ClusterMemory = field(default_factory=ClusterMemory)
    part: PartMemory = field(default_factory=PartMemory)
    last: ClusterObservation | None = None
    awaits: bool = False

    def poll(self, after_s: float = 5.0) -> ClusterObservation:
        self.clock.now += after_s
        self.last = Poll(
            client=cast(Any, self.cluster),
            clock=self.clock,
            subscriptions={"orders": GroupSubscription(group_id="orders", topics=("orders",))},
            last=self.last,
            cluster=self.memory,
            part=self.part,
            stopping=lambda: False,
            awaits_offsets_topic=self.awaits,
        ).run()
        return self.last


def three(*, made: bool = True, **settings: Any) -> ScriptedCluster:
    logs: dict[tuple[str, int], list[int]] = {("orders", 0): []}
    logs |= {(OFFSETS, number): [] for number in range(6)} if made else {}
    return ScriptedCluster(3, logs, configs=dict(TOLD), **settings)


def test_each_broker_speaks_for_itself_and_a_silent_one_is_unknown() -> None:
    cluster = three(broker_configs={2: {"offsets.topic.num.partitions": "7", "offsets.retention.minutes": "60"}})
    sight = Sight(cluster)
    cluster.silent.add(2)
    seen = sight.poll()
    assert seen.broker_settings.keys() == {0, 1}
    assert seen.offsets_retention_s is None, "the group's coordinator may be the one that was not heard"
    cluster.silent.clear()
    seen = sight.poll()
    assert {node: settings.partitions for node, settings in seen.broker_settings.items()} == {0: 6, 1: 6, 2: 7}
    assert seen.offsets_retention_s == 3600.0, "the shortest of all"
    cluster.silent.add(2)
    assert sight.poll(after_s=400.0).broker_settings[2].partitions == 7, "an answer of before is kept"
    cluster.nodes = 2
    assert sight.poll(after_s=400.0).broker_settings.keys() == {0, 1}, "a broker that is gone has no settings"


def test_broker_that_lists_no_groups_keeps_its_number_and_makes_the_sum_unknown() -> None:
    cluster = three(other_listed={0: 4, 1: 3, 2: 2})
    sight = Sight(cluster)
    seen = sight.poll()
    assert (seen.group_count, dict(seen.groups_per_coordinator)) == (9, {0: 4, 1: 3, 2: 2})
    cluster.silent.add(2)
    cluster.other_listed[0] = 5
    seen = sight.poll()
    assert (seen.group_count, seen.silent_brokers) == (None, (2,))
    assert dict(seen.groups_per_coordinator) == {0: 5, 1: 3, 2: 2}
    cluster.silent.clear()
    cluster.nodes = 2
    seen = sight.poll()
    assert (seen.group_count, dict(seen.groups_per_coordinator)) == (8, {0: 5, 1: 3})


def test_no_coordinator_is_asked_for_while_the_operator_has_yet_to_create_the_topic() -> None:
    cluster = three(made=False)
    sight = Sight(cluster, awaits=True)
    asked = list[str]()

    def find(group_ids: Any, *, timeout_s: float) -> Any:
        asked.extend(group_ids)
        return ScriptedCluster.find_coordinators(cluster, group_ids, timeout_s=timeout_s)

    cluster.find_coordinators = find  # type: ignore[method-assign]
    seen = sight.poll()
    assert asked == []
    assert seen.lacks_offsets_topic
    assert seen.groups["orders"].error == "OffsetsTopicAbsent"
    cluster.logs |= {(OFFSETS, number): [] for number in range(6)}
    seen = sight.poll()
    assert asked == ["orders"]
    assert seen.offsets_topic is not None
    assert seen.offsets_topic.leaders == (0, 1, 2, 0, 1, 2)
    assert seen.groups["orders"].error is None


def test_visit_of_the_operator_is_no_member() -> None:
    def described(*clients: str, state: str = "PreparingRebalance") -> DescribedGroup:
        members = tuple(
            DescribedGroupMember(
                member_id=f"{client}-1", client_id=client, client_host="/h", member_metadata=b"", member_assignment=b""
            )
            for client in clients
        )
        return DescribedGroup(
            error_code=0, group_id="g", group_state=state, protocol_type="consumer", protocol_data="", members=members
        )

    assert aggregation.mirror(described(CLIENT_ID)) == ("Empty", ())
    state, members = aggregation.mirror(described(CLIENT_ID, "worker"))
    assert (state, [member.client_id for member in members]) == ("PreparingRebalance", ["worker"])
    assert aggregation.mirror(described(state="Empty")) == ("Empty", ())


class Changing:
    """The brokers of a scripted cluster for changes; `changed` has the requests that change something."""

    def __init__(self, cluster: ScriptedCluster, *, code: int = 0) -> None:
        self.cluster, self.code = cluster, code
        self.changed = list[Request[Any]]()

    @property
    def brokers(self) -> Any:
        return self.cluster.brokers

    def metadata(self, topics: Any = (), *, timeout_s: float) -> MetadataResponse:
        return self.cluster.metadata(topics, timeout_s=timeout_s)

    def call(self, address: Any, request: Request[Any], *, timeout_s: float) -> Any:
        if isinstance(request, CreateTopicsRequest | IncrementalAlterConfigsRequest):
            self.changed.append(request)
            (topic,) = cast(CreateTopicsRequest, request).topics
            result = CreatableTopicResult(name=topic.name, error_code=self.code, error_message="no")
            return CreateTopicsResponse(throttle_time_ms=0, topics=(result,))
        call = self.cluster.send(address or self.cluster.brokers[0], request, timeout_s=timeout_s)
        return call.response


PROVISION = kafka_cluster(offsetsTopic={"manage": "Provision"}).spec.offsets_topic


def test_change_is_decided_again_from_what_every_broker_says_then() -> None:
    client = Changing(three(made=False))
    done = KafkaAdmin(cast(Any, client)).provision_offsets_topic(PROVISION)
    assert done.changed == (OFFSETS,)
    (request,) = client.changed
    (topic,) = cast(CreateTopicsRequest, request).topics
    assert (topic.num_partitions, topic.replication_factor) == (6, 1)
    for cluster in (three(), three(made=False, broker_configs={2: {"offsets.topic.num.partitions": "7"}})):
        client = Changing(cluster)
        assert KafkaAdmin(cast(Any, client)).provision_offsets_topic(PROVISION).changed == ()
        assert client.changed == []


def test_nothing_is_created_while_one_broker_does_not_answer() -> None:
    client = Changing(three(made=False, silent={2}))
    with pytest.raises(Disconnected):
        KafkaAdmin(cast(Any, client)).provision_offsets_topic(PROVISION)
    assert client.changed == []


@pytest.mark.parametrize(("code", "refusals"), [(ErrorCode.TOPIC_ALREADY_EXISTS, []), (29, ["AuthorizationFailed"])])
def test_topic_that_another_has_made_meanwhile_is_as_good(code: int, refusals: list[str]) -> None:
    client = Changing(three(made=False), code=code)
    done = KafkaAdmin(cast(Any, client)).provision_offsets_topic(PROVISION)
    assert [refusal.reason for refusal in done.refusals] == refusals


def test_settings_that_are_no_numbers_are_unknown() -> None:
    cluster = three()
    cluster.configs["offsets.topic.num.partitions"] = "many"
    assert Sight(cluster).poll().broker_settings[0] == BrokerSettings(
        partitions=None, replication_factor=1, segment_bytes=1_048_576, retention_s=604_800.0
    )


def test_settings_of_a_topic_that_was_just_changed_are_read_again() -> None:
    cluster = three()
    cluster.configs["cleanup.policy"] = "delete"
    sight = Sight(cluster)

    def policy() -> str | None:
        seen = sight.poll().offsets_topic
        assert seen is not None
        return seen.cleanup_policy

    assert policy() == "delete"
    cluster.configs["cleanup.policy"] = "compact"
    assert policy() == "delete", "read every five minutes"
    sight.memory.configs.topic = None
    assert policy() == "compact"
