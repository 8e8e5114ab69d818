"""Start positions in a log that was cut, created again, or only seems to lack the position."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar
from uuid import UUID

import pytest

from fleet_consumer.coordinator.flows import Ask, Flow, Ticket, Where
from fleet_consumer.coordinator.lookups import LogsSeen, Start, see_logs
from fleet_consumer.coordinator.starts import ResetPolicy, StartQuery, Starts, find_starts
from fleet_consumer.group import errors
from fleet_consumer.net import Disconnected, UnsupportedByBroker
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.message import Response
from fleet_consumer.wire.offsets import OffsetFetchRequest
from fleet_consumer.wire.topics import (
    EARLIEST,
    LATEST,
    EpochEndOffset,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from tests.unit.coordinator.test_flows import Lab, committed_answer, offsets_answer

T = TypeVar("T")
ONE = TopicPartition("t", 0)
POLICIES = (ResetPolicy.EARLIEST, ResetPolicy.LATEST, ResetPolicy.NONE, ResetPolicy("by_duration", 1_000))
NODES = (1, 2)
ID, ANOTHER = UUID(int=1), UUID(int=2)


class Log:
    """A cluster with one partition: its leader's log from `first` to `end`, and what it says of epochs."""

    def __init__(self, *, first: int = 0, end: int, leader_epoch: int, epoch_end: tuple[int, int] = (-1, -1)) -> None:
        self.first, self.end, self.leader_epoch, self.epoch_end = first, end, leader_epoch, epoch_end
        self.committed: int | None = None
        self.epoch_code = 0
        self.epoch_failure: Exception | None = None
        self.views: dict[int, int | Exception] = {}
        """Leader epochs as single brokers know them, if outdated; or the error of the request."""
        self.asked_epochs: list[tuple[int, int]] = []
        self.topic_id = ID
        self.view_ids: dict[int, UUID] = {}
        """Topic ids as single brokers know them, if outdated."""

    def answer(self, ask: Ask) -> Response | Exception:
        request = ask.request
        if isinstance(request, OffsetFetchRequest):
            return committed_answer({0: -1 if self.committed is None else self.committed})
        if isinstance(request, MetadataRequest):
            known = self.views.get(ask.where, self.leader_epoch) if isinstance(ask.where, int) else self.leader_epoch
            topic_id = self.view_ids.get(ask.where, self.topic_id) if isinstance(ask.where, int) else self.topic_id
            return known if isinstance(known, Exception) else metadata(known, topic_id)
        if isinstance(request, ListOffsetsRequest):
            (asked,) = request.topics[0].partitions
            return offsets_answer({0: {EARLIEST: self.first, LATEST: self.end}.get(asked.timestamp, -1)})
        assert isinstance(request, OffsetForLeaderEpochRequest)
        (wanted,) = request.topics[0].partitions
        self.asked_epochs.append((wanted.current_leader_epoch, wanted.leader_epoch))
        return self.epoch_failure or epoch_answer(self.epoch_end, self.epoch_code)

    def starts(
        self,
        query: StartQuery,
        lost: Start | None = None,
        *,
        remade: frozenset[TopicPartition] = frozenset(),
        former: UUID | None = None,
    ) -> Starts:
        """Run one lookup."""
        known = {ONE: former} if former else {}
        asked = replace(query, lost={ONE: lost} if lost else {}, remade=remade, former=known)
        return self.run(find_starts("g", asked, now_ms=10_000))

    def run(self, flow: Flow[T]) -> T:
        lab = Lab()
        ticket: Ticket[T] = lab.start(flow)
        while not ticket.done:
            if not lab.sent:
                lab.advance(max(0.0, lab.runner.next_deadline(lab.now) - lab.now))
            lab.answer(*[self.answer(ask) for ask, _ in lab.sent])
        if ticket.error is not None:
            raise ticket.error
        assert ticket.result is not None
        return ticket.result


def metadata(leader_epoch: int, topic_id: UUID) -> MetadataResponse:
    part = MetadataResponsePartition(
        error_code=0, partition_index=0, leader_id=1, leader_epoch=leader_epoch, replica_nodes=(), isr_nodes=()
    )
    brokers = tuple(MetadataResponseBroker(node_id=node, host="b", port=9092) for node in NODES)
    return MetadataResponse(
        brokers=brokers,
        topics=(MetadataResponseTopic(error_code=0, name="t", topic_id=topic_id, partitions=(part,)),),
    )


def epoch_answer(end: tuple[int, int], code: int = 0) -> OffsetForLeaderEpochResponse:
    part = EpochEndOffset(error_code=code, partition=0, leader_epoch=end[0], end_offset=end[1])
    return OffsetForLeaderEpochResponse(topics=(OffsetForLeaderTopicResult(topic="t", partitions=(part,)),))


def query(policy: ResetPolicy = ResetPolicy.LATEST) -> StartQuery:
    return StartQuery((ONE,), policy, read_committed=False)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_position_past_a_truncation_returns_to_it_under_every_policy(policy: ResetPolicy) -> None:
    log = Log(end=950, leader_epoch=6, epoch_end=(5, 900))
    starts = log.starts(query(policy), lost=Start(1_000, 5))
    assert (starts.found, starts.cut, starts.without) == ({ONE: Start(900, 5)}, {ONE: 1_000}, ())
    assert log.asked_epochs == [(6, 5)]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_committed_offset_past_a_truncation_returns_to_it_though_the_log_has_grown_past_it(policy: ResetPolicy) -> None:
    log = Log(end=2_000, leader_epoch=6, epoch_end=(3, 900))
    log.committed = 1_000
    starts = log.starts(query(policy))
    assert (starts.found, starts.cut) == ({ONE: Start(900, 3)}, {ONE: 1_000})


def test_valid_committed_offset_is_the_start() -> None:
    log = Log(end=1_200, leader_epoch=6, epoch_end=(3, 1_000))
    log.committed = 1_000
    starts = log.starts(query())
    assert (starts.found, starts.cut) == ({ONE: Start(1_000, 3)}, {})


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("epoch", [6, -1])
def test_position_below_the_log_goes_on_at_its_first_record_under_every_policy(policy: ResetPolicy, epoch: int) -> None:
    """The policy is for partitions without a commit: the records from 60 on are there, and nobody has read them."""
    log = Log(first=60, end=100, leader_epoch=6, epoch_end=(6, 100))
    starts = log.starts(query(policy), lost=Start(10, epoch))
    assert (starts.found, starts.without, starts.cut) == ({ONE: Start(60, 5)}, (), {})


def test_position_below_a_log_that_is_empty_goes_on_at_its_end() -> None:
    log = Log(first=100, end=100, leader_epoch=6, epoch_end=(6, 100))
    assert log.starts(query(ResetPolicy.NONE), lost=Start(10, 6)).found == {ONE: Start(100, 5)}


def test_position_beyond_the_end_that_no_epoch_explains_follows_the_policy() -> None:
    log = Log(first=60, end=100, leader_epoch=6)
    assert log.starts(query(ResetPolicy.EARLIEST), lost=Start(200, -1)).found == {ONE: Start(60, 5)}
    assert log.starts(query(ResetPolicy.LATEST), lost=Start(200, -1)).found == {ONE: Start(100, 5)}
    assert log.starts(query(ResetPolicy.NONE), lost=Start(200, -1)).without == (ONE,)


def test_position_still_in_the_log_is_kept() -> None:
    log = Log(first=0, end=100, leader_epoch=6, epoch_end=(6, 100))
    starts = log.starts(query(ResetPolicy.LATEST), lost=Start(50, 6))
    assert (starts.found, starts.cut) == ({ONE: Start(50, 6)}, {})


def test_position_past_the_new_leaders_end_is_waited_for() -> None:
    log = Log(first=0, end=40, leader_epoch=6, epoch_end=(5, 100))
    starts = log.starts(query(ResetPolicy.LATEST), lost=Start(50, 5))
    assert (starts.found, starts.without) == ({}, ())
    assert starts.waiting == {ONE: "its leader's end offset 40 is still below the position 50"}


def test_position_without_an_epoch_that_the_log_does_not_have_follows_the_policy() -> None:
    log = Log(first=0, end=40, leader_epoch=6)
    assert log.starts(query(ResetPolicy.EARLIEST), lost=Start(50)).found == {ONE: Start(0, 5)}
    assert log.asked_epochs == []


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_epoch_unknown_to_every_broker_means_a_recreated_topic_read_from_its_beginning(
    policy: ResetPolicy,
) -> None:
    log = Log(end=5_000, leader_epoch=0)
    log.committed = 1_000
    starts = log.starts(query(policy))
    assert (starts.found, starts.cut, starts.remade) == ({ONE: Start(0, 5)}, {ONE: 1_000}, {ONE})


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_position_past_the_end_of_its_own_leaders_epoch_means_a_recreated_topic(policy: ResetPolicy) -> None:
    """A cut takes an election, and an election takes a new epoch. Going on at the end would skip the new topic."""
    log = Log(end=500, leader_epoch=3, epoch_end=(3, 500))
    log.committed = 1_000
    starts = log.starts(query(policy))
    assert (starts.found, starts.cut, starts.remade) == ({ONE: Start(0, 5)}, {ONE: 1_000}, {ONE})


def test_epoch_that_a_lagging_leader_does_not_know_is_waited_for() -> None:
    log = Log(end=950, leader_epoch=2)
    log.committed = 1_000
    log.views = {2: 4}
    starts = log.starts(query())
    assert (starts.found, starts.remade) == ({}, set())
    assert starts.waiting == {ONE: "its leader does not know epoch 3, from which records were read"}


def test_topic_does_not_count_as_recreated_while_a_broker_does_not_answer() -> None:
    log = Log(end=950, leader_epoch=2)
    log.committed = 1_000
    log.views = {2: Disconnected("gone")}
    starts = log.starts(query())
    assert (starts.found, starts.remade) == ({}, set())
    assert starts.waiting == {ONE: "gone"}


@pytest.mark.parametrize("code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH])
def test_position_waits_while_its_leader_cannot_check_it(code: int) -> None:
    log = Log(end=950, leader_epoch=6)
    log.committed = 900
    log.epoch_code = code
    starts = log.starts(query())
    assert starts.found == {}
    assert list(starts.waiting) == [ONE]


def test_refused_check_of_a_position_is_refused_and_nothing_is_begun() -> None:
    log = Log(end=950, leader_epoch=6)
    log.committed = 900
    log.epoch_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    starts = log.starts(query())
    assert starts.found == {}
    assert isinstance(starts.refused[ONE], errors.TopicAuthorizationFailed)


def test_broker_too_old_for_the_check_is_trusted() -> None:
    log = Log(end=950, leader_epoch=6)
    log.committed = 900
    log.epoch_failure = UnsupportedByBroker("no OffsetForLeaderEpoch")
    starts = log.starts(query())
    assert (starts.found, starts.refused) == ({ONE: Start(900, 3)}, {})


def test_metadata_request_for_every_view_goes_to_each_broker() -> None:
    lab = Lab()
    lab.start(find_starts("g", replace(query(), lost={ONE: Start(10, 9)})))
    log = Log(end=5, leader_epoch=0)
    asked: list[object] = []
    for _ in range(5):
        asked += [ask.where for ask, _ in lab.sent if isinstance(ask.request, MetadataRequest)]
        lab.answer(*[log.answer(ask) for ask, _ in lab.sent])
    assert asked == [Where.ANY, Where.ANY, Where.ANY, *NODES]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_recreated_topic_is_read_from_its_beginning_despite_a_commit(policy: ResetPolicy) -> None:
    log = Log(first=0, end=500, leader_epoch=0)
    log.committed = 100
    starts = log.starts(query(policy), Start(300, 0), remade=frozenset({ONE}))
    assert (starts.found, starts.cut, starts.remade) == ({ONE: Start(0, 5)}, {ONE: 300}, {ONE})


def test_topic_recreated_while_unread_starts_at_its_beginning_unless_committed() -> None:
    log = Log(first=0, end=500, leader_epoch=4, epoch_end=(3, 450))
    assert log.starts(query(ResetPolicy.LATEST), former=ANOTHER).found == {ONE: Start(0, 5)}
    assert log.starts(query(ResetPolicy.LATEST), former=ID).found == {ONE: Start(500, 5)}
    log.committed = 100
    assert log.starts(query(ResetPolicy.LATEST), former=ANOTHER).found == {ONE: Start(100, 3)}


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("epoch", [-1, 0])
def test_refused_position_that_a_recreated_topic_has_reached_meanwhile_is_not_kept(
    policy: ResetPolicy, epoch: int
) -> None:
    """The new log was empty when it refused the position, and has grown past it at the lookup: all of it is unread."""
    log = Log(first=0, end=100, leader_epoch=0, epoch_end=(0, 100))
    starts = log.starts(query(policy), Start(100, epoch), former=ANOTHER)
    assert (starts.found, starts.cut, starts.remade) == ({ONE: Start(0, 5)}, {ONE: 100}, {ONE})


def test_refused_position_waits_while_brokers_do_not_agree_that_its_topic_was_recreated() -> None:
    log = Log(first=0, end=100, leader_epoch=0, epoch_end=(0, 100))
    log.view_ids = {2: ANOTHER}
    starts = log.starts(query(), Start(100, 0), former=ANOTHER)
    assert (starts.found, starts.remade, set(starts.waiting)) == ({}, set(), {ONE})


def test_log_check_reports_ids_and_epochs() -> None:
    log = Log(end=500, leader_epoch=4)
    assert log.run(see_logs({ONE: None}, delay_s=30)) == LogsSeen({ONE: ID}, frozenset(), {ONE: 4})
    assert log.run(see_logs({ONE: ID}, delay_s=30)) == LogsSeen({ONE: ID}, frozenset(), {ONE: 4})


def test_other_id_counts_once_every_broker_has_it() -> None:
    log = Log(end=500, leader_epoch=4)
    assert log.run(see_logs({ONE: ANOTHER}, delay_s=30)) == LogsSeen({ONE: ID}, frozenset({ONE}), {ONE: 4})
    log.view_ids = {2: ANOTHER}
    assert log.run(see_logs({ONE: ANOTHER}, delay_s=30)) == LogsSeen()
    log.view_ids, log.views = {}, {2: Disconnected("gone")}
    assert log.run(see_logs({ONE: ANOTHER}, delay_s=30)) == LogsSeen()


def test_lookup_without_committed_offsets_asks_no_coordinator() -> None:
    log = Log(first=3, end=500, leader_epoch=4)
    log.committed = 100
    lookup = find_starts("g", replace(query(ResetPolicy.EARLIEST), use_committed=False))
    assert log.run(lookup).found == {ONE: Start(3, 5)}
