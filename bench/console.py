"""The cost of the console: CPU and memory of a process with 5,000 groups and 20 viewers, compared with none.

Run it with `python -m bench.console`. The measured process has the operator's caches and the console, and no
reconciles. The viewers are another process. Statuses change at the operator's own limit, five each second. Each round
is measured without viewers and with viewers, in turn. The time of 20 million additions in a Python function shows the
machine's speed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from fleet_operator.clients.kinds import CONSUMER_GROUP
from tests.console.many import STAR, many_fleets, one, star, star_observation
from tests.unit.console.site import Site, site

CHANGES_PER_SECOND = 5
ADDITIONS = 20_000_000
OPENING_S = 120.0
PAGES = ("/", "/?show=trouble", f"/fleets/{STAR[0]}/{STAR[1]}", f"/fleets/{STAR[0]}/{STAR[1]}/retries")


@dataclass(frozen=True, slots=True)
class Round:
    """CPU seconds per second of the process, the fragments that viewers received, and the process's memory."""

    viewers: int
    cpu: float
    fragments: int
    rss_mib: float


def add() -> float:
    """CPU seconds of ADDITIONS additions."""
    began, total = time.process_time(), 0
    for number in range(ADDITIONS):
        total += number
    return time.process_time() - began


def rss_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def watch(client: aiohttp.ClientSession, url: str, number: int, counts: list[int]) -> None:
    """One viewer: opens a page, then reads its stream."""
    headers, path = {"Authorization": f"Bearer token-viewer-{number}"}, PAGES[number % len(PAGES)]
    async with client.get(url + path, headers=headers) as page:
        await page.read()
    async with client.get(f"{url}/stream{path}", headers=headers, timeout=aiohttp.ClientTimeout()) as stream:
        async for piece in stream.content.iter_any():
            counts[number] += piece.count(b"event: fragment")


async def watch_all(url: str, viewers: int) -> None:
    """The process of the viewers: it ends with its input, and prints the number of fragments."""
    counts = [0] * viewers
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        watching = [asyncio.create_task(watch(client, url, number, counts)) for number in range(viewers)]
        await asyncio.to_thread(sys.stdin.read)
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    print(sum(counts))


async def measure(there: Site, viewers: int, seconds: float) -> Round:
    command = [sys.executable, "-m", "bench.console", "--watch", there.url, "--viewers", str(viewers)]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    async with asyncio.timeout(OPENING_S):
        while there.server._feed.streams < viewers:  # noqa: ASYNC110 - the feed has no event for it
            await asyncio.sleep(0.1)
    shown = [star(), *(one(100 * number) for number in range(1, 50))]  # changes on the first page: the hardest case
    changes = round(CHANGES_PER_SECOND * seconds)
    began, used = time.monotonic(), time.process_time()
    for number in range(changes):
        body = shown[number % len(shown)]
        status = {**body["status"], "lagApproximate": 1 << (int(began) + number) % 30}
        there.see(CONSUMER_GROUP, {**body, "status": status})
        seen = star_observation()
        groups = {name: replace(group, observed_at=time.time()) for name, group in seen.groups.items()}
        there.observed.found[STAR[0], "main"] = replace(seen, groups=groups)
        await asyncio.sleep(1.0 / CHANGES_PER_SECOND)
    cpu = (time.process_time() - used) / (time.monotonic() - began)
    fragments, _ = await process.communicate(b"")
    return Round(viewers, cpu, int(fragments), rss_mib())


async def run(groups: int, viewers: int, seconds: float, rounds: int) -> list[Round]:
    rights = [(f"viewer-{number}", "") for number in range(viewers)]
    async with site(*rights, fleets=many_fleets(groups)) as there:
        return [await measure(there, count, seconds) for _ in range(rounds) for count in (0, viewers)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    parser.add_argument("--groups", type=int, default=5_000)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--watch", metavar="URL", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.watch:
        asyncio.run(watch_all(chosen.watch, chosen.viewers))
        return
    before = add()
    found = asyncio.run(run(chosen.groups, chosen.viewers, chosen.seconds, chosen.rounds))
    figures = {
        "groups": chosen.groups,
        "additions_s": [round(before, 2), round(add(), 2)],
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        **{
            f"viewers_{count}": {
                "cpu_cores": round(statistics.median(each.cpu for each in found if each.viewers == count), 4),
                "rss_mib": round(statistics.median(each.rss_mib for each in found if each.viewers == count)),
                "fragments": sum(each.fragments for each in found if each.viewers == count),
            }
            for count in (0, chosen.viewers)
        },
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
