"""Groups of our members and other libraries': every shared assignor, ours as leader and as follower.

The group's leader computes the assignment: its first member, later one chosen by the broker. So the library that joins
first leads, and the others follow its plan; then it leaves, and a former follower leads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fleet_consumer.wire.groups import DescribedGroup
from tests.support.kafka_cluster import KafkaCluster
from tests.support.scene import AnyMember, Scene

Make = Callable[[Scene], AnyMember]
OTHERS: dict[str, Make] = {"java": lambda scene: scene.java(), "librdkafka": lambda scene: scene.librdkafka()}
SHARED = [
    ("java", "range"),
    ("java", "roundrobin"),
    ("java", "sticky"),
    ("java", "cooperative-sticky"),
    ("librdkafka", "range"),
    ("librdkafka", "roundrobin"),
    ("librdkafka", "cooperative-sticky"),
]
SESSION_MS = 30_000
"""Long, because no member is killed here: one whose session expired on a stalled machine would not lead any more."""

pairs = pytest.mark.parametrize(("make", "assignor"), SHARED, ids=[f"{make}-{assignor}" for make, assignor in SHARED])


@pairs
def test_our_member_leads_then_a_foreign_one(cluster: KafkaCluster, tmp_path: Path, make: str, assignor: str) -> None:
    with Scene(cluster, tmp_path, assignors=(assignor,), session_timeout_ms=SESSION_MS) as scene:
        ours = scene.thread()
        scene.await_shared([ours])
        theirs = OTHERS[make](scene)

        def ours_leads(group: DescribedGroup) -> None:
            assert group.protocol_data == assignor
            assert ours.membership.leader
            assert shares(ours, theirs) == {scene.partitions // 2}

        scene.await_shared([ours, theirs], also=ours_leads)
        scene.await_progress([ours])
        scene.await_progress([theirs])
        ours.stop()
        scene.await_shared([theirs])
        again = scene.thread()

        def theirs_leads(group: DescribedGroup) -> None:
            assert group.protocol_data == assignor
            assert not again.membership.leader

        scene.await_shared([theirs, again], also=theirs_leads)
        scene.finish([theirs, again])


@pairs
def test_foreign_member_leads_then_ours(cluster: KafkaCluster, tmp_path: Path, make: str, assignor: str) -> None:
    with Scene(cluster, tmp_path, assignors=(assignor,), session_timeout_ms=SESSION_MS) as scene:
        theirs = OTHERS[make](scene)
        scene.await_shared([theirs])
        first, second = scene.thread(), scene.thread()

        def theirs_leads(group: DescribedGroup) -> None:
            assert group.protocol_data == assignor
            assert not first.membership.leader
            assert not second.membership.leader
            assert shares(theirs, first, second) == {scene.partitions // 3}

        scene.await_shared([theirs, first, second], also=theirs_leads)
        scene.await_progress([theirs])
        scene.await_progress([first, second])
        theirs.stop()

        def one_of_ours_leads(group: DescribedGroup) -> None:
            assert group.protocol_data == assignor
            assert first.membership.leader != second.membership.leader

        scene.await_shared([first, second], also=one_of_ours_leads)
        scene.finish([first, second])


def test_three_clients_in_one_group_choose_a_common_assignor(cluster: KafkaCluster, tmp_path: Path) -> None:
    """Each lists a different assignor first; only the last is common."""
    with Scene(cluster, tmp_path, session_timeout_ms=SESSION_MS) as scene:
        members: list[AnyMember] = [
            scene.thread(assignors=("sticky", "range", "roundrobin")),
            scene.java(assignors=("sticky", "roundrobin")),
            scene.librdkafka(assignors=("range", "roundrobin")),
        ]

        def voted(group: DescribedGroup) -> None:
            assert group.protocol_data == "roundrobin"

        scene.await_shared(members, also=voted)
        scene.finish(members)


def shares(*members: AnyMember) -> set[int]:
    """The numbers of partitions of these members."""
    return {len(member.history().holds) for member in members}
