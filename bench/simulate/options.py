"""The command line of the simulator."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.simulate.cases import SEED
from bench.simulate.world import ASSIGNOR, COMMIT_S, POLL_S, REBALANCE_S, START_S
from fleet_operator.api.v1alpha1.consumergroup import REPLICAS_MAX, Scaling

DESCRIPTION: Final = """\
Replay a curve of arrivals on a model of a consumer group, and print a table of what these would have done with it:

  fleet   the operator's own planner
  keda/N  an HPA that follows KEDA's lag metric, with a lagThreshold of 10 s of a worker's work, and KEDA's default, 10
  flink   the rule of Flink's autoscaler
  oracle  the least fleet, for somebody who knows the curve in advance

Nothing is connected to, and nothing is changed. lag-seconds and pod-seconds are sums over the seconds of the run. The
last column says UNBOUNDED if the lag still rises at the end and the oracle's does not.
"""
EPILOG: Final = """\
A CSV file has the columns time (seconds) and rate (records a second), and may have capacity (records a second of one
worker), record_seconds (the time of one record), downstream (records a second of all workers together) and partition_0
to partition_N (parts of the arrivals). Each line holds until the next one; the last one only ends the curve. Of a
running group, Prometheus has the rate as sum(rate(kafka_topic_partition_current_offset[1m])) or the like.

  python -m bench.simulate --list
  python -m bench.simulate --case a1-warm-partition --steps-taken
  python -m bench.simulate --curves orders.csv --partitions 24 --capacity 120 --max-replicas 24 --plot orders.svg
  python -m bench.simulate --steps 600:50,900:300,1200:50 --partitions 12 --capacity 60 --lag-threshold 500
"""
WORLD: Final = (
    *("partitions", "capacity", "record_seconds", "concurrency", "hot", "stuck", "downstream", "outage"),
    *("single_records", "start_seconds", "rebalance_seconds"),
)
"""Options that describe what a case has already."""
ALL: Final = "all"


def parser() -> argparse.ArgumentParser:
    """The parser of the command line. Options that are not given are None, as cases have values of their own."""
    command = argparse.ArgumentParser(
        prog="python -m bench.simulate",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_curve(command)
    _add_world(command)
    _add_group(command)
    _add_scaling(command)
    out = command.add_argument_group("output")
    out.add_argument("--steps-taken", action="store_true", help="print each step of each rule, and its reason")
    out.add_argument("--json", action="store_true", help="print JSON, with all steps")
    out.add_argument("--plot", type=Path, metavar="FILE", help="draw the one curve; the ending is the format, as .svg")
    return command


def _add_curve(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("curve, one of these")
    add = group.add_mutually_exclusive_group(required=True).add_argument
    add("--curves", type=Path, metavar="CSV", help="recorded arrivals, and what workers could do")
    add("--steps", metavar="S:RATE,…", help="arrivals as steps: seconds and records a second of each")
    add("--case", action="append", metavar="NAME", help=f"a built-in case, or {ALL}; may be repeated")
    add("--list", action="store_true", help="print the built-in cases, and what each of them shows")


def _add_world(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("what meets the curve, with --curves and --steps").add_argument
    add("--partitions", type=_whole(1, 10_000), metavar="N", help="default: 12, or those of the file")
    add("--capacity", type=_rate, metavar="RATE", help="records a second that one worker handles")
    add("--record-seconds", type=_seconds, metavar="S", help="time that one record takes, instead of --capacity")
    add("--concurrency", type=_whole(1, 1000), metavar="N", help="records that a worker has in hand; default: 1")
    add("--single-records", action="store_true", default=None, help="draw single arrivals at random about the rate")
    add("--hot", type=_share, metavar="SHARE", help="part of the arrivals that goes to one partition, such as 0.4")
    add("--stuck", type=_at, metavar="PARTITION@S", help="partition that stands from that second on")
    add("--downstream", type=_rate, metavar="RATE", help="records a second that all workers together can handle")
    add("--outage", type=_stretch, action="append", metavar="FROM-TO", help="seconds without brokers; may be repeated")
    add("--start-seconds", type=_seconds, metavar="S", help=f"start of a worker; default: {START_S:g}")
    add("--rebalance-seconds", type=_seconds, metavar="S", help=f"its pause; default: {REBALANCE_S:g}")


def _add_group(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("group and rules").add_argument
    add("--start", type=_whole(0, REPLICAS_MAX), metavar="N", help="workers at the start; default: 1, or the case's")
    add("--assignor", metavar="NAME", help=f"built in, or module:Class; default: {ASSIGNOR}")
    add("--poll-seconds", type=_whole(1, 3600), metavar="S", help=f"of the operator; default: {POLL_S:g}")
    add("--commit-seconds", type=_whole(1, 3600), metavar="S", help=f"of workers; default: {COMMIT_S:g}")
    add("--lag-threshold", type=_whole(1, 10**12), metavar="N", help="of KEDA, instead of 10 s of a worker's work")
    add(
        "--seed",
        type=_whole(0, 2**63),
        default=SEED,
        metavar="N",
        help="of noise and of arrivals; default: %(default)s",
    )


def _add_scaling(command: argparse.ArgumentParser) -> None:
    base, add = Scaling(), command.add_argument_group("spec.scaling").add_argument
    for flag, default in (
        ("--min-replicas", base.min_replicas),
        ("--max-replicas", "the partitions"),
        ("--catch-up-seconds", base.catch_up_seconds),
        ("--max-lag-seconds", None),
        ("--scale-down-stabilization-seconds", base.scale_down_stabilization_seconds),
        ("--max-rebalances-per-hour", base.max_rebalances_per_hour),
    ):
        add(flag, type=int, metavar="N", help=f"default: {default}, or the case's")


def _rate(text: str) -> float:
    value = _finite(text)
    if not 0.0 < value < 1e12:
        raise argparse.ArgumentTypeError(f"{text} is not a rate of records a second; give more than 0")
    return value


def _share(text: str) -> float:
    value = _finite(text)
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not a part; give a number between 0 and 1")
    return value


def _seconds(text: str) -> float:
    value = _finite(text)
    if not 0.0 <= value <= 86_400.0:
        raise argparse.ArgumentTypeError(f"{text} is too long or negative; give seconds up to a day")
    return value


def _at(text: str) -> tuple[int, float]:
    partition, mark, at = text.partition("@")
    if not mark:
        raise argparse.ArgumentTypeError(f"{text} must be a partition and a second, such as 3@300")
    return int(partition), _finite(at)


def _stretch(text: str) -> tuple[float, float]:
    begin, mark, end = text.partition("-")
    if not mark or _finite(end) <= _finite(begin):
        raise argparse.ArgumentTypeError(f"{text} must be two seconds, such as 900-1020")
    return _finite(begin), _finite(end)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a number; give one such as 1.5")
    return value


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least} and {most:,}")
        return value

    return parse
