"""Questions of runs: an answer that fails to come is a failure of that question, and the run is reconciled again."""

from __future__ import annotations

import asyncio

import pytest

from fleet_consumer.net import Disconnected
from fleet_operator.clients.kube import KubeNotFoundError
from fleet_operator.reconcilers.run_session import RunSessions
from fleet_operator.runtime.cache import Key
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

KEY: Key = ("shop", "again")


@pytest.mark.parametrize("error", [Disconnected("gone"), KubeNotFoundError("no answer"), TimeoutError()])
def test_question_that_fails_tells_so_and_brings_the_run_back(error: Exception) -> None:
    """A reset reads its object live before it commits: the API server fails it as a broker does."""

    async def main() -> tuple[list[Exception], list[Key]]:
        failed, queued = list[Exception](), list[Key]()
        sessions = RunSessions(VirtualClock(asyncio.get_running_loop()), list[int], queued.append)

        async def read() -> None:
            raise error

        sessions.open(KEY, "uid").ask(read, lambda _: None, failed.append, seconds=1.0)
        await asyncio.sleep(0.1)
        await sessions.tasks.close()
        return failed, queued

    assert run_virtual(main()) == ([error], [KEY])


def test_finding_of_what_was_started_over_is_not_taken_for_a_new_one() -> None:
    """A reset in its next phase drops what was read for the one before, also where the answer is still to come."""

    async def main() -> tuple[list[int], list[int]]:
        sessions = RunSessions(VirtualClock(asyncio.get_running_loop()), list[int], lambda _: None)
        session = sessions.open(KEY, "uid")
        before = session.memory

        async def read() -> int:
            await asyncio.sleep(0.1)
            return 1

        session.ask(read, before.append, lambda _: None, seconds=1.0)
        session.start_over()
        after = session.memory
        session.ask(read, lambda found: after.append(found + 1), lambda _: None, seconds=1.0)
        await asyncio.sleep(0.5)
        await sessions.tasks.close()
        return before, session.memory

    assert run_virtual(main()) == ([1], [2])
