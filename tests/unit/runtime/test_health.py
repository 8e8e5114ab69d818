"""The operator's endpoints: a page that takes long holds up nothing else."""

from __future__ import annotations

import asyncio
import threading

import aiohttp

from fleet_operator.runtime.health import HealthServer, LoopWatchdog
from fleet_operator.runtime.metrics import Metrics


class Slow(Metrics):
    """Metrics whose page takes as long as a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.rendering = threading.Semaphore(0)
        self.finish = threading.Event()
        self.at_once = self.most_at_once = 0

    def text(self) -> bytes:
        """The page, once the test allows."""
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.rendering.release()
        self.finish.wait(10.0)
        self.at_once -= 1
        return super().text()


def test_probes_are_answered_while_a_page_of_metrics_is_made() -> None:
    """5000 groups took 1.4 s of the event loop, for each scrape."""

    async def scene() -> None:
        metrics = Slow()
        server = HealthServer(
            metrics=metrics, watchdog=LoopWatchdog(metrics), ready=lambda: None, health_port=0, metrics_port=0
        )
        await server.start()
        health, pages = server.ports
        async with aiohttp.ClientSession() as session:

            async def get(port: int, path: str) -> int:
                async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                    await answer.read()
                    return answer.status

            scrapes = [asyncio.create_task(get(pages, "/metrics")) for _ in range(2)]
            await asyncio.to_thread(metrics.rendering.acquire, timeout=10.0)
            assert await get(health, "/healthz") == 200
            assert not any(scrape.done() for scrape in scrapes)
            metrics.finish.set()
            assert await asyncio.gather(*scrapes) == [200, 200]
        assert metrics.most_at_once == 1
        await server.stop()

    asyncio.run(scene())
