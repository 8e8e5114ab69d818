"""Members of thousands of Kafka groups in one process, speaking the group protocol: `python -m bench.stand_in_members`.

Each line of standard input is one member as JSON: group, instance, topic, partitions. A member joins as the only one of
its group, commits once, and sends rare heartbeats in a session of half an hour. On `SIGUSR1` commits and new records
start, on `SIGUSR2` both stop. Ends on SIGTERM without leaving the groups.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Producer

from fleet_consumer.net import BrokerAddress, Call, ConnectionSettings, Coordinator, NetworkClient
from fleet_consumer.wire.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartitions,
    encode_assignment,
    encode_subscription,
)
from fleet_consumer.wire.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from fleet_consumer.wire.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

SESSION_MS: Final = 1_800_000
HEARTBEAT_S: Final = 300.0
IN_FLIGHT: Final = 64
CALL_S: Final = 60.0
COMMIT_S: Final = 5.0
PRODUCE_S: Final = 1.0
ASSIGNOR: Final = "range"
BEHIND: Final = 40
"""Largest lag of a member, in records."""


@dataclass(slots=True)
class Member:
    """One member; `generation` is 0 until it has joined."""

    group: str
    instance: str
    topic: str
    partitions: int
    member_id: str = ""
    generation: int = 0
    beat_at: float = 0.0
    commit_at: float = 0.0
    behind: bool = True


class Members:
    """All members, over one client; used from one thread."""

    def __init__(self, bootstrap: str) -> None:
        servers = tuple(bootstrap.split(","))
        self._client = NetworkClient(ConnectionSettings(bootstrap_servers=servers, client_id="stand-in"))
        self._coordinators: dict[str, BrokerAddress] = {}

    def join(self, members: Sequence[Member]) -> None:
        """Join and sync, many at a time; returns once all have joined."""
        waiting = list(members)
        while waiting:
            self._find(waiting)
            joins = self._all(waiting, lambda member: _join(member))
            for member, call in joins:
                if call.error is None and not call.response.error_code:
                    member.member_id, member.generation = call.response.member_id, call.response.generation_id
            joined = [member for member, call in joins if call.error is None and not call.response.error_code]
            for member, call in self._all(joined, _sync):
                if call.error is not None or call.response.error_code:
                    member.generation = 0
            failed = [member for member in waiting if not member.generation]
            if failed:
                time.sleep(1.0)
                for member in failed:
                    self._coordinators.pop(member.group, None)
            waiting = failed

    def live(self, members: Sequence[Member], moving: threading.Event, produced: dict[str, int]) -> None:
        """Send due heartbeats and, while `moving`, due commits; returns after one round."""
        now = time.monotonic()
        due = [member for member in members if member.beat_at <= now]
        for member, _ in self._all(due, _heartbeat):
            member.beat_at = now + HEARTBEAT_S
        moves = moving.is_set()
        due = [member for member in members if (moves and member.commit_at <= now) or (member.behind and not moves)]
        due = due[: IN_FLIGHT * 4]
        self._all(due, lambda member: _commit(member, produced.get(member.topic, 0), at_end=not moves))
        for member in due:
            member.commit_at, member.behind = now + COMMIT_S, moves
        if not due:
            self._client.poll(0.05)

    def _find(self, members: Sequence[Member]) -> None:
        missing = [member.group for member in members if member.group not in self._coordinators]
        if not missing:
            return
        self._client.metadata((), timeout_s=CALL_S)
        for group, found in self._client.find_coordinators(missing, timeout_s=CALL_S).items():
            if isinstance(found, Coordinator):
                self._coordinators[group] = found.address

    def _all(self, members, request) -> list[tuple[Member, Call]]:  # type: ignore[no-untyped-def, type-arg]
        done: list[tuple[Member, Call]] = []  # type: ignore[type-arg]
        known = [member for member in members if member.group in self._coordinators]
        for start in range(0, len(known), IN_FLIGHT):
            calls = [
                (member, self._client.send(self._coordinators[member.group], request(member), timeout_s=CALL_S))
                for member in known[start : start + IN_FLIGHT]
            ]
            while not all(call.done for _, call in calls):
                self._client.poll(1.0)
            done += calls
        return done


def _join(member: Member) -> JoinGroupRequest:
    subscription = encode_subscription(ConsumerProtocolSubscription(topics=(member.topic,)), 3)
    return JoinGroupRequest(
        group_id=member.group,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        member_id=member.member_id,
        group_instance_id=member.instance,
        protocol_type=PROTOCOL_TYPE,
        protocols=(JoinGroupRequestProtocol(name=ASSIGNOR, metadata=subscription),),
    )


def _sync(member: Member) -> SyncGroupRequest:
    owned = ConsumerProtocolTopicPartitions(topic=member.topic, partitions=tuple(range(member.partitions)))
    blob = encode_assignment(ConsumerProtocolAssignment(assigned_partitions=(owned,)), 3)
    return SyncGroupRequest(
        group_id=member.group,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=ASSIGNOR,
        assignments=(SyncGroupRequestAssignment(member_id=member.member_id, assignment=blob),),
    )


def _heartbeat(member: Member) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=member.group,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance,
    )


def _commit(member: Member, end: int, *, at_end: bool) -> OffsetCommitRequest:
    lags = [0 if at_end else (hash(member.group) + number) % BEHIND for number in range(member.partitions)]
    parts = tuple(
        OffsetCommitRequestPartition(partition_index=number, committed_offset=max(0, end - lag), committed_metadata="")
        for number, lag in enumerate(lags)
    )
    return OffsetCommitRequest(
        group_id=member.group,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance,
        topics=(OffsetCommitRequestTopic(name=member.topic, partitions=parts),),
    )


def _produce(bootstrap: str, topics: dict[str, int], moving: threading.Event, produced: dict[str, int]) -> None:
    """Thread: write two records per partition every `PRODUCE_S` while `moving`."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    while True:
        moving.wait()
        for topic, partitions in topics.items():
            for number in range(partitions):
                producer.produce(topic, b"x", partition=number)
                producer.produce(topic, b"y", partition=number)
            producer.poll(0)
            produced[topic] = produced.get(topic, 0) + 2
        producer.flush(30)
        time.sleep(PRODUCE_S)


def _read() -> Iterator[Member]:
    for line in sys.stdin:
        if line.strip() == "end":
            return
        yield Member(**json.loads(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    options = parser.parse_args()
    moving = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: moving.set())
    signal.signal(signal.SIGUSR2, lambda *_: moving.clear())
    members = list(_read())
    everybody = Members(options.bootstrap)
    everybody.join(members)
    now = time.monotonic()
    for number, member in enumerate(members):
        member.beat_at = now + HEARTBEAT_S * (0.5 + 0.5 * number / len(members))
        member.commit_at = now + COMMIT_S * number / len(members)
    print("joined", flush=True)
    topics = {member.topic: member.partitions for member in members}
    produced: dict[str, int] = {}
    threading.Thread(target=_produce, args=(options.bootstrap, topics, moving, produced), daemon=True).start()
    while True:
        everybody.live(members, moving, produced)


if __name__ == "__main__":
    main()
