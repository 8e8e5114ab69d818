"""Offsets of a group and its partitions, read while records go on arriving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast
from uuid import UUID

from fleet_consumer.net import BrokerAddress, NetworkClient
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from fleet_consumer.wire.message import Request
from fleet_consumer.wire.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from fleet_consumer.wire.schema import ZERO_UUID
from fleet_consumer.wire.topics import ListOffsetsRequest, MetadataResponse
from fleet_operator.api.v1alpha1.offsetreset import OffsetResetSpec
from fleet_operator.observe.live_reads import commit, read_group, read_topic
from fleet_operator.observe.subscriptions import GroupSubscription
from fleet_operator.planning.backfill.ranges import RangeQuestion
from fleet_operator.planning.offsets.targets import Targets, find_targets, time_ms
from tests.unit.observe.scripted_cluster import ScriptedCluster
from tests.unit.observe.watched import Watched

TIME = OffsetResetSpec.model_validate({"groupRef": {"name": "orders"}, "to": "Time", "time": "2026-11-23T08:00:00Z"})
ORDERS = "orders", 0


class BusyCluster(ScriptedCluster):
    """A record of a later time arrives right behind each answer about offsets."""

    def call(self, address: BrokerAddress, request: Request[Any], *, timeout_s: float) -> Any:
        answer = self.send(address, request, timeout_s=timeout_s).response
        if isinstance(request, ListOffsetsRequest):
            self.logs[ORDERS].append(later())
        return answer


class TypedCluster(ScriptedCluster):
    """All groups are of the new protocol."""

    def call(self, address: BrokerAddress, request: Request[Any], *, timeout_s: float) -> Any:
        match request:
            case DescribeGroupsRequest():
                dead = partial(DescribedGroup, error_code=ErrorCode.GROUP_ID_NOT_FOUND, group_state="Dead", members=())
                groups = tuple(dead(group_id=name, protocol_type="", protocol_data="") for name in request.groups)
                return DescribeGroupsResponse(groups=groups)
            case ListGroupsRequest():
                stable = partial(ListedGroup, protocol_type="consumer", group_state="Stable", group_type="Consumer")
                return ListGroupsResponse(error_code=0, groups=tuple(stable(group_id=name) for name in self.commits))
            case _:
                return self.send(address, request, timeout_s=timeout_s).response


class IdentifiedCluster(BusyCluster):
    """The cluster and its topics have ids."""

    topic_id = UUID(int=7)

    def metadata(self, topics: Sequence[str] | None = (), *, timeout_s: float) -> MetadataResponse:
        answer = super().metadata(topics, timeout_s=timeout_s)
        return replace(
            answer,
            cluster_id="cluster-a",
            topics=tuple(replace(each, topic_id=self.topic_id) for each in answer.topics),
        )


def later() -> int:
    at = time_ms(TIME)
    assert at is not None
    return at + 10


def test_reset_to_a_time_passes_over_no_record_that_arrives_while_it_is_read() -> None:
    cluster = BusyCluster(nodes=1, logs={ORDERS: [later() - 5000]}, commits={"orders": {ORDERS: 0}})
    read = read_group(cast("NetworkClient", cluster), "orders", ("orders",), time_ms(TIME), read_committed=False)
    found = find_targets(TIME, ("orders",), read)
    assert isinstance(found, Targets)
    assert found.offsets == {ORDERS: 1}, "the first record of a later time"


def test_group_whose_description_says_dead_is_looked_up_by_its_type() -> None:
    """A broker describes a group of the new protocol as it does one that does not exist."""
    cluster = TypedCluster(nodes=1, logs={ORDERS: [1]}, commits={"orders": {ORDERS: 0}})
    read = read_group(cast("NetworkClient", cluster), "orders", ("orders",), None, read_committed=False)
    assert (read.state, read.group_type) == ("Stable", "consumer")


def test_offsets_of_a_range_are_read_with_the_names_of_their_cluster_and_topic() -> None:
    cluster = IdentifiedCluster(nodes=1, logs={ORDERS: [1, 2]}, commits={})
    found = read_topic(cast("NetworkClient", cluster), RangeQuestion(topic="orders", read_committed=False))
    assert (found.cluster_id, found.topic_id) == ("cluster-a", str(UUID(int=7)))
    cluster.topic_id = ZERO_UUID
    found = read_topic(cast("NetworkClient", cluster), RangeQuestion(topic="orders", read_committed=False))
    assert found.topic_id is None, "brokers before 2.8 have none"


class ForgetfulCluster(ScriptedCluster):
    """A coordinator that answers of the first partition only."""

    def call(self, address: BrokerAddress, request: Request[Any], *, timeout_s: float) -> Any:
        if isinstance(request, OffsetCommitRequest):
            stored = OffsetCommitResponsePartition(partition_index=0, error_code=0)
            return OffsetCommitResponse(topics=(OffsetCommitResponseTopic(name="orders", partitions=(stored,)),))
        return self.send(address, request, timeout_s=timeout_s).response


def test_partition_that_an_answer_to_a_reset_leaves_out_does_not_count_as_set() -> None:
    cluster = ForgetfulCluster(nodes=1, logs={ORDERS: [1]}, commits={"orders": {}})
    refused = commit(cast("NetworkClient", cluster), "orders", {("orders", 0): 1, ("orders", 1): 1, ("more", 0): 5}, "")
    assert refused == {("orders", 1): "Unanswered", ("more", 0): "Unanswered"}


def test_commits_in_a_topic_that_the_asked_broker_does_not_know_are_seen() -> None:
    """A request for no partitions is answered with no commits, as if the group had none."""
    cluster = ScriptedCluster(1, {("payments", 0): []}, commits={"orders": {ORDERS: 77}})
    watched = Watched(cluster, {"orders": GroupSubscription(group_id="orders", topics=("orders",))})
    assert dict(watched.group("orders").committed) == {ORDERS: 77}
    cluster.logs[ORDERS] = [0] * 100
    assert dict(watched.group("orders").committed) == {ORDERS: 77}
