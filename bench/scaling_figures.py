"""Figures of one run of the scaling benchmark, from its observations. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from bench.scaling_loads import Case
from e2e.scaling.scene import Samples

LATE_S: Final = 1.0
"""A record is late if it waits this much longer than the handling time of one record."""
POINTS_S: Final = 2.0
"""Interval of points in the plot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Observations of one run; times in epoch seconds.

    - `samples`: lines of the witness, and the workers' output per record.
    - `pods`, `generations`: the status of the ConsumerGroup over time.
    - `begun`, `stepped`, `ended`: start, step and end of the load.
    """

    samples: Samples
    pods: Sequence[tuple[float, int]]
    generations: Sequence[tuple[float, int]]
    begun: float
    stepped: float
    ended: float


def figures_of(seen: Seen, case: Case) -> dict[str, Any]:
    """Figures of the run. `answer_s` and `drained_s` are None if that was not reached."""
    known = seen.samples.known(seen.begun, seen.ended)
    pods = [(at, count) for at, count in seen.pods if seen.begun <= at < seen.ended]
    generations = [number for at, number in seen.generations if seen.begun <= at < seen.ended and number >= 0]
    drained = Samples(known).drained_at(seen.stepped, lag=10.0 * case.stepped_rate)
    return {
        "lag_seconds": round(Samples(known).lag_seconds()),
        "worst_lag": max((each["lag"] for each in known), default=0),
        "longest_wait_s": round(_longest_wait(seen), 1),
        "pod_seconds": round(sum(count * (later - at) for (at, count), (later, _) in pairwise(pods))),
        "rebalances": seen.samples.episodes(seen.begun, seen.ended),
        "generations": generations[-1] - generations[0] if generations else 0,
        "answer_s": answer_s(seen.samples.handled, seen.stepped, late_s=LATE_S + case.per_record_s),
        "drained_s": None if drained is None else round(drained - seen.stepped, 1),
        "most_pods": max((count for _, count in pods), default=0),
        "last_pods": pods[-1][1] if pods else 0,
        "last_lag": known[-1]["lag"] if known else 0,
        "series": _series(known, pods, seen.begun),
    }


def answer_s(handled: Sequence[Mapping[str, Any]], stepped: float, *, late_s: float) -> float | None:
    """Seconds from the arrival of the first late record after the step until a new worker starts its first record; None
    without such a record or worker. A worker is new if it had no record before the step."""
    before = {each["worker"] for each in handled if each["at"] < stepped}
    late = [
        appended
        for each in handled
        if (appended := each["appended"] / 1000.0) >= stepped and each["at"] - appended > late_s
    ]
    new = [each["at"] for each in handled if each["at"] >= stepped and each["worker"] not in before]
    return round(min(new) - min(late), 1) if late and new else None


def _longest_wait(seen: Seen) -> float:
    waits = (each["at"] - each["appended"] / 1000.0 for each in seen.samples.handled if each["at"] < seen.ended)
    return max(waits, default=0.0)


def _series(
    known: Sequence[Mapping[str, Any]], pods: Sequence[tuple[float, int]], begun: float
) -> dict[str, list[list[float]]]:
    lags, last = list[list[float]](), -POINTS_S
    for each in known:
        at = each["at"] - begun
        if at - last >= POINTS_S:
            lags.append([round(at, 1), each["lag"]])
            last = at
    return {"lag": lags, "pods": [[round(at - begun, 1), count] for at, count in pods]}
