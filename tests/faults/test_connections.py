"""A connection reset at a chosen request, in every phase: before the broker sees it, and before its answer returns.

Whichever connection is cut, the group ends Stable and every record is delivered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.conftest import Proxied
from tests.faults.protocols import PROTOCOLS
from tests.support.scene import Scene
from tests.support.waiting import eventually

FETCH, COMMIT, FIND_COORDINATOR, JOIN, HEARTBEAT, SYNC = 1, 8, 10, 11, 12, 14
SESSION_MS = 30_000
"""For members that must keep their session, also on a machine that stalls for a while."""
SIDES = pytest.mark.parametrize("at_answer", [False, True], ids=["request", "answer"])


@contextmanager
def cut(proxied: Proxied, api_key: int, *, at_answer: bool) -> Iterator[None]:
    """Cut the first such request of any client; exit only after the cut."""
    proxied.guillotine.arm(api_key, at_answer=at_answer)
    yield
    eventually(lambda: proxied.guillotine.fallen, what=f"a request of API {api_key} to be cut")


@SIDES
@pytest.mark.parametrize(
    "api_key",
    [
        pytest.param(FIND_COORDINATOR, id="find-coordinator"),
        pytest.param(JOIN, id="join"),
        pytest.param(SYNC, id="sync"),
    ],
)
@pytest.mark.parametrize("assignor", PROTOCOLS)
def test_reset_while_joining(proxied: Proxied, tmp_path: Path, assignor: str, api_key: int, at_answer: bool) -> None:
    with Scene(proxied.cluster, tmp_path, bootstrap=proxied.bootstrap, assignors=(assignor,)) as scene:
        members = [scene.thread()]
        scene.await_shared(members)
        with cut(proxied, api_key, at_answer=at_answer):
            members.append(scene.thread())
        # A join with a lost answer leaves a member without a client; its session runs out.
        scene.await_shared(members)
        scene.finish(members)


@SIDES
@pytest.mark.parametrize(
    "api_key",
    [
        pytest.param(HEARTBEAT, id="heartbeat"),
        pytest.param(COMMIT, id="commit"),
        pytest.param(FETCH, id="fetch"),
    ],
)
def test_reset_while_stable(proxied: Proxied, tmp_path: Path, api_key: int, at_answer: bool) -> None:
    """A lost connection is no lost membership: the group does not rebalance."""
    with Scene(proxied.cluster, tmp_path, bootstrap=proxied.bootstrap, session_timeout_ms=SESSION_MS) as scene:
        members = [scene.thread(), scene.thread()]
        generation = scene.await_shared(members)
        scene.await_progress(members)
        with cut(proxied, api_key, at_answer=at_answer):
            pass
        scene.await_progress(members)
        assert scene.await_shared(members) == generation
        verdict = scene.finish(members)
        assert verdict.duplicates == 0, str(verdict)
