"""The coordinator of a group is killed, moved, or paused, and the group continues.

Nothing is lost, or read twice without a reason.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fleet_consumer.wire.groups import DescribedGroup
from tests.faults.protocols import PROTOCOLS
from tests.support.kafka_cluster import KafkaCluster
from tests.support.scene import Scene
from tests.support.waiting import eventually

SESSION_MS = 30_000
"""No session ends with its coordinator, nor while a machine stalls."""
SHORT_SESSION_MS = 4_000


@pytest.mark.parametrize("assignor", PROTOCOLS)
def test_group_continues_after_its_coordinator_is_killed(cluster: KafkaCluster, tmp_path: Path, assignor: str) -> None:
    with Scene(cluster, tmp_path, assignors=(assignor,), session_timeout_ms=SESSION_MS) as scene:
        members = [scene.thread(), scene.thread(), scene.thread()]
        scene.await_shared(members)
        old = cluster.coordinator_of(scene.group)
        old.kill()
        new = cluster.coordinator_of(scene.group)
        assert new is not old
        port = new.port
        eventually(
            lambda: all(member.membership.coordinator == ("127.0.0.1", port) for member in members),
            what="every member to find the new coordinator",
        )
        scene.await_shared(members)
        scene.await_progress(members)
        old.start()
        scene.finish(members)


@pytest.mark.parametrize("assignor", PROTOCOLS)
def test_m4_coordinator_moved_and_the_generation_does_not_change(
    cluster: KafkaCluster, tmp_path: Path, assignor: str
) -> None:
    """The new coordinator reads the group from its log: the same members, the same generation, no rebalance."""
    with Scene(cluster, tmp_path, assignors=(assignor,), session_timeout_ms=SESSION_MS) as scene:
        members = [scene.thread(), scene.thread(), scene.thread()]
        generation = scene.await_shared(members)
        calls = [list(member.history().calls) for member in members]
        ids = [member.membership.member_id for member in members]
        old = cluster.coordinator_of(scene.group)
        new = cluster.move_coordinator(scene.group)
        assert new is not old
        port = new.port
        eventually(
            lambda: all(member.membership.coordinator == ("127.0.0.1", port) for member in members),
            what="every member to find the new coordinator",
        )
        scene.await_progress(members, 300)

        def unchanged(group: DescribedGroup) -> None:
            assert {each.member_id for each in group.members} == set(ids)

        assert scene.await_shared(members, also=unchanged) == generation
        assert {member.membership.generation for member in members} == {generation}
        assert [member.history().calls for member in members] == calls
        verdict = scene.finish(members)
        assert verdict.duplicates == 0, str(verdict)


@pytest.mark.parametrize("assignor", PROTOCOLS)
def test_coordinator_paused_past_the_session_timeout(cluster: KafkaCluster, tmp_path: Path, assignor: str) -> None:
    """No member can send heartbeats for longer than a session.

    Members then deliver nothing, find the new coordinator, and continue.
    """
    with Scene(cluster, tmp_path, assignors=(assignor,), session_timeout_ms=SHORT_SESSION_MS) as scene:
        members = [scene.thread(), scene.thread()]
        scene.await_shared(members)
        old = cluster.coordinator_of(scene.group)
        old.pause()
        try:
            eventually(lambda: cluster.coordinator_of(scene.group) is not old, what="another coordinator")
            over = time.monotonic() + SHORT_SESSION_MS / 1000
            eventually(
                lambda: all((member.membership.last_heartbeat_at or 0.0) > over for member in members),
                what="good heartbeats more than a session after the pause began",
            )
            scene.await_progress(members)
        finally:
            old.resume()
        scene.finish(members)
