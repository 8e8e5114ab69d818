"""A whole fleet of fifty stops and returns at once, as in a deployment without pauses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.conftest import Proxied
from tests.faults.protocols import PROTOCOLS
from tests.support.recording import MemberThread
from tests.support.scene import Scene

MEMBERS = 50


def stop_all(members: list[MemberThread]) -> None:
    with ThreadPoolExecutor(len(members)) as pool:
        for done in [pool.submit(member.stop) for member in members]:
            done.result()


@pytest.mark.parametrize("assignor", PROTOCOLS)
def test_mass_restart_of_fifty_members(proxied: Proxied, tmp_path: Path, assignor: str) -> None:
    # Fifty members on threads of one process share its interpreter: sessions are as long as Java's default.
    with Scene(
        proxied.cluster, tmp_path, partitions=MEMBERS, assignors=(assignor,), session_timeout_ms=45_000
    ) as scene:
        fleet = [scene.thread() for _ in range(MEMBERS)]
        scene.await_shared(fleet, timeout_s=240)
        scene.await_progress(fleet)
        stop_all(fleet)
        again = [scene.thread() for _ in range(MEMBERS)]
        scene.await_shared(again, timeout_s=240)
        scene.await_progress(again)
        verdict = scene.finish(again)
        # All left in order, with a last commit: nothing need be read again.
        assert verdict.duplicates == 0, str(verdict)


@pytest.mark.parametrize("assignor", PROTOCOLS)
def test_mass_restart_of_fifty_static_members_moves_nothing(proxied: Proxied, tmp_path: Path, assignor: str) -> None:
    with Scene(
        proxied.cluster, tmp_path, partitions=MEMBERS, assignors=(assignor,), session_timeout_ms=60_000
    ) as scene:
        fleet = [scene.thread(group_instance_id=f"member-{number:02}") for number in range(MEMBERS)]
        generation = scene.await_shared(fleet, timeout_s=240)
        owned = [member.history().holds for member in fleet]
        stop_all(fleet)
        again = [scene.thread(group_instance_id=f"member-{number:02}") for number in range(MEMBERS)]
        assert scene.await_shared(again, timeout_s=240) == generation
        assert [member.history().holds for member in again] == owned
        verdict = scene.finish(again)
        assert verdict.duplicates == 0, str(verdict)
