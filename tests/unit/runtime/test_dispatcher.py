"""The dispatcher on virtual time: what a reconcile returns or raises decides when the key comes back."""

from __future__ import annotations

import asyncio
import logging

import pytest

from fleet_operator.clients.kube import KubeUnavailableError
from fleet_operator.runtime.dispatcher import Dispatcher
from fleet_operator.runtime.metrics import Metrics
from tests.unit.runtime.virtual_time import run_virtual

KEY = ("ns", "a")


def test_requeue_after_brings_the_key_back_on_time() -> None:
    async def main() -> list[float]:
        seen: list[float] = []

        async def reconcile(_: tuple[str, str]) -> float | None:
            seen.append(asyncio.get_running_loop().time())
            return 30.0

        workers = Dispatcher("Thing", reconcile, count=2, metrics=Metrics())
        workers.add(KEY)
        workers.start()
        await asyncio.sleep(65.0)
        await workers.stop()
        return seen

    seen = run_virtual(main())
    assert [round(at - seen[0]) for at in seen] == [0, 30, 60]


def test_depth_of_the_queue_is_counted_when_somebody_scrapes() -> None:
    """It was written when a key was taken, and stood still while all reconciles hung."""

    async def main() -> float | None:
        metrics = Metrics()

        async def reconcile(_: tuple[str, str]) -> float | None:
            await asyncio.sleep(600.0)
            return None

        workers = Dispatcher("Thing", reconcile, count=1, metrics=metrics)
        workers.start()
        for number in range(4):
            workers.add(("ns", str(number)))
            await asyncio.sleep(1.0)
        depth = metrics.registry.get_sample_value("consumer_fleet_operator_queue_depth", {"kind": "Thing"})
        await workers.stop()
        return depth

    assert run_virtual(main()) == 3


def test_failing_key_backs_off_and_does_not_hold_up_others(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> tuple[int, int]:
        calls = {"bad": 0, "good": 0}

        async def reconcile(key: tuple[str, str]) -> float | None:
            calls[key[1]] += 1
            if key[1] == "bad":
                raise KubeUnavailableError("GET /x: 503: later", status=503)
            return None

        workers = Dispatcher("Thing", reconcile, count=1, metrics=Metrics())
        workers.start()
        workers.add(("ns", "bad"))
        for _ in range(10):
            workers.add(("ns", "good"))
            await asyncio.sleep(60.0)
        await workers.stop()
        return calls["bad"], calls["good"]

    with caplog.at_level(logging.ERROR):
        bad, good = run_virtual(main())
    assert good == 10
    assert 10 <= bad <= 40, "ten minutes of failures: some at first, then about one or two a minute"
    assert {record.getMessage() for record in caplog.records} == {"reconcile failed"}


def test_retry_after_of_the_server_is_honoured() -> None:
    async def main() -> list[float]:
        seen: list[float] = []

        async def reconcile(_: tuple[str, str]) -> float | None:
            seen.append(asyncio.get_running_loop().time())
            raise KubeUnavailableError("busy", status=429, retry_after=20.0)

        workers = Dispatcher("Thing", reconcile, count=1, metrics=Metrics())
        workers.start()
        workers.add(KEY)
        await asyncio.sleep(30.0)
        await workers.stop()
        return seen

    seen = run_virtual(main())
    assert round(seen[1] - seen[0]) == 20


def test_request_during_work_causes_one_more_run() -> None:
    async def main() -> int:
        runs = 0

        async def reconcile(_: tuple[str, str]) -> float | None:
            nonlocal runs
            runs += 1
            await asyncio.sleep(10.0)
            return None

        workers = Dispatcher("Thing", reconcile, count=4, metrics=Metrics())
        workers.start()
        workers.add(KEY)
        await asyncio.sleep(5.0)
        for _ in range(3):
            workers.add(KEY)
        await asyncio.sleep(100.0)
        await workers.stop()
        return runs

    assert run_virtual(main()) == 2


def test_stop_waits_for_work_in_flight() -> None:
    async def main() -> bool:
        finished = asyncio.Event()

        async def reconcile(_: tuple[str, str]) -> float | None:
            await asyncio.sleep(3.0)
            finished.set()
            return None

        workers = Dispatcher("Thing", reconcile, count=1, metrics=Metrics())
        workers.start()
        workers.add(KEY)
        await asyncio.sleep(0.1)
        await workers.stop()
        return finished.is_set()

    assert run_virtual(main())


def test_stop_names_interrupted_work(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> float:
        async def reconcile(_: tuple[str, str]) -> float | None:
            await asyncio.Event().wait()
            return None

        workers = Dispatcher("Thing", reconcile, count=1, metrics=Metrics())
        workers.start()
        workers.add(KEY)
        await asyncio.sleep(0.1)
        before = asyncio.get_running_loop().time()
        await workers.stop()
        return asyncio.get_running_loop().time() - before

    with caplog.at_level(logging.WARNING):
        assert run_virtual(main()) == pytest.approx(10.0)
    assert [vars(record)["keys"] for record in caplog.records] == [[KEY]]
