"""The operator with many ConsumerGroups: `python -m bench --only operator`.

The API server and the broker are real; kubelets, the StatefulSet controller and the members, which speak the group
protocol, are stand-ins. A third of the groups has retries. Phases of each size: from creation to the first statuses and
to all children, idle, a restart, and with moving commits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bench.group_lab import percentiles
from bench.operator_page import draw, page
from bench.operator_process import PREFIX, OperatorProcess, quantile, total, writes
from bench.operator_stage import BROKER, HEAP, PARTITIONS, Shape, Stage, joined, staged
from bench.report import RESULTS, Load, additions, recorded, write
from tests.support.kafka import KafkaBroker

SIZES: Final = (100, 1_000, 5_000)
FLEETS_S: Final = 1_800.0
BEGIN_S: Final = 30.0
WINDOW_S: Final = 60.0
SETTLE_S: Final = 300.0
QUIET_S: Final = 10.0
DESCRIPTORS_SPARE: Final = 1_000
"""Open files of the broker other than its logs: libraries, connections, offsets."""


async def until(done: Callable[[], bool], *, what: Callable[[], str], timeout_s: float) -> float:
    """Wait for a condition and print the progress every 15 s; returns the seconds."""
    began = said = time.monotonic()
    while not done():
        await asyncio.sleep(0.1)
        now = time.monotonic()
        if now - said > 15.0:
            said = now
            print(f"    {now - began:.0f} s: {what()}", file=sys.stderr, flush=True)
        if now - began > timeout_s:
            raise SystemExit(f"not within {timeout_s} s: {what()}")
    return time.monotonic() - began


async def window(operator: OperatorProcess, seconds: float) -> dict[str, float]:
    """CPU, memory, requests and writes of the operator within `seconds`."""
    series, before = operator.metrics(), operator.sample()
    await asyncio.sleep(seconds)
    after, now = operator.metrics(), operator.sample()
    took = now.at - before.at
    requests = total(after, "api_requests") - total(series, "api_requests")
    figures = {
        "cores": (now.cpu_s - before.cpu_s) / took,
        "rss_mib": now.rss_mib,
        "requests_per_s": requests / took,
        "writes": writes(after) - writes(series),
        "writes_per_s": (writes(after) - writes(series)) / took,
        "status_writes_per_s": (total(after, "status_writes") - total(series, "status_writes")) / took,
        "reconciles_per_s": (total(after, "reconciles") - total(series, "reconciles")) / took,
        "decision_age_p99_s": quantile(series, after, "decision_age_seconds", 0.99),
    }
    return {name: round(value, 3) for name, value in figures.items()}


async def sized(shape: Shape, *, only_fleets: bool = False) -> dict[str, Any]:
    """Figures of all phases of one size."""
    figures: dict[str, Any] = {"groups": shape.size, "scaled": shape.scaled}
    async with staged(KafkaBroker(properties=BROKER, jvm_options=HEAP), shape) as (stage, operator):
        figures |= await fleets(stage, operator)
        if only_fleets:
            return figures
        async with joined(stage) as members:
            figures["settled_s"] = round(await settle(stage, operator), 1)
            await asyncio.sleep(BEGIN_S)
            figures["idle"] = await window(operator, WINDOW_S)
            print(f"  idle: {figures['idle']}", file=sys.stderr, flush=True)
            figures["peak_mib"] = round(operator.sample().peak_mib)
            operator.stop()
            with OperatorProcess(stage.api.kubeconfig) as again:
                figures["restart"] = await restart(stage, again)
                print(f"  restart: {figures['restart']}", file=sys.stderr, flush=True)
                members.send_signal(signal.SIGUSR1)
                await asyncio.sleep(BEGIN_S)
                figures["moving"] = await window(again, WINDOW_S)
                print(f"  moving: {figures['moving']}", file=sys.stderr, flush=True)
    return figures


async def fleets(stage: Stage, operator: OperatorProcess) -> dict[str, Any]:
    """Figures from creation to the first statuses, and to all children."""
    size, watched = stage.size, stage.watched
    began, before, series = time.monotonic(), operator.sample(), operator.metrics()
    created = await stage.create()
    print(f"  {size} created in {created:.1f} s", file=sys.stderr, flush=True)
    await until(
        lambda: stage.alive() and len(watched.first) >= size,
        what=lambda: f"{len(watched.first)} have a status",
        timeout_s=FLEETS_S,
    )
    first = max(watched.first.values()) - began
    print(f"  first statuses: {first:.1f} s, {operator.sample().cpu_s - before.cpu_s:.1f} s of CPU", file=sys.stderr)
    first_cpu, waits = operator.sample().cpu_s - before.cpu_s, percentiles(watched.waits())
    await until(
        lambda: stage.alive() and len(watched.fleets) >= size,
        what=lambda: f"{len(watched.fleets)} have fleets",
        timeout_s=FLEETS_S,
    )
    now, after = operator.sample(), operator.metrics()
    found = {
        "created_s": created,
        "first_status_s": first,
        "first_status_cpu_s": first_cpu,
        "own_status_p50_s": waits["p50"],
        "own_status_p99_s": waits["p99"],
        "children_s": max(watched.fleets.values()) - began,
        "children_cpu_s": now.cpu_s - before.cpu_s,
        "children_rss_mib": now.rss_mib,
        "children_peak_mib": now.peak_mib,
        "children_requests": total(after, "api_requests") - total(series, "api_requests"),
        "children_writes": writes(after) - writes(series),
        "children_status_writes": total(after, "status_writes") - total(series, "status_writes"),
        "children_reconciles": total(after, "reconciles") - total(series, "reconciles"),
    }
    print_requests(series, after, size)
    print(f"  fleets: {found}", file=sys.stderr, flush=True)
    return {name: round(value, 2) for name, value in found.items()}


def print_requests(before: Mapping[str, float], after: Mapping[str, float], size: int) -> None:
    """Print requests per group, by verb, kind and response."""
    requests = {
        key.partition("{")[2].rstrip("}"): round((value - before.get(key, 0.0)) / size, 2)
        for key, value in after.items()
        if key.startswith("consumer_fleet_operator_api_requests_total{")
    }
    print("\n".join(f"    {value} {key}" for key, value in sorted(requests.items()) if value), file=sys.stderr)


async def settle(stage: Stage, operator: OperatorProcess) -> float:
    """Wait until all groups are Ready, no status write is pending, and the operator has written nothing for
    `QUIET_S`; returns the seconds until the last write."""
    began = time.monotonic()
    last, since = -1.0, began
    while time.monotonic() - began < SETTLE_S:
        await asyncio.sleep(1.0)
        series = operator.metrics()
        count, waiting = writes(series), series[f"{PREFIX}status_waiting{{}}"]
        if count != last or waiting:
            last, since = count, time.monotonic()
        elif time.monotonic() - since > QUIET_S and sum(stage.watched.ready.values()) == stage.size:
            return since - began
    ready = sum(stage.watched.ready.values())
    said = f"  not settled: {ready} of {stage.size} are Ready, last write {time.monotonic() - since:.0f} s ago"
    print(said, file=sys.stderr, flush=True)
    return time.monotonic() - began


async def restart(stage: Stage, operator: OperatorProcess) -> dict[str, float]:
    """Figures of a new process with existing objects: until it works, and requests and writes until it is idle."""
    ready = operator.wait_working()
    settled = await settle(stage, operator)
    sample, series = operator.sample(), operator.metrics()
    print_requests({}, series, stage.size)
    figures = {
        "ready_s": ready,
        "settled_s": settled,
        "cpu_s": sample.cpu_s,
        "rss_mib": sample.rss_mib,
        "peak_mib": sample.peak_mib,
        "requests": total(series, "api_requests"),
        "writes": writes(series),
    }
    return {name: round(value, 2) for name, value in figures.items()}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.operator", description=__doc__)
    parser.add_argument(
        "--size", type=int, action="append", help=f"number of groups; may be repeated (default: {SIZES})"
    )
    parser.add_argument("--scaled", action="store_true", help="all groups have spec.scaling")
    parser.add_argument(
        "--partitions", type=int, default=PARTITIONS, help=f"partitions of each source (default: {PARTITIONS})"
    )
    parser.add_argument("--trial", action="store_true", help="print the result and record nothing")
    parser.add_argument("--only-fleets", action="store_true", help="stop once all fleets exist")
    options = parser.parse_args(arguments)
    if options.partitions != PARTITIONS and not (options.trial or options.only_fleets):
        parser.error("--partitions: figures are recorded for the default only; add --trial")
    load = Load()
    results = []
    shapes = [Shape(size, options.partitions, scaled=options.scaled) for size in options.size or SIZES]
    for shape in shapes:
        allow_descriptors(shape)
    for shape in shapes:
        print(f"{shape.size} groups", file=sys.stderr, flush=True)
        found = asyncio.run(sized(shape, only_fleets=options.only_fleets))
        results.append({**found, "additions_s": round(additions(), 3)})
    if options.only_fleets:
        print(json.dumps(results, indent=1))
        return
    # A size takes long, so new results are merged with recorded ones of other sizes.
    made = [which(new) for new in results]
    sizes = sorted([*(each for each in _recorded_sizes() if which(each) not in made), *results], key=which)
    write(recorded("operator", {"sizes": sizes}, load), list(page(sizes)), trial=options.trial)
    if not options.trial:
        draw([each for each in sizes if not each["scaled"]])


def allow_descriptors(shape: Shape) -> None:
    """Raise the limit of open files for the started servers, or exit with advice.

    A broker that reaches its limit halts, minutes after the start. It keeps one file open per partition: of the failed
    topic of each group, and of the retry and redrive topics of groups with retries.
    """
    retries = max(shape.retry_partitions, shape.partitions) * len(shape.delays) + shape.partitions
    wanted = DESCRIPTORS_SPARE + shape.size * shape.partitions + shape.size // shape.retries_every * retries
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
        except (ValueError, OSError):
            raise SystemExit(
                f"{shape.size} groups need about {wanted} open files of the broker, and the limit is {hard}: raise it "
                f"(ulimit -n {wanted}), or use fewer --partitions"
            ) from None


def which(figures: Mapping[str, Any]) -> tuple[int, bool]:
    """The key of figures: the number of groups, and True if they are scaled."""
    return figures["groups"], figures["scaled"]


def _recorded_sizes() -> list[dict[str, Any]]:
    path = RESULTS / "operator.json"
    sizes: list[dict[str, Any]] = json.loads(path.read_text())["sizes"] if path.exists() else []
    return sizes


if __name__ == "__main__":
    main(sys.argv[1:])
