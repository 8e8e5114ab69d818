"""Questions of runs: an answer that fails to come is a failure of that question, and the run is looked at again."""

from __future__ import annotations

import asyncio

import pytest

from fleet_consumer.net import Disconnected
from fleet_operator.clients.kube import KubeNotFoundError
from fleet_operator.reconcilers.run import Questions
from fleet_operator.runtime.cache import Key
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

KEY: Key = ("shop", "again")


@pytest.mark.parametrize("error", [Disconnected("gone"), KubeNotFoundError("no answer"), TimeoutError()])
def test_question_that_fails_tells_so_and_brings_the_run_back(error: Exception) -> None:
    """A reset reads its object live before it commits: the API server fails it as a broker does."""

    async def main() -> tuple[list[Exception], list[Key]]:
        failed, queued = list[Exception](), list[Key]()
        questions = Questions(VirtualClock(asyncio.get_running_loop()), queued.append)

        async def read() -> None:
            raise error

        questions.ask(KEY, read, lambda _: None, failed.append, seconds=1.0)
        await asyncio.sleep(0.1)
        await questions.close()
        return failed, queued

    assert run_virtual(main()) == ([error], [KEY])
