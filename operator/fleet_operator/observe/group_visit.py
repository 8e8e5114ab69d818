"""A visit of an empty Kafka group: the operator joins and leaves, so that the commits do not expire.

Runs on the observer's thread in steps that do not wait: brokers answer the join of an empty group after
`group.initial.rebalance.delay.ms`, three seconds by default, and polls go on meanwhile. The join has a connection of
its own, as a broker answers the requests of one connection in their order.

The visitor hands in no plan (SyncGroup): while a group is Stable, brokers delete old commits of topics to which no
member is subscribed (Kafka: `ClassicGroup.offsetExpirationCondition`). It leaves before that, and is subscribed to
every topic with a commit besides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fleet_consumer.net import BrokerAddress, Call, Disconnected, KafkaError, NetworkClient
from fleet_consumer.wire.consumer_protocol import PROTOCOL_TYPE, ConsumerProtocolSubscription, encode_subscription
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupRequestMember,
)
from fleet_operator.observe.batches import Partition
from fleet_operator.observe.live_reads import CALL_SECONDS, describe, find_coordinator, read_commits

JOIN_SECONDS: Final = 20.0
SUBSCRIPTION_VERSION: Final = 0
"""The oldest: it has all that the broker reads."""
STANDARD_ASSIGNORS: Final = ("range", "cooperative-sticky", "sticky", "roundrobin")
REASON: Final = "the operator visits the empty group, so that its commits do not expire"


class VisitOutcome(StrEnum):
    """The end of a visit: `KEPT` after a join and leave, with all commits there; `NOT_EMPTY` and `NO_COMMITS` without
    one; `COMMITS_LOST` if a commit from before is not there any more."""

    KEPT = "Kept"
    NOT_EMPTY = "NotEmpty"
    NO_COMMITS = "NoCommits"
    COMMITS_LOST = "CommitsLost"


@dataclass(slots=True)
class GroupVisit:
    """One visit. `begin` once, then `advance` until it returns an outcome; both raise NetError and KafkaError.

    `assignors` are further ones that workers of the group may have, so that a worker that joins at the same moment is
    not refused.
    """

    group_id: str
    session_timeout_ms: int
    assignors: tuple[str, ...] = ()
    _client: NetworkClient | None = None
    _coordinator: BrokerAddress | None = None
    _member_id: str = ""
    _before: frozenset[Partition] = frozenset()
    _join: Call[JoinGroupResponse] | None = field(default=None, repr=False)

    @property
    def _lane(self) -> str:
        return f"visit-{self.group_id}"

    def begin(self, client: NetworkClient) -> VisitOutcome | None:
        """Ask for the group as it is now, and begin to join it only if it is empty and has commits."""
        address = find_coordinator(client, self.group_id)
        self._client, self._coordinator = client, address
        group = describe(client, address, self.group_id)
        if group.group_state != "Empty" or group.members:
            return VisitOutcome.NOT_EMPTY
        if group.protocol_type not in ("", PROTOCOL_TYPE):
            subject = f"group {self.group_id!r} of protocol type {group.protocol_type!r}"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, subject, "no consumer group: it is left alone")
        self._before = frozenset(read_commits(client, address, self.group_id))
        if not self._before:
            return VisitOutcome.NO_COMMITS
        self._send_join(client, address)
        return None

    def advance(self, client: NetworkClient) -> VisitOutcome | None:
        """Go on if the broker has answered; None while it has not."""
        address, join = self._coordinator, self._join
        assert address is not None, "a visit begins before it goes on"
        assert join is not None, "a visit begins before it goes on"
        if client is not self._client:
            # The observer was replaced: its client is closed, and the member goes with its session.
            raise Disconnected("the connection to the cluster was renewed during a visit", address=address)
        if not join.done:
            return None
        if join.error is None and join.response.error_code == ErrorCode.MEMBER_ID_REQUIRED and not self._member_id:
            self._member_id = join.response.member_id
            self._send_join(client, address)
            return None
        client.disconnect(address, lane=self._lane)
        response = join.response
        if response.error_code:
            raise KafkaError(response.error_code, f"group {self.group_id!r}")
        self._leave(client, address, response.member_id)
        lost = self._before - read_commits(client, address, self.group_id).keys()
        return VisitOutcome.COMMITS_LOST if lost else VisitOutcome.KEPT

    def _send_join(self, client: NetworkClient, address: BrokerAddress) -> None:
        topics = tuple(sorted({topic for topic, _ in self._before}))
        metadata = encode_subscription(ConsumerProtocolSubscription(topics=topics), SUBSCRIPTION_VERSION)
        names = dict.fromkeys((*STANDARD_ASSIGNORS, *self.assignors))
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.session_timeout_ms,
            member_id=self._member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=tuple(JoinGroupRequestProtocol(name=name, metadata=metadata) for name in names),
            reason=REASON,
        )
        self._join = client.send(address, request, lane=self._lane, timeout_s=JOIN_SECONDS)

    def _leave(self, client: NetworkClient, address: BrokerAddress, member_id: str) -> None:
        member = LeaveGroupRequestMember(member_id=member_id, reason=REASON)
        request = LeaveGroupRequest(group_id=self.group_id, members=(member,))
        answer = client.call(address, request, timeout_s=CALL_SECONDS)
        code = answer.error_code or next((each.error_code for each in answer.members if each.error_code), 0)
        if code:  # a coordinator that does not know the member has not kept the visit either
            raise KafkaError(code, f"group {self.group_id!r}")
