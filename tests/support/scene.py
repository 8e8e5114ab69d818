"""One group on the cluster: a topic under constant writes, and recording members."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from fleet_consumer.net import ConnectionSettings, Coordinator, NetError, NetworkClient
from fleet_consumer.wire.consumer_protocol import decode_assignment
from fleet_consumer.wire.groups import DescribedGroup, DescribeGroupsRequest
from tests.support.foreign import java_member, librdkafka_member
from tests.support.kafka_cluster import KafkaCluster
from tests.support.ownership import History, Verdict, judge
from tests.support.recording import MemberProcess, MemberThread, RecordedProcess, member_settings
from tests.support.waiting import eventually
from tests.support.writing import Writer

__all__ = ["AnyMember", "Scene", "handed"]

AnyMember = RecordedProcess | MemberThread
SHARE_TIMEOUT_S = 120.0
"""A member whose JoinGroup got no response keeps the others waiting for a whole session."""
DRAIN_TIMEOUT_S = 240.0
_names = itertools.count()


class Scene:
    """A context manager; `finish` ends the writing and judges every history.

    `changes` are settings for all members; those of `thread` and `process` are added to them, and win.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        folder: Path,
        *,
        bootstrap: str | None = None,
        partitions: int = 6,
        per_second: int = 200,
        **changes: Any,
    ) -> None:
        number = next(_names)
        self.cluster = cluster
        self.group = f"scene-group-{os.getpid()}-{number}"
        self.topic = cluster.create_topic(f"scene-topic-{os.getpid()}-{number}", partitions)
        self.partitions = partitions
        self._bootstrap = bootstrap or cluster.bootstrap
        self._folder = folder
        self._changes = changes
        self._members: list[AnyMember] = []
        self.writer = Writer(cluster.bootstrap, self.topic, partitions, per_second=per_second)

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.__exit__()
        left = [member for member in self._members if member.alive]
        # All at once: one that does not end must not keep the others from ending.
        with ThreadPoolExecutor(max(1, len(left))) as pool:
            ends = [pool.submit(each.kill if isinstance(each, RecordedProcess) else each.stop) for each in left]
        for end in ends:
            end.result()

    def thread(self, **changes: Any) -> MemberThread:
        """A member on a thread."""
        settings = {**self._changes, **changes}
        member = MemberThread(member_settings(self._bootstrap, self.group, **settings), self.topic)
        self._members.append(member)
        return member

    def process(self, **changes: Any) -> MemberProcess:
        """A member in a process of its own."""
        settings = {**self._changes, **changes}
        member = MemberProcess(self._folder, self._bootstrap, self.group, self.topic, **settings)
        self._members.append(member)
        return member

    def java(self, **changes: Any) -> RecordedProcess:
        """The Java consumer."""
        return self._foreign(java_member, changes)

    def librdkafka(self, **changes: Any) -> RecordedProcess:
        """librdkafka's consumer."""
        return self._foreign(librdkafka_member, changes)

    def _foreign(self, make: Callable[..., RecordedProcess], changes: Mapping[str, Any]) -> RecordedProcess:
        settings = {**self._changes, **changes}
        member = make(self._folder, self._bootstrap, self.group, self.topic, **settings)
        self._members.append(member)
        return member

    def described(self) -> DescribedGroup:
        """The group as its coordinator sees it; AssertionError while there is none."""
        servers = tuple(broker.bootstrap for broker in self.cluster.brokers.values() if broker.running)
        client = NetworkClient(ConnectionSettings(bootstrap_servers=servers, client_id="scene"))
        try:
            found = client.find_coordinators([self.group], timeout_s=5.0)[self.group]
            assert isinstance(found, Coordinator), found
            answer = client.call(found.address, DescribeGroupsRequest(groups=(self.group,)), timeout_s=5.0).groups[0]
        except NetError as error:
            raise AssertionError(str(error)) from error
        finally:
            client.close()
        assert answer.error_code == 0, answer
        return answer

    def planned(self, group: DescribedGroup) -> list[int]:
        """The partitions that the coordinator's plan assigns to any member, sorted."""
        return sorted(part for member in group.members for part in _planned(member.member_assignment))

    def await_shared(
        self,
        members: Sequence[AnyMember],
        *,
        timeout_s: float = SHARE_TIMEOUT_S,
        also: Callable[[DescribedGroup], None] = lambda _: None,
    ) -> int:
        """Wait until exactly these are a Stable group that owns every partition once; returns their generation.

        `also` asserts further facts of this description at that moment: a later check might meet the next rebalance.
        """

        def shared() -> bool:
            held = {member.name: sorted(member.history().holds) for member in members}
            owned = sorted(partition for parts in held.values() for partition in parts)
            assert owned == list(range(self.partitions)), held
            group = self.described()
            assert group.group_state == "Stable", group.group_state
            # Between the two rounds of a cooperative rebalance the group is Stable too, and the coordinator's plan
            # lacks the partitions that are moving between members.
            planned = sorted(_planned(member.member_assignment) for member in group.members)
            assert planned == sorted(held.values()), f"planned {planned}, held {held}"
            also(group)
            return True

        eventually(shared, timeout_s=timeout_s, what=f"{len(members)} members to share {self.topic}", poll_s=0.1)
        return max(member.history().generation for member in members)

    def await_progress(
        self, members: Sequence[AnyMember], records: int = 50, timeout_s: float = SHARE_TIMEOUT_S
    ) -> None:
        """Wait until these members have handed out so many more records."""
        before = sum(handed(member.history()) for member in members)

        def moved() -> bool:
            now = sum(handed(member.history()) for member in members)
            assert now >= before + records, f"{now - before} of {records} records"
            return True

        eventually(moved, timeout_s=timeout_s, what=f"{records} more records to be handed out", poll_s=0.1)

    def finish(self, members: Sequence[AnyMember]) -> Verdict:
        """Wait for a Stable group of these members and for all records, then judge; fails on any finding."""
        self.await_shared(members)
        written = self.writer.stop()

        def drained() -> bool:
            verdict = judge(self.histories(), written)
            assert not verdict.lost_count, f"{verdict}\n{self._evidence()}"
            return True

        eventually(drained, timeout_s=DRAIN_TIMEOUT_S, what="all records to be handed out", poll_s=0.2)
        for member in members:
            member.stop()
        verdict = judge(self.histories(), written)
        assert verdict.good, str(verdict)
        return verdict

    def _evidence(self) -> str:
        """Log ends, leaders, and the positions of members on threads: shows a stall, a skip, or a slow broker."""
        lines = []
        try:
            admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
            parts = [TopicPartition(self.topic, number) for number in range(self.partitions)]
            asked = admin.list_offsets({part: OffsetSpec.latest() for part in parts}, request_timeout=5)  # type: ignore[no-untyped-call]
            lines.append(f"log ends: { {part.partition: found.result(10).offset for part, found in asked.items()} }")
            described = admin.list_topics(self.topic, timeout=5).topics[self.topic].partitions
            lines.append(f"leaders and replicas in sync: { {n: (p.leader, p.isrs) for n, p in described.items()} }")
        except KafkaException as error:
            lines.append(f"the brokers do not answer: {error}")
        lines += [f"{member.name}: {member.state_text}" for member in self._members if isinstance(member, MemberThread)]
        return "\n".join(lines)

    def histories(self) -> list[History]:
        """The histories of all members, also former ones."""
        return [member.history() for member in self._members]


def _planned(assignment: bytes) -> list[int]:
    # A member without partitions may have an empty assignment.
    topics = decode_assignment(assignment).assigned_partitions if assignment else ()
    return sorted(part for topic in topics for part in topic.partitions)


def handed(history: History) -> int:
    """The number of records a member handed out, repetitions included."""
    return sum(stint.last - stint.first + 1 for stint in history.stints)
