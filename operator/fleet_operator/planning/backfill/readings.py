"""A Backfill's ledger, application and pods (plain dicts, as the API server gives them), read into facts. Pure.

People can edit all of them. A ledger that cannot be read, or that says less than it said before, is a problem: it is
never taken for a beginning, nor for an end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.backfill_config import parse_config
from fleet_consumer.contract.backfill_ledger import LEDGER_KEY, Ledger, parse_ledger
from fleet_consumer.contract.pod import BACKFILL_FILE
from fleet_consumer.contract.section import SettingsInvalid
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.backfill import Backfill
from fleet_operator.planning.backfill.ranges import ResolvedRange, range_of
from fleet_operator.planning.backfill.spark import DRIVER_CONTAINER, MESSAGE_CHARACTERS_MAX
from fleet_operator.planning.foreign_json import read_last_object, read_object
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.run import read_waiting

BOTH: Final = ("Both",)
APART: Final = ("Live", "Candidate")
"""Passes of a comparison whose handlers are in two images."""
LEDGER_CHARACTERS_MAX: Final = 512 * 1024
"""Enough for some ranges of each of 5,000 partitions. What people write may not take the operator's time."""
AT_LEAST: Final = "coveredAtLeast"
"""The name under which the least number of offsets that were done is remembered."""
AT_LEAST_STEPS: Final = 20
"""Steps of that number: each one is a write, and a Backfill may have thousands of slices."""
EXIT_CODE: Final = re.compile(r"ExitCode: (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A ledger that can be read, compared with the range. `covered` counts all passes, and so does `total`.

    `ledger` is None before a driver has written it.
    """

    ledger: Ledger | None
    passes: tuple[str, ...]
    covered: int
    total: int

    @property
    def pass_done(self) -> bool:
        """True if the ledger says that its pass is at its end."""
        ledger = self.ledger
        return ledger is not None and ledger.ended and ledger.problem is None and not ledger.offsets_left

    @property
    def next_pass(self) -> str:
        """The pass of the next attempt."""
        if self.ledger is None:
            return self.passes[0]
        place = self.passes.index(self.ledger.handlers)
        return self.passes[min(place + self.pass_done, len(self.passes) - 1)]

    @property
    def done(self) -> bool:
        """True if the last pass is at its end."""
        return self.pass_done and self.ledger is not None and self.ledger.handlers == self.passes[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverEnd:
    """The end of a driver; `code` is None where nobody knows it. `reason` and `message` are its own words."""

    code: int | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPod:
    """A pod of a Backfill's application; `waiting` is why it does not run yet, `end` the end of its driver."""

    name: str
    ended: bool
    waiting: Problem | None = None
    end: DriverEnd | None = None


def passes_of(backfill: Backfill, default_image: str) -> tuple[str, ...]:
    """The passes over the range: two if the handlers of a comparison are in two images."""
    compare = backfill.spec.compare
    other = compare.image if compare is not None else None
    return APART if other is not None and other != (backfill.spec.spark.image or default_image) else BOTH


def read_ledger(
    backfill: Backfill,
    resolved: ResolvedRange,
    passes: tuple[str, ...],
    body: Mapping[str, Any] | None,
    at_least: int | None,
) -> Progress | Problem:
    """The progress that a ledger's ConfigMap shows; `body` is None if there is none. `at_least` offsets were done
    before; None while no driver had written it."""
    name, total = naming.backfill_ledger(backfill.metadata.name), resolved.offsets * len(passes)
    text = ((body or {}).get("data") or {}).get(LEDGER_KEY)
    began = bool(backfill.status.get("applicationUid")) or backfill.attempts > 1
    if text is None:
        if (body is None and began) or at_least is not None:
            return _unreadable(name, "is gone" if body is None else f"has no {LEDGER_KEY} any more")
        return Progress(ledger=None, passes=passes, covered=0, total=total)
    ledger = _read(name, text)
    if isinstance(ledger, Problem):
        return ledger
    if ledger.attempt > backfill.attempts:
        return _unreadable(name, f"is of attempt {ledger.attempt}, and there were {backfill.attempts}")
    if ledger.handlers not in passes:
        return _unreadable(name, f"is of the handlers {ledger.handlers!r}, and not of {' or '.join(passes)}")
    strange = _outside(ledger, resolved)
    if strange is not None:
        return _unreadable(name, f"has offsets of partition {strange} that are not in the range")
    covered = passes.index(ledger.handlers) * resolved.offsets + resolved.offsets - ledger.offsets_left
    if at_least is not None and covered < at_least:
        return _unreadable(name, f"shows {covered} offsets as done, and before it were at least {at_least}")
    return Progress(ledger=ledger, passes=passes, covered=covered, total=total)


def estimate(resolved: ResolvedRange, ledger: Ledger) -> dict[str, int]:
    """Records, bytes and time of the whole of a range, by the ledger of a sample that is done, as status has them."""
    whole, counts, rate = resolved.sampled_from or resolved.offsets, ledger.counts, ledger.offsets_per_second
    counted = {"records": counts.records_in, "failed": counts.failed, "bytes": counts.bytes_in}
    scaled = {name: -(-count * whole // max(resolved.offsets, 1)) for name, count in counted.items()}
    return {**scaled, **({"seconds": math.ceil(whole / rate)} if rate > 0.0 else {})}


def round_down(covered: int, total: int) -> int:
    """The number of offsets to remember as done, in steps of the whole."""
    return covered - covered % max(total // AT_LEAST_STEPS, 1)


@dataclass(frozen=True, slots=True)
class Kept:
    """Traces of attempts that status knows nothing of: their range, or why it cannot be gone on with, and the number of
    the newest that has written the ledger."""

    resolved: ResolvedRange | Problem
    attempt: int = 1


def read_kept(backfill: Backfill, settings: Mapping[str, Any] | None, ledger: Mapping[str, Any] | None) -> Kept | None:
    """Find attempts of a Backfill that has none in its status, which was lost then; None if there were none.

    `settings` and `ledger` are their ConfigMaps, None where there is none. The ledger is made first, so one without the
    other was deleted, unless nothing was written into it.
    """
    name = naming.backfill_ledger(backfill.metadata.name)
    text = ((ledger or {}).get("data") or {}).get(LEDGER_KEY)
    if settings is None and text is None:
        return None
    if ledger is None:
        return Kept(_unreadable(name, "is gone"))
    attempt = 1
    if text is not None:
        read = _read(name, text)
        if isinstance(read, Problem):
            return Kept(read)
        attempt = max(read.attempt, 1)
    document = ((settings or {}).get("data") or {}).get(BACKFILL_FILE)
    try:
        return Kept(range_of(backfill, parse_config(read_object(document))), attempt)
    except SettingsInvalid as error:
        message = (
            f"ConfigMap {naming.backfill_settings(backfill.metadata.name)!r}, which names the range of an earlier "
            f"attempt, is gone or cannot be read ({error}), and the range in status was lost: create another Backfill "
            "for the rest of the range"
        )
        return Kept(Problem(c.SETTINGS_LOST, message), attempt)


def of_other_range(backfill: Backfill) -> Problem:
    """The problem of a range in status that is not the one which attempts were given."""
    name = naming.backfill_ledger(backfill.metadata.name)
    return _unreadable(name, "is of another range than status.resolvedRange")


@lru_cache(maxsize=16)
def _parsed(text: str) -> Ledger:
    """A ledger changes with each slice, and is looked at more often."""
    return parse_ledger(text)


def _read(name: str, text: str) -> Ledger | Problem:
    """The ledger in the ConfigMap of this name, or the problem of a text that no driver has written."""
    if len(text) > LEDGER_CHARACTERS_MAX:
        return _unreadable(name, f"has {len(text)} characters, and a driver's never has that many")
    try:
        return _parsed(text)
    except SettingsInvalid as error:
        return _unreadable(name, f"cannot be read: {error}")


def _unreadable(name: str, seen: str) -> Problem:
    message = (
        f"ConfigMap {name!r}, in which the driver notes how far it is, {seen}: nobody knows what is left to do; create "
        "another Backfill for the rest of the range"
    )
    return Problem(c.LEDGER_UNREADABLE, message)


def _outside(ledger: Ledger, resolved: ResolvedRange) -> int | None:
    """A partition of which the ledger has offsets that are not in the range."""
    for partition, ranges in ledger.remaining.items():
        first, end = resolved.ranges.get(partition, (0, 0))
        if any(low < first or high > end for low, high in ranges):
            return partition
    return None


def read_pods(pods: Iterable[Mapping[str, Any]]) -> tuple[SparkPod, ...]:
    return tuple(map(_read_pod, pods))


def _read_pod(pod: Mapping[str, Any]) -> SparkPod:
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    if status.get("phase") not in ("Succeeded", "Failed"):
        return SparkPod(name=name, ended=False, waiting=read_waiting(status))
    for container in status.get("containerStatuses") or ():
        terminated = (container.get("state") or {}).get("terminated")
        if container.get("name") == DRIVER_CONTAINER and terminated is not None:
            return SparkPod(name=name, ended=True, end=_read_end(terminated))
    return SparkPod(name=name, ended=True)


def _read_end(terminated: Mapping[str, Any]) -> DriverEnd:
    code = terminated.get("exitCode")
    text = str(terminated.get("message") or "")
    said = read_last_object(text) or {}
    return DriverEnd(
        code=code if isinstance(code, int) else None,
        reason=str(said.get("reason") or "")[: c.REASON_CHARACTERS_MAX],
        message=str(said.get("message") or text[-MESSAGE_CHARACTERS_MAX:]).strip(),
    )


def end_by_message(message: str) -> DriverEnd | None:
    """The end of a driver whose pod is gone, from the words of the application's status."""
    found = EXIT_CODE.search(message)
    return DriverEnd(code=int(found[1])) if found is not None else None
