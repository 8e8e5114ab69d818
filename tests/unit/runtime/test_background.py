"""Pieces of work in the background keep a pause between them, and what the pause puts off is not forgotten."""

from __future__ import annotations

import asyncio

import pytest

from fleet_operator.runtime.background import PAUSE_SECONDS, Background, Tasks
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

SECONDS = 30.0


class Desk:
    """The work of one object; `returned` are the times at which it was queued."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.began, self.tasks = self.loop.time(), Tasks()
        self.made, self.returned = list[float](), list[float]()
        clock = VirtualClock(self.loop)
        self.work = Background("shop/orders", clock, self.tasks, lambda: self._record(self.returned), (OSError,))

    def _record(self, times: list[float]) -> None:
        times.append(self.loop.time() - self.began)

    async def make(self) -> None:
        self._record(self.made)


def test_paused_object_is_queued_once_when_the_pause_ends() -> None:
    """Nothing else may ever happen to it: without this it would wait for the next resync."""

    async def main() -> tuple[list[float], list[float]]:
        desk = Desk()
        desk.work.start("topics", desk.make, seconds=SECONDS)
        await asyncio.sleep(1.0)
        for _ in range(3):
            desk.work.start("topics", desk.make, seconds=SECONDS)
        await asyncio.sleep(PAUSE_SECONDS * 3)
        desk.work.start("topics", desk.make, seconds=SECONDS)
        await asyncio.sleep(1.0)
        await desk.tasks.close()
        return desk.made, desk.returned

    made, returned = run_virtual(main())
    assert [round(at) for at in made] == [0, 31]
    assert [round(at) for at in returned] == [0, 10, 31]


def test_closing_ends_requeues_that_are_to_come() -> None:
    async def main() -> int:
        desk = Desk()
        desk.work.start("topics", desk.make, seconds=SECONDS)
        await asyncio.sleep(1.0)
        desk.work.start("topics", desk.make, seconds=SECONDS)
        await desk.tasks.close()
        await asyncio.sleep(PAUSE_SECONDS * 2)
        return len(desk.returned)

    assert run_virtual(main()) == 1


def test_one_name_does_not_wait_for_another() -> None:
    async def main() -> int:
        desk = Desk()
        for name in ("topics", "members", "topics"):
            desk.work.start(name, desk.make, seconds=SECONDS)
        await asyncio.sleep(1.0)
        await desk.tasks.close()
        return len(desk.made)

    assert run_virtual(main()) == 2


@pytest.mark.parametrize(("pause", "fails", "again_at"), [(1.0, False, 1), (1.0, True, 10), (PAUSE_SECONDS, False, 10)])
def test_pause_of_its_own_follows_a_success_only(pause: float, fails: bool, again_at: int) -> None:
    async def main() -> list[float]:
        desk = Desk()

        async def make() -> None:
            await desk.make()
            if fails:
                raise OSError

        while len(desk.made) < 2:
            desk.work.start("members", make, seconds=SECONDS, pause=pause)
            await asyncio.sleep(0.5)
        await desk.tasks.close()
        return desk.made

    assert [round(at) for at in run_virtual(main())] == [0, again_at]


def test_work_that_takes_too_long_ends_as_a_failure() -> None:
    async def main() -> list[float]:
        desk = Desk()
        desk.work.failures = (TimeoutError,)
        desk.work.start("topics", lambda: asyncio.sleep(1000.0), seconds=SECONDS)
        await asyncio.sleep(SECONDS + 1.0)
        await desk.tasks.close()
        return desk.returned

    assert [round(at) for at in run_virtual(main())] == [SECONDS]
