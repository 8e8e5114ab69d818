"""Members that are killed, stopped, restarted, or meet a duplicate."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.conftest import Proxied
from tests.faults.protocols import PROTOCOLS
from tests.support.recording import MemberProcess
from tests.support.scene import Scene, handed
from tests.support.waiting import eventually

SESSION_MS = 4_000
"""For members whose session will end."""
KEPT_SESSION_MS = 45_000
"""For members that must keep their session, also on a machine that stalls for a while."""
CAUGHT_MAX = 1


def kinds(member: MemberProcess) -> list[str]:
    """Its callbacks: a(ssigned), r(evoked), l(ost)."""
    return [call[0] for call in member.history().calls]


@pytest.mark.parametrize("assignor", PROTOCOLS)
def test_m4_killed_member_is_replaced_without_loss(proxied: Proxied, tmp_path: Path, assignor: str) -> None:
    with Scene(proxied.cluster, tmp_path, assignors=(assignor,), session_timeout_ms=SESSION_MS) as scene:
        survivor, victim = scene.thread(session_timeout_ms=KEPT_SESSION_MS), scene.process()
        before = scene.await_shared([survivor, victim])
        scene.await_progress([victim])
        # Otherwise all that it was handed comes again, and the count below says nothing.
        eventually(lambda: any(done.accepted for done in victim.history().commits), what="a commit of the victim")
        victim.kill()
        assert scene.await_shared([survivor]) > before
        verdict = scene.finish([survivor])
        # Delivered but uncommitted records come again; one commit interval and the poll around it.
        assert verdict.duplicates < handed(victim.history())


@pytest.mark.parametrize("assignor", PROTOCOLS)
def test_m4_stopped_member_wakes_and_delivers_nothing_of_its_old_session(
    proxied: Proxied, tmp_path: Path, assignor: str
) -> None:
    """SIGSTOP for longer than a session: by then another owns its partitions, and it must know that on its own."""
    with Scene(proxied.cluster, tmp_path, assignors=(assignor,), session_timeout_ms=SESSION_MS) as scene:
        survivor, sleeper = scene.thread(session_timeout_ms=KEPT_SESSION_MS), scene.process()
        old = scene.await_shared([survivor, sleeper])
        scene.await_progress([sleeper])
        sleeper.suspend()
        asleep = scene.await_shared([survivor])
        assert asleep > old
        scene.await_progress([survivor], 200)
        woken_at = time.monotonic()
        sleeper.wake()
        eventually(lambda: "l" in kinds(sleeper), what="the sleeper to learn what it lost")
        scene.await_shared([survivor, sleeper])
        again_at = next(at for kind, _, _, at in reversed(sleeper.history().calls) if kind == "a")
        # Between waking and its next assignment; each partition may show the one batch that the signal caught on its
        # way from poll to the note of it.
        late = [stint for stint in sleeper.history().stints if stint.began_at < again_at and stint.ended_at > woken_at]
        assert len(late) <= CAUGHT_MAX, [str(stint) for stint in late]
        scene.finish([survivor, sleeper])


@pytest.mark.parametrize("assignor", PROTOCOLS)
def test_static_member_restarted_inside_its_session_moves_nothing(
    proxied: Proxied, tmp_path: Path, assignor: str
) -> None:
    with Scene(proxied.cluster, tmp_path, assignors=(assignor,), session_timeout_ms=KEPT_SESSION_MS) as scene:
        other, first = scene.thread(group_instance_id="a"), scene.process(group_instance_id="b")
        generation = scene.await_shared([other, first])
        # The partitions may be shared before the callback of the last generation, which brings nothing, has run.
        eventually(lambda: other.history().calls[-1][2] == generation, what="the last callback of the first rebalance")
        owned, calls = first.history().holds, len(other.history().calls)
        first.stop()
        second = scene.process(group_instance_id="b")
        assert scene.await_shared([other, second]) == generation
        assert second.history().holds == owned
        assert len(other.history().calls) == calls
        scene.await_progress([second])
        verdict = scene.finish([other, second])
        assert verdict.duplicates == 0, str(verdict)


@pytest.mark.parametrize("assignor", PROTOCOLS)
def test_static_member_restarted_after_its_session_finds_its_place_taken(
    proxied: Proxied, tmp_path: Path, assignor: str
) -> None:
    with Scene(proxied.cluster, tmp_path, assignors=(assignor,), session_timeout_ms=SESSION_MS) as scene:
        other = scene.thread(group_instance_id="a", session_timeout_ms=KEPT_SESSION_MS)
        first = scene.process(group_instance_id="b")
        generation = scene.await_shared([other, first])
        first.stop()
        alone = scene.await_shared([other])
        assert alone > generation
        second = scene.process(group_instance_id="b")
        assert scene.await_shared([other, second]) > alone
        verdict = scene.finish([other, second])
        assert verdict.duplicates == 0, str(verdict)


@pytest.mark.parametrize("assignor", PROTOCOLS)
def test_fenced_instance_ends_and_its_duplicate_continues(proxied: Proxied, tmp_path: Path, assignor: str) -> None:
    """The younger of two with one instance id has the place; the older learns it, and delivers nothing more."""
    with Scene(proxied.cluster, tmp_path, assignors=(assignor,), session_timeout_ms=KEPT_SESSION_MS) as scene:
        other, older = scene.thread(group_instance_id="a"), scene.process(group_instance_id="b")
        scene.await_shared([other, older])
        scene.await_progress([older])
        younger = scene.process(group_instance_id="b")
        eventually(lambda: not older.alive, what="the older double to end")
        assert any("FencedInstance" in error for error in older.history().errors)
        scene.await_shared([other, younger])
        verdict = scene.finish([other, younger])
        assert verdict.duplicates <= handed(older.history())
