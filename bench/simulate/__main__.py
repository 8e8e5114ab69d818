"""`python -m bench.simulate`: replays curves of arrivals through rules of scaling."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from bench.simulate import page
from bench.simulate.cases import Case, all_cases
from bench.simulate.comparison import compare
from bench.simulate.curves import CurveInvalid, Recording, parse_steps, read_csv
from bench.simulate.dealing import deal
from bench.simulate.options import ALL, WORLD, parser
from bench.simulate.world import REBALANCE_S, START_S, World, constant, even_shares, hot_shares
from fleet_consumer.assignors import AssignorInvalid, AssignorUnknown
from fleet_operator.api.v1alpha1.consumergroup import Scaling

EXIT_OK: Final = 0
EXIT_INPUT: Final = 2
PARTITIONS: Final = 12
SPEC: Final = {
    "min_replicas": "minReplicas",
    "max_replicas": "maxReplicas",
    "catch_up_seconds": "catchUpSeconds",
    "max_lag_seconds": "maxLagSeconds",
    "scale_down_stabilization_seconds": "scaleDownStabilizationSeconds",
    "max_rebalances_per_hour": "maxRebalancesPerHour",
}
"""Options, and the fields of `spec.scaling` that they set."""


def run(found: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    try:
        text = _outcome(found)
    except (
        *(CurveInvalid, AssignorUnknown, AssignorInvalid, page.PlotUnavailableError),
        *(OSError, ValueError),
    ) as error:
        print(f"python -m bench.simulate: {error}", file=sys.stderr)
        return EXIT_INPUT
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader has seen enough; the interpreter must not write the rest at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_OK


def _outcome(found: argparse.Namespace) -> str:
    if found.list:
        return "\n".join(page.case_list(all_cases(found.seed)))
    cases = _chosen(found) if found.case else [_own(found)]
    if found.plot is not None and len(cases) > 1:
        raise ValueError(f"--plot draws one curve, and {len(cases)} are given: leave out the others")
    compared = [compare(_changed(case, found), found.lag_threshold) for case in cases]
    if found.plot is not None:
        page.plot(compared[0], found.plot)
    if found.json:
        return page.as_json(compared, seed=found.seed)
    return "\n".join(page.lines(compared, seed=found.seed, steps=found.steps_taken))


def _chosen(found: argparse.Namespace) -> list[Case]:
    """The built-in cases that are named."""
    given = [name for name in WORLD if getattr(found, name) is not None]
    if given:
        raise ValueError(f"--{given[0].replace('_', '-')}: a case has its own; use it with --curves or --steps")
    cases = {case.name: case for case in all_cases(found.seed)}
    unknown = [name for name in found.case if name != ALL and name not in cases]
    if unknown:
        raise ValueError(f"--case: there is no case {unknown[0]!r}; --list prints all of them")
    return list(cases.values()) if ALL in found.case else [cases[name] for name in dict.fromkeys(found.case)]


def _own(found: argparse.Namespace) -> Case:
    """The case that a file or steps and the options describe."""
    if found.curves is not None:
        recording, name = read_csv(found.curves), found.curves.name
    else:
        recording, name = Recording(arrivals=parse_steps(found.steps)), "steps"
    seconds = recording.arrivals.seconds
    late = [f"{begin:g}-{end:g}" for begin, end in found.outage or () if begin >= seconds]
    if late:
        raise ValueError(f"--outage: {late[0]} begins after the last of the {seconds:g} s of the curve; move it")
    return Case(name=name, group="", shows="arrivals as given", world=_world(found, recording), seconds=seconds)


def _world(found: argparse.Namespace, recording: Recording) -> World:
    for option, column, given in (
        (found.capacity, recording.capacity, "capacity"),
        (found.record_seconds, recording.record_s, "record-seconds"),
        (found.downstream, recording.downstream, "downstream"),
        (found.partitions, recording.shares, "partitions"),
        (found.hot, recording.shares, "hot"),
    ):
        if option is not None and column is not None:
            raise ValueError(f"--{given}: the file has a column for it: leave out one of both")
    capacity = recording.capacity or (found.capacity and constant(found.capacity))
    record_s = recording.record_s or (found.record_seconds and constant(found.record_seconds))
    if (capacity is None) == (record_s is None):
        raise ValueError("give what a worker can do: either --capacity or --record-seconds, or a column of the file")
    shares = recording.shares.values[0] if recording.shares is not None else _shares(found)
    if found.stuck is not None and not 0 <= found.stuck[0] < len(shares):
        raise ValueError(f"--stuck: there is no partition {found.stuck[0]}; give one from 0 to {len(shares) - 1}")
    return World(
        arrivals=recording.arrivals,
        capacity=capacity or constant(1.0),
        record_s=record_s,
        slots=found.concurrency or 1,
        seed=found.seed if found.single_records else None,
        shares=shares,
        shares_at=recording.shares,
        downstream=recording.downstream or (found.downstream and constant(found.downstream)),
        stuck=dict([found.stuck]) if found.stuck is not None else {},
        unseen=tuple(found.outage or ()),
        start_s=START_S if found.start_seconds is None else found.start_seconds,
        rebalance_s=REBALANCE_S if found.rebalance_seconds is None else found.rebalance_seconds,
    )


def _shares(found: argparse.Namespace) -> tuple[float, ...]:
    partitions = found.partitions or PARTITIONS
    return even_shares(partitions) if found.hot is None else hot_shares(partitions, found.hot)


def _changed(case: Case, found: argparse.Namespace) -> Case:
    """The case with what the options say about the group and its scaling."""
    given: dict[str, Any] = {
        field: getattr(found, option) for option, field in SPEC.items() if getattr(found, option) is not None
    }
    spec = {**case.spec, **given}
    _check(spec)
    changes: dict[str, Any] = {}
    if found.assignor is not None:
        deal(found.assignor, 1, (), 1)
        changes["assignor"] = found.assignor
    if found.poll_seconds is not None:
        changes["poll_s"] = float(found.poll_seconds)
    if found.commit_seconds is not None:
        changes["commit_s"] = float(found.commit_seconds)
    start = case.start if found.start is None else found.start
    return replace(case, spec=spec, start=start, world=replace(case.world, **changes))


def _check(spec: dict[str, Any]) -> None:
    try:
        Scaling.model_validate(spec)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        flags = {name: option.replace("_", "-") for option, name in SPEC.items()}
        raise ValueError(f"--{flags.get(field, field)}: {first['msg']}") from None


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments, and run."""
    return run(parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
