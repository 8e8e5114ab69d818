"""Attempts on Kafka keep a pause between them, and what the pause puts off is not forgotten."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from fleet_operator.reconcilers.consumergroup.kafka_side import MEMBERS, PAUSE_SECONDS, TOPICS, KafkaSide
from tests.unit.runtime.virtual_time import VirtualClock, run_virtual

GROUP = ("shop", "orders")


def test_paused_group_is_requeued_once_when_the_pause_ends() -> None:
    """Nothing else may ever happen to the group: without this it would wait for the next resync."""

    async def main() -> tuple[list[float], list[float]]:
        loop = asyncio.get_running_loop()
        nobody = cast("Any", None)
        side = KafkaSide(nobody, VirtualClock(loop), nobody, nobody)
        began, made, returned = loop.time(), list[float](), list[float]()

        async def make() -> None:
            made.append(loop.time() - began)

        def ask() -> None:
            side.undo(GROUP, make, lambda: returned.append(loop.time() - began))

        ask()
        await asyncio.sleep(1.0)
        for _ in range(3):
            ask()
        await asyncio.sleep(PAUSE_SECONDS * 3)
        ask()
        await asyncio.sleep(1.0)
        await side.close()
        return made, returned

    made, returned = run_virtual(main())
    assert [round(at) for at in made] == [0, 31]
    assert [round(at) for at in returned] == [0, 10, 31]


def test_closing_ends_those_that_would_come_back() -> None:
    async def main() -> int:
        nobody = cast("Any", None)
        side = KafkaSide(nobody, VirtualClock(asyncio.get_running_loop()), nobody, nobody)
        returned = list[int]()

        async def make() -> None:
            return None

        side.undo(GROUP, make, lambda: returned.append(1))
        await asyncio.sleep(1.0)
        side.undo(GROUP, make, lambda: returned.append(2))
        await side.close()
        await asyncio.sleep(PAUSE_SECONDS * 2)
        return len(returned)

    assert run_virtual(main()) == 1


@pytest.mark.parametrize(("sort", "fails", "again_at"), [(MEMBERS, False, 1), (MEMBERS, True, 10), (TOPICS, False, 10)])
def test_pods_that_end_one_after_the_other_leave_their_group_soon(sort: str, fails: bool, again_at: int) -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        nobody = cast("Any", None)
        side = KafkaSide(nobody, VirtualClock(loop), nobody, nobody)
        began, made = loop.time(), list[float]()

        async def make() -> None:
            made.append(loop.time() - began)
            if fails:
                raise TimeoutError

        def ask() -> None:
            side._attempt(sort, GROUP, make, lambda: None)

        ask()
        while len(made) < 2:
            await asyncio.sleep(0.5)
            ask()
        await side.close()
        return made

    assert [round(at) for at in run_virtual(main())] == [0, again_at]
