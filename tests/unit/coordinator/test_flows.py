"""Flows: driven without blocking, parked while their target is unknown, cancelled when nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fleet_consumer.coordinator.flows import (
    Ask,
    AskAll,
    BrokerUnknown,
    Flow,
    FlowRunner,
    Pause,
    SuspectCoordinator,
    Ticket,
    Where,
)
from fleet_consumer.coordinator.lookups import RETRY_MAX_S, Start
from fleet_consumer.coordinator.requests import fetch_committed, list_offsets
from fleet_consumer.coordinator.starts import ResetPolicy, StartQuery, find_starts
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.net import Disconnected
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.offsets import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from fleet_consumer.wire.topics import (
    EARLIEST,
    LATEST,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class Lab:
    """A runner whose brokers are the test. `known` says which targets can be reached."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[tuple[Ask, Callable[[Any], None]]] = []
        self.known: set[object] = {Where.ANY, Where.COORDINATOR, 1, 2}
        self.suspicions = 0
        self.ended = 0
        self.runner = FlowRunner(self._send, self._suspect)

    def _send(self, ask: Ask, on_answer: Callable[[Any], None]) -> bool:
        if ask.where not in self.known:
            return False
        self.sent.append((ask, on_answer))
        return True

    def _suspect(self) -> None:
        self.suspicions += 1

    def _count(self) -> None:
        self.ended += 1

    def start(self, flow: Flow[Any]) -> Ticket[Any]:
        ticket: Ticket[Any] = Ticket()
        self.runner.start(flow, ticket, self._count, self.now)
        return ticket

    def answer(self, *answers: Any) -> None:
        """Answer all that was sent, in order, and go on."""
        assert len(answers) == len(self.sent)
        sent, self.sent = self.sent, []
        for (_, on_answer), answer in zip(sent, answers, strict=True):
            on_answer(answer)
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.runner.advance(self.now)


def committed_answer(
    offsets: dict[int, int], code: int = 0, group_code: int = 0, *, epoch: int = 3
) -> OffsetFetchResponse:
    parts = tuple(
        OffsetFetchResponsePartitions(
            partition_index=number, committed_offset=offset, committed_leader_epoch=epoch, metadata="m", error_code=code
        )
        for number, offset in offsets.items()
    )
    group = OffsetFetchResponseGroup(
        group_id="g", topics=(OffsetFetchResponseTopics(name="t", partitions=parts),), error_code=group_code
    )
    return OffsetFetchResponse(groups=(group,))


def metadata_answer(leaders: dict[int, int], code: int = 0) -> MetadataResponse:
    parts = tuple(
        MetadataResponsePartition(
            error_code=0, partition_index=number, leader_id=leader, replica_nodes=(), isr_nodes=()
        )
        for number, leader in leaders.items()
    )
    brokers = tuple(MetadataResponseBroker(node_id=node, host="b", port=9092) for node in (1, 2))
    return MetadataResponse(
        brokers=brokers, topics=(MetadataResponseTopic(error_code=code, name="t", partitions=parts),)
    )


def offsets_answer(found: dict[int, int], code: int = 0) -> ListOffsetsResponse:
    parts = tuple(
        ListOffsetsPartitionResponse(partition_index=number, error_code=code, offset=offset, leader_epoch=5)
        for number, offset in found.items()
    )
    return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=parts),))


def requests(lab: Lab) -> list[Any]:
    return [ask.request for ask, _ in lab.sent]


def asked_times(lab: Lab) -> dict[int, int]:
    return {
        part.partition_index: part.timestamp
        for request in requests(lab)
        for topic in request.topics
        for part in topic.partitions
    }


def test_committed_offsets_come_with_epoch_and_none_where_there_is_none() -> None:
    lab = Lab()
    ticket = lab.start(fetch_committed("g", (ONE, OTHER)))
    assert lab.sent[0][0].where is Where.COORDINATOR
    assert requests(lab)[0].require_stable
    lab.answer(committed_answer({0: 42, 1: -1}))
    assert ticket.result == {ONE: OffsetAndMetadata(42, 3, "m"), OTHER: None}
    assert lab.ended == 1


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_broker_that_is_not_coordinator_is_looked_up_again_and_the_request_repeated(code: int) -> None:
    lab = Lab()
    ticket = lab.start(fetch_committed("g", (ONE,)))
    lab.answer(committed_answer({}, group_code=code))
    assert (lab.suspicions, lab.sent) == (1, [])
    lab.advance(0.3)
    lab.answer(committed_answer({0: 1}))
    assert ticket.done


@pytest.mark.parametrize("code", [ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_retriable_errors_are_waited_for(code: int) -> None:
    lab = Lab()
    ticket = lab.start(fetch_committed("g", (ONE,)))
    lab.answer(committed_answer({0: -1}, code=code))
    assert lab.suspicions == 0
    lab.advance(0.5)
    lab.answer(Disconnected("gone"))
    assert lab.suspicions == 1
    lab.advance(0.5)
    lab.answer(committed_answer({0: 1}))
    assert ticket.error is None


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, errors.GroupAuthorizationFailed),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, errors.TopicAuthorizationFailed),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, errors.OffsetLookupFailed),
        (9_999, errors.OffsetLookupFailed),
    ],
)
def test_fatal_errors_are_raised(code: int, error: type[Exception]) -> None:
    lab = Lab()
    ticket = lab.start(fetch_committed("g", (ONE,)))
    lab.answer(committed_answer({0: -1}, code=code))
    assert isinstance(ticket.error, error)


def test_request_to_an_unknown_coordinator_waits_until_it_is_known() -> None:
    lab = Lab()
    lab.known.remove(Where.COORDINATOR)
    ticket = lab.start(fetch_committed("g", (ONE,)))
    lab.advance(5.0)
    assert lab.sent == []
    lab.known.add(Where.COORDINATOR)
    lab.advance(0.0)
    lab.answer(committed_answer({0: 1}))
    assert ticket.done


def test_offsets_are_asked_from_each_leader_and_again_where_it_moved() -> None:
    lab = Lab()
    ticket = lab.start(list_offsets({ONE: EARLIEST, OTHER: LATEST}, read_committed=False))
    lab.answer(metadata_answer({0: 1, 1: 2}))
    assert [ask.where for ask, _ in lab.sent] == [1, 2]
    assert asked_times(lab) == {0: EARLIEST, 1: LATEST}
    lab.answer(offsets_answer({0: 7}), offsets_answer({1: -1}, code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    lab.advance(0.3)
    lab.answer(metadata_answer({1: 1}))
    lab.answer(offsets_answer({1: 9}))
    assert ticket.result == {ONE: Start(7, 5), OTHER: Start(9, 5)}


def test_partition_without_a_leader_is_waited_for() -> None:
    lab = Lab()
    ticket = lab.start(list_offsets({ONE: EARLIEST}, read_committed=False))
    lab.answer(metadata_answer({0: -1}))
    assert not ticket.done
    assert lab.sent == []
    lab.advance(0.0)
    lab.advance(0.3)
    lab.answer(metadata_answer({0: 1}))
    lab.answer(offsets_answer({0: 7}))
    assert ticket.done


def test_start_is_the_commit_else_the_policy_and_the_beginning_for_new_partitions() -> None:
    lab = Lab()
    third = TopicPartition("t", 2)
    query = StartQuery((ONE, OTHER, third), ResetPolicy.LATEST, read_committed=True, appeared=frozenset({third}))
    ticket = lab.start(find_starts("g", query))
    lab.answer(metadata_answer({}))  # the topics' ids, before anything else
    lab.answer(committed_answer({0: 42, 1: -1, 2: -1}, epoch=-1))
    lab.answer(metadata_answer({0: 1, 1: 1, 2: 1}))
    assert asked_times(lab) == {1: LATEST, 2: EARLIEST}
    assert requests(lab)[0].isolation_level == 1
    lab.answer(offsets_answer({1: 100, 2: 0}))
    assert ticket.result is not None
    assert {part: start.offset for part, start in ticket.result.found.items()} == {ONE: 42, OTHER: 100, third: 0}


def test_policy_none_names_partitions_without_a_commit() -> None:
    lab = Lab()
    ticket = lab.start(find_starts("g", StartQuery((ONE, OTHER), ResetPolicy.NONE, read_committed=False)))
    lab.answer(metadata_answer({}))  # the topics' ids, before anything else
    lab.answer(committed_answer({0: 42, 1: -1}, epoch=-1))
    assert ticket.result is not None
    assert (set(ticket.result.found), ticket.result.without) == ({ONE}, (OTHER,))


def test_partition_without_a_leader_does_not_hold_up_the_start_of_others() -> None:
    lab = Lab()
    ticket = lab.start(find_starts("g", StartQuery((ONE, OTHER), ResetPolicy.EARLIEST, read_committed=False)))
    lab.answer(metadata_answer({}))  # the topics' ids, before anything else
    lab.answer(committed_answer({0: 42, 1: -1}, epoch=-1))
    lab.answer(metadata_answer({1: -1}))
    assert ticket.result is not None
    assert {part: start.offset for part, start in ticket.result.found.items()} == {ONE: 42}
    assert ticket.result.waiting == {OTHER: "it has no leader: LEADER_NOT_AVAILABLE (5)"}


def test_committed_offset_that_is_unstable_or_refused_does_not_hold_up_the_start_of_others() -> None:
    lab = Lab()
    third = TopicPartition("t", 2)
    ticket = lab.start(find_starts("g", StartQuery((ONE, OTHER, third), ResetPolicy.EARLIEST, read_committed=False)))
    lab.answer(metadata_answer({}))  # the topics' ids, before anything else
    answers = [
        committed_answer({0: 42}, epoch=-1),
        committed_answer({1: -1}, code=ErrorCode.UNSTABLE_OFFSET_COMMIT),
        committed_answer({2: -1}, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ]
    lab.answer(OffsetFetchResponse(groups=tuple(group for answer in answers for group in answer.groups)))
    starts = ticket.result
    assert starts is not None
    assert {part: start.offset for part, start in starts.found.items()} == {ONE: 42}
    assert starts.waiting == {OTHER: "OffsetFetch returned UNSTABLE_OFFSET_COMMIT (88)"}
    assert isinstance(starts.refused[third], errors.TopicAuthorizationFailed)


def test_partition_that_an_answer_leaves_out_is_waited_for() -> None:
    lab = Lab()
    ticket = lab.start(find_starts("g", StartQuery((ONE, OTHER), ResetPolicy.EARLIEST, read_committed=False)))
    lab.answer(metadata_answer({}))  # the topics' ids, before anything else
    lab.answer(committed_answer({0: 42}, epoch=-1))
    assert ticket.result is not None
    assert ticket.result.waiting == {OTHER: "it is missing from the response"}


def test_lookups_of_a_partition_without_a_leader_back_off() -> None:
    lab = Lab()
    lab.start(list_offsets({ONE: EARLIEST}, read_committed=False))
    asked = 0
    while lab.now < 600:
        if lab.sent:
            asked += 1
            lab.answer(metadata_answer({0: -1}))
        lab.advance(0.05)
    assert asked <= 600 / RETRY_MAX_S + 10


@pytest.mark.parametrize("code", [int(code) for code in ErrorCode if code] + [9_999])
def test_error_of_a_leader_is_repeated_or_raised_by_the_table(code: int) -> None:
    heals = {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
    lab = Lab()
    ticket = lab.start(list_offsets({ONE: EARLIEST}, read_committed=False))
    lab.answer(metadata_answer({0: 1}))
    lab.answer(offsets_answer({0: -1}, code=code))
    denied = code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refusal = errors.TopicAuthorizationFailed if denied else errors.OffsetLookupFailed
    assert type(ticket.error) is (type(None) if code in heals else refusal)


@pytest.mark.parametrize("code", [int(code) for code in ErrorCode if code] + [9_999])
def test_error_of_a_groups_offsets_is_repeated_or_raised_by_the_table(code: int) -> None:
    suspecting = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    heals = {
        *suspecting,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
    raised = {
        ErrorCode.GROUP_AUTHORIZATION_FAILED: errors.GroupAuthorizationFailed,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: errors.TopicAuthorizationFailed,
    }
    lab = Lab()
    ticket = lab.start(fetch_committed("g", (ONE,)))
    lab.answer(committed_answer({}, group_code=code))
    assert lab.suspicions == (code in suspecting)
    refusal = raised.get(ErrorCode(code), errors.OffsetLookupFailed) if code != 9_999 else errors.OffsetLookupFailed
    assert type(ticket.error) is (type(None) if code in heals else refusal)


def test_leader_without_a_known_address_is_looked_up_again() -> None:
    """Nothing else would ask for it: the flow stood still until somebody's Metadata answer happened to name it."""
    lab = Lab()
    ticket = lab.start(list_offsets({ONE: EARLIEST}, read_committed=False))
    lab.known.remove(2)
    lab.answer(metadata_answer({0: 2}))
    lab.advance(0.0)
    lab.advance(0.3)
    lab.answer(metadata_answer({0: 1}))
    lab.answer(offsets_answer({0: 7}))
    assert ticket.result == {ONE: Start(7, 5)}


def test_leader_that_an_answer_does_not_list_among_its_brokers_is_waited_for() -> None:
    lab = Lab()
    ticket = lab.start(find_starts("g", StartQuery((ONE,), ResetPolicy.EARLIEST, read_committed=False)))
    lab.answer(metadata_answer({}))  # the topics' ids, before anything else
    lab.answer(committed_answer({0: -1}))
    lab.answer(metadata_answer({0: 3}))
    assert ticket.result is not None
    assert ticket.result.waiting == {ONE: "its leader, broker 3, is not among the cluster's brokers"}


def test_request_for_an_unknown_broker_is_answered_at_once() -> None:
    def flow() -> Flow[object]:
        (answer,) = yield AskAll((Ask(7, fetch_request),))
        return answer

    fetch_request: Any = object()
    lab = Lab()
    ticket = lab.start(flow())
    assert lab.runner.next_deadline(lab.now) == lab.now
    lab.advance(0.0)
    assert isinstance(ticket.result, BrokerUnknown)


def test_cancelled_ticket_stops_its_flow() -> None:
    lab = Lab()
    ticket = lab.start(fetch_committed("g", (ONE,)))
    ticket.cancel()
    lab.advance(0.0)
    assert (ticket.done, ticket.result, lab.ended) == (True, None, 1)
    lab.answer(committed_answer({0: 1}))  # the late answer finds nobody
    assert ticket.result is None


def test_abandoned_flows_end_with_the_error_given() -> None:
    lab = Lab()
    ticket = lab.start(fetch_committed("g", (ONE,)))
    lab.runner.abandon(errors.ConsumerClosed("closed"))
    assert isinstance(ticket.error, errors.ConsumerClosed)


def test_flow_pauses_and_suspects_the_coordinator() -> None:
    def flow() -> Flow[str]:
        yield Pause(2.0)
        yield SuspectCoordinator()
        yield AskAll(())
        return "done"

    lab = Lab()
    ticket = lab.start(flow())
    assert lab.runner.next_deadline(lab.now) == 2.0
    lab.advance(1.9)
    assert lab.suspicions == 0
    lab.advance(0.1)
    lab.advance(0.0)
    assert (ticket.result, lab.suspicions) == ("done", 1)
