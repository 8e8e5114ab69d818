"""Groups of our members and other libraries': every shared assignor, ours as leader and as follower.

Who computes the assignment is the group's leader: its first member, later one that the broker picks. So the make that
comes first leads, and the others follow its plan; then it goes, and one that followed leads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kafka_cluster import KafkaCluster
from tests.support.scene import AnyMember, Scene
from tests.support.waiting import eventually

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
pairs = pytest.mark.parametrize(("make", "assignor"), SHARED, ids=[f"{make}-{assignor}" for make, assignor in SHARED])


@pairs
def test_ours_leads_then_the_other(cluster: KafkaCluster, tmp_path: Path, make: str, assignor: str) -> None:
    with Scene(cluster, tmp_path, assignors=(assignor,)) as scene:
        ours = scene.thread()
        scene.await_shared([ours])
        theirs = OTHERS[make](scene)
        scene.await_shared([ours, theirs])
        assert ours.membership.leader
        assert scene.described().protocol_data == assignor
        assert {len(member.history().holds) for member in (ours, theirs)} == {scene.partitions // 2}
        scene.await_progress([ours])
        scene.await_progress([theirs])
        ours.stop()
        scene.await_shared([theirs])
        again = scene.thread()
        scene.await_shared([theirs, again])
        assert not again.membership.leader
        scene.finish([theirs, again])


@pairs
def test_the_other_leads_then_ours(cluster: KafkaCluster, tmp_path: Path, make: str, assignor: str) -> None:
    with Scene(cluster, tmp_path, assignors=(assignor,)) as scene:
        theirs = OTHERS[make](scene)
        scene.await_shared([theirs])
        first, second = scene.thread(), scene.thread()
        scene.await_shared([theirs, first, second])
        assert not first.membership.leader
        assert not second.membership.leader
        assert scene.described().protocol_data == assignor
        assert {len(member.history().holds) for member in (theirs, first, second)} == {scene.partitions // 3}
        scene.await_progress([theirs])
        scene.await_progress([first, second])
        theirs.stop()
        scene.await_shared([first, second])
        eventually(
            lambda: first.membership.leader != second.membership.leader, timeout_s=20, what="one of ours to lead"
        )
        scene.finish([first, second])


def test_all_three_makes_in_one_group_vote_for_what_all_know(cluster: KafkaCluster, tmp_path: Path) -> None:
    """Each lists an assignor of its own liking first; only the last is everybody's."""
    with Scene(cluster, tmp_path) as scene:
        members: list[AnyMember] = [
            scene.thread(assignors=("sticky", "range", "roundrobin")),
            scene.java(assignors=("sticky", "roundrobin")),
            scene.librdkafka(assignors=("range", "roundrobin")),
        ]
        scene.await_shared(members)
        assert scene.described().protocol_data == "roundrobin"
        scene.finish(members)
