"""`python -m bench.simulate`: replays a curve of arrivals through the operator's scaling rules."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from bench.simulate import page
from bench.simulate.curves import CurveInvalid, RecordedCurve, parse_steps, read_csv
from bench.simulate.model import World, even_shares, hot_shares
from bench.simulate.rules import FleetRule, LagRule, Rule
from bench.simulate.run import simulate
from fleet_operator.api.v1alpha1.consumergroup import REPLICAS_MAX, Scaling

EXIT_OK = 0
EXIT_INPUT = 2
DESCRIPTION = """\
Replay a curve of arrivals through the operator's own scaling rules, and through those of an HPA that follows KEDA's lag
metric, on a model of a consumer group. Nothing is connected to, and nothing is changed.
"""
EPILOG = """\
A CSV file has the columns seconds and records_per_second; each rate holds until the next line. Of a running group,
Prometheus has it as sum(rate(kafka_topic_partition_current_offset[1m])) or the like.

  python -m bench.simulate --curve orders.csv --partitions 24 --capacity 120 --max-replicas 24 --plot orders.svg
  python -m bench.simulate --steps 600:50,900:300,1200:50 --partitions 12 --capacity 60 --lag-threshold 500
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    command.description, command.epilog = DESCRIPTION, EPILOG
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    base, add = Scaling(), command.add_argument
    curve = command.add_mutually_exclusive_group(required=True)
    curve.add_argument("--curve", type=Path, metavar="CSV", help="recorded arrivals")
    curve.add_argument("--steps", metavar="S:RATE,…", help="arrivals as steps: seconds and records a second of each")
    add("--partitions", type=_whole(1, 100_000), default=12, metavar="N", help="default: %(default)s")
    add("--capacity", type=_rate, required=True, metavar="RATE", help="records a second that one worker handles")
    add("--start", type=_whole(0, REPLICAS_MAX), default=1, metavar="N", help="workers at the start; default: 1")
    add("--hot", type=_share, metavar="SHARE", help="part of the arrivals that goes to one partition, such as 0.4")
    add("--stuck", type=_at, metavar="PARTITION@S", help="partition that stands from that second on")
    add("--downstream", type=_rate, metavar="RATE", help="records a second that all workers together can handle")
    add("--outage", type=_stretch, action="append", metavar="FROM-TO", help="seconds without brokers; may be repeated")
    add("--start-seconds", type=_seconds, default=8.0, metavar="S", help="start of a worker; default: 8")
    add("--rebalance-seconds", type=_seconds, default=4.0, metavar="S", help="pause of a rebalance; default: 4")
    scaling = command.add_argument_group("spec.scaling")
    for flag, default in (
        ("--min-replicas", base.min_replicas),
        ("--max-replicas", None),
        ("--catch-up-seconds", base.catch_up_seconds),
        ("--max-lag-seconds", None),
        ("--scale-down-stabilization-seconds", base.scale_down_stabilization_seconds),
        ("--max-rebalances-per-hour", base.max_rebalances_per_hour),
    ):
        shown = "the partitions" if flag == "--max-replicas" else default
        scaling.add_argument(flag, type=int, default=default, metavar="N", help=f"default: {shown}")
    add(
        "--lag-threshold", type=_whole(1, 10**12), metavar="N", help="of the lag rule; default: 10 s of a worker's work"
    )
    add("--json", action="store_true", help="print JSON")
    add("--plot", type=Path, metavar="FILE", help="draw a plot; the ending names the format, such as .svg or .png")


def run(found: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    try:
        curve = read_csv(found.curve) if found.curve is not None else parse_steps(found.steps)
        scaling = _scaling(found)
        world = _world(found, curve)
        most = min(scaling.max_replicas or found.partitions, found.partitions)
        threshold = found.lag_threshold or max(1, round(10 * found.capacity))
        rules: tuple[Rule, ...] = (
            FleetRule(scaling),
            LagRule(threshold, max(scaling.min_replicas, 1), most, name=f"lag/{threshold}"),
        )
        acceptable_s = float(scaling.max_lag_seconds or 60)
        start = max(found.start, scaling.min_replicas)
        figures = [
            simulate(rule, world, seconds=curve.seconds, start=start, acceptable_s=acceptable_s) for rule in rules
        ]
        if found.plot is not None:
            page.plot(figures, found.plot, f"{found.partitions} partitions, {found.capacity:g} records/s a worker")
    except (CurveInvalid, page.PlotUnavailableError, OSError, ValueError) as error:
        print(f"python -m bench.simulate: {error}", file=sys.stderr)
        return EXIT_INPUT
    try:
        print(page.as_json(figures) if found.json else "\n".join(page.lines(figures)), flush=True)
    except BrokenPipeError:  # the reader has seen enough; the interpreter must not write the rest at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_OK


def _scaling(found: argparse.Namespace) -> Scaling:
    try:
        return Scaling(
            min_replicas=found.min_replicas,
            max_replicas=found.max_replicas,
            catch_up_seconds=found.catch_up_seconds,
            max_lag_seconds=found.max_lag_seconds,
            scale_down_stabilization_seconds=found.scale_down_stabilization_seconds,
            max_rebalances_per_hour=found.max_rebalances_per_hour,
        )
    except ValidationError as error:
        first = error.errors()[0]
        flag = str(first["loc"][0]).replace("_", "-") if first["loc"] else ""
        raise ValueError(f"--{flag}: {first['msg']}") from None


def _world(found: argparse.Namespace, curve: RecordedCurve) -> World:
    if found.stuck is not None and not 0 <= found.stuck[0] < found.partitions:
        raise ValueError(f"--stuck: there is no partition {found.stuck[0]}; --partitions is {found.partitions}")
    late = [f"{begin:g}-{end:g}" for begin, end in found.outage or () if begin >= curve.seconds]
    if late:
        raise ValueError(f"--outage: {late[0]} begins after the last of the {curve.seconds:g} s of the curve")
    shares = even_shares(found.partitions) if found.hot is None else hot_shares(found.partitions, found.hot)
    return World(
        arrivals=curve,
        capacity=found.capacity,
        shares=shares,
        downstream=found.downstream,
        stuck=dict([found.stuck]) if found.stuck is not None else {},
        unseen=tuple(found.outage or ()),
        start_s=found.start_seconds,
        rebalance_s=found.rebalance_seconds,
    )


def _rate(text: str) -> float:
    value = float(text)
    if not 0.0 < value < 1e12:
        raise argparse.ArgumentTypeError(f"{text} is no rate of records a second")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no part between 0 and 1")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 86_400.0:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds up to a day")
    return value


def _at(text: str) -> tuple[int, float]:
    partition, mark, at = text.partition("@")
    if not mark:
        raise argparse.ArgumentTypeError(f"{text} must be a partition and a second, such as 3@300")
    return int(partition), float(at)


def _stretch(text: str) -> tuple[float, float]:
    begin, mark, end = text.partition("-")
    if not mark or float(end) <= float(begin):
        raise argparse.ArgumentTypeError(f"{text} must be two seconds, such as 900-1020")
    return float(begin), float(end)


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least} and {most:,}")
        return value

    return parse


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments, and run."""
    command = argparse.ArgumentParser(prog="python -m bench.simulate")
    add_arguments(command)
    return run(command.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
