"""Visits an empty Kafka group: the operator joins the group and leaves it, so that the group's commits do not expire.

A visit runs on the observer's thread in steps that do not wait. A broker answers a JoinGroup request to an empty group
after `group.initial.rebalance.delay.ms`, three seconds by default; polls continue during this time. The request has its
own connection, because a broker answers the requests of one connection in order.

The visitor sends no SyncGroup, because in a Stable group brokers delete old commits of topics that no member subscribes
to (Kafka: `ClassicGroup.offsetExpirationCondition`). It leaves before the group becomes Stable, and it also subscribes
to every topic with a commit.

Decision: docs/decisions/0045-offset-expiry.md.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fleet_consumer.net import BrokerAddress, Call, Disconnected, KafkaError, NetworkClient
from fleet_consumer.wire import groups
from fleet_consumer.wire.consumer_protocol import PROTOCOL_TYPE, ConsumerProtocolSubscription, encode_subscription
from fleet_consumer.wire.errors import ErrorCode
from fleet_operator.observe.batches import Partition
from fleet_operator.observe.live_reads import CALL_SECONDS, describe, find_coordinator, read_commits

JOIN_SECONDS: Final = 20.0
SUBSCRIPTION_VERSION: Final = 0
"""Version of the visitor's subscription (consumer protocol). The oldest version has all fields that brokers read."""
STANDARD_ASSIGNORS: Final = ("range", "cooperative-sticky", "sticky", "roundrobin")
REASON: Final = "the operator visits the empty group, so that its commits do not expire"


class VisitOutcome(StrEnum):
    """Result of a visit. `KEPT`: the operator has joined and left, and all commits still exist. `NOT_EMPTY`,
    `NO_COMMITS`: the operator has not joined, because the group is not empty or has no commits. `COMMITS_LOST`: a
    commit that existed before the join is now missing."""

    KEPT = "Kept"
    NOT_EMPTY = "NotEmpty"
    NO_COMMITS = "NoCommits"
    COMMITS_LOST = "CommitsLost"


@dataclass(slots=True)
class GroupVisit:
    """One visit. Call `begin` once, then `advance` until it returns an outcome; both methods raise NetError and
    KafkaError. The visitor also lists the workers' custom `assignors`, so that a worker can join during the visit."""

    group_id: str
    session_timeout_ms: int
    assignors: tuple[str, ...] = ()
    _client: NetworkClient | None = None
    _coordinator: BrokerAddress | None = None
    _member_id: str = ""
    _before: frozenset[Partition] = frozenset()
    _join: Call[groups.JoinGroupResponse] | None = field(default=None, repr=False)

    @property
    def _lane(self) -> str:
        return f"visit-{self.group_id}"

    def begin(self, client: NetworkClient) -> VisitOutcome | None:
        """Read the group live. If the group is empty and has commits, send a join request and return None; otherwise
        return the outcome."""
        address = find_coordinator(client, self.group_id)
        self._client, self._coordinator = client, address
        group = describe(client, address, self.group_id)
        if group.group_state != "Empty" or group.members:
            return VisitOutcome.NOT_EMPTY
        if group.protocol_type not in ("", PROTOCOL_TYPE):
            subject = f"group {self.group_id!r} of protocol type {group.protocol_type!r}"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, subject, "not a consumer group; it is not visited")
        self._before = frozenset(read_commits(client, address, self.group_id))
        if not self._before:
            return VisitOutcome.NO_COMMITS
        self._send_join(client, address)
        return None

    def advance(self, client: NetworkClient) -> VisitOutcome | None:
        """Continue the visit if the broker has answered; returns None until the visit has ended."""
        address, join = self._coordinator, self._join
        assert address is not None, "begin is called first"
        assert join is not None, "begin is called first"
        if client is not self._client:
            # The observer was replaced and its client closed, so the visiting member is removed when its session
            # expires.
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
        request = groups.JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.session_timeout_ms,
            member_id=self._member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=tuple(groups.JoinGroupRequestProtocol(name=name, metadata=metadata) for name in names),
            reason=REASON,
        )
        self._join = client.send(address, request, lane=self._lane, timeout_s=JOIN_SECONDS)

    def _leave(self, client: NetworkClient, address: BrokerAddress, member_id: str) -> None:
        member = groups.LeaveGroupRequestMember(member_id=member_id, reason=REASON)
        request = groups.LeaveGroupRequest(group_id=self.group_id, members=(member,))
        answer = client.call(address, request, timeout_s=CALL_SECONDS)
        code = answer.error_code or next((each.error_code for each in answer.members if each.error_code), 0)
        if code:  # also for UNKNOWN_MEMBER_ID: the coordinator has then lost the visiting member
            raise KafkaError(code, f"group {self.group_id!r}")
