"""Parsers of a Backfill's ledger and pods (plain dicts, as the API server returns them). Pure.

People can edit these objects. A ledger that is unreadable, or that shows less progress than before, is reported as a
problem. It is never treated as the ledger of a new run or of a finished run.
"""

import math
import re
from collections.abc import Mapping
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
"""Passes of a comparison whose handlers are in two different images."""
LEDGER_CHARACTERS_MAX: Final = 512 * 1024
"""Maximum length of a ledger's text, enough for several ranges in each of 5,000 partitions. A longer text must have
been written by a person, and is not parsed, because parsing would take too long."""
AT_LEAST: Final = "coveredAtLeast"
"""Key in the stored facts. Its value is a lower bound for the number of offsets that are done."""
AT_LEAST_STEPS: Final = 20
"""Number of steps in which the stored lower bound grows to the total number of offsets. Each step is a write to the API
server, and a Backfill may have thousands of slices, so a step is larger than a slice."""
EXIT_CODE: Final = re.compile(r"ExitCode: (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a Backfill: `covered` of `total` offsets are done, counted over all passes. `ledger` is None until a
    driver has written the ledger."""

    ledger: Ledger | None
    passes: tuple[str, ...]
    covered: int
    total: int

    @property
    def pass_done(self) -> bool:
        ledger = self.ledger
        return ledger is not None and ledger.ended and ledger.problem is None and not ledger.offsets_left

    @property
    def next_pass(self) -> str:
        if self.ledger is None:
            return self.passes[0]
        place = self.passes.index(self.ledger.handlers)
        return self.passes[min(place + self.pass_done, len(self.passes) - 1)]

    @property
    def done(self) -> bool:
        """True if the last pass is complete."""
        return self.pass_done and self.ledger is not None and self.ledger.handlers == self.passes[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverEnd:
    """The end of a driver: its exit code (None if unknown), and the reason and the message that it reported."""

    code: int | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPod:
    """`waiting`: why the pod does not run yet. `end`: the end of the driver, if the pod is the driver's."""

    name: str
    ended: bool
    waiting: Problem | None = None
    end: DriverEnd | None = None


def passes_of(backfill: Backfill, default_image: str) -> tuple[str, ...]:
    """Return the passes over the range: two if the handlers of a comparison are in two images, otherwise one."""
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
    """Read the progress from the ledger's ConfigMap; `body` is None if the ConfigMap does not exist. `at_least`: the
    number of offsets that the ledger showed as done before, or fewer. None if no driver had written the ledger."""
    total = resolved.offsets * len(passes)
    text = ((body or {}).get("data") or {}).get(LEDGER_KEY)
    began = bool(backfill.status.get("applicationUid")) or backfill.attempts > 1
    if text is None:
        if (body is None and began) or at_least is not None:
            return unreadable_ledger(backfill, "was deleted" if body is None else f"has no {LEDGER_KEY} now")
        return Progress(ledger=None, passes=passes, covered=0, total=total)
    ledger = _read(backfill, text)
    if isinstance(ledger, Problem):
        return ledger
    if ledger.attempt > backfill.attempts:
        return unreadable_ledger(backfill, f"names attempt {ledger.attempt}, but only {backfill.attempts} were made")
    if ledger.handlers not in passes:
        return unreadable_ledger(backfill, f"names the handlers {ledger.handlers!r} instead of {' or '.join(passes)}")
    strange = _outside(ledger, resolved)
    if strange is not None:
        return unreadable_ledger(backfill, f"has offsets of partition {strange} that are outside the range")
    covered = passes.index(ledger.handlers) * resolved.offsets + resolved.offsets - ledger.offsets_left
    if at_least is not None and covered < at_least:
        return unreadable_ledger(backfill, f"shows {covered} offsets as done, but at least {at_least} were done before")
    return Progress(ledger=ledger, passes=passes, covered=covered, total=total)


def estimate(resolved: ResolvedRange, ledger: Ledger) -> dict[str, int]:
    """Estimate records, failures, bytes and seconds of a whole range from the ledger of a finished sample. The keys are
    the field names in the status; `seconds` is absent if the rate is unknown."""
    whole, counts, rate = resolved.sampled_from or resolved.offsets, ledger.counts, ledger.offsets_per_second
    counted = {"records": counts.records_in, "failed": counts.failed, "bytes": counts.bytes_in}
    scaled = {name: -(-count * whole // max(resolved.offsets, 1)) for name, count in counted.items()}
    return {**scaled, **({"seconds": math.ceil(whole / rate)} if rate > 0.0 else {})}


def round_down(covered: int, total: int) -> int:
    """Round the number of offsets that are done down to one of AT_LEAST_STEPS steps. The result is stored."""
    return covered - covered % max(total // AT_LEAST_STEPS, 1)


@dataclass(frozen=True, slots=True)
class Kept:
    """Attempts that are no longer in the status, because the status was lost. `resolved`: their range, or the reason
    why the range cannot be continued. `attempt`: the number of the newest attempt."""

    resolved: ResolvedRange | Problem
    attempt: int = 1


def read_kept(backfill: Backfill, settings: Mapping[str, Any] | None, ledger: Mapping[str, Any] | None) -> Kept | None:
    """Find attempts that a Backfill's status has lost; None if there were none.

    `settings` and `ledger` are the ConfigMaps, None if absent. The empty ledger is created before the settings, and the
    driver writes the ledger only after the settings exist. So if the settings exist without a ledger, the ledger was
    deleted. If a written ledger exists without settings, the settings were deleted."""
    text = ((ledger or {}).get("data") or {}).get(LEDGER_KEY)
    if settings is None and text is None:
        return None
    if ledger is None:
        return Kept(unreadable_ledger(backfill, "was deleted"))
    attempt = 1
    if text is not None:
        read = _read(backfill, text)
        if isinstance(read, Problem):
            return Kept(read)
        attempt = max(read.attempt, 1)
    document = ((settings or {}).get("data") or {}).get(BACKFILL_FILE)
    try:
        return Kept(range_of(backfill, parse_config(read_object(document))), attempt)
    except SettingsInvalid as error:
        message = (
            f"ConfigMap {naming.backfill_settings(backfill.metadata.name)!r}, which has the range of an earlier "
            f"attempt, was deleted or cannot be read ({error}), and the range in the status was lost: create "
            "another Backfill for the rest of the range"
        )
        return Kept(Problem(c.SETTINGS_LOST, message), attempt)


_parsed: Final = lru_cache(maxsize=16)(parse_ledger)
"""A cached parser, because a ledger changes only once per slice and is read more often."""


def _read(backfill: Backfill, text: str) -> Ledger | Problem:
    if len(text) > LEDGER_CHARACTERS_MAX:
        return unreadable_ledger(backfill, f"has {len(text)} characters, more than any driver writes")
    try:
        return _parsed(text)
    except SettingsInvalid as error:
        return unreadable_ledger(backfill, f"cannot be read: {error}")


def unreadable_ledger(backfill: Backfill, seen: str) -> Problem:
    name = naming.backfill_ledger(backfill.metadata.name)
    message = (
        f"ConfigMap {name!r}, in which the driver records its progress, {seen}: the rest of the range is unknown; "
        "create another Backfill for it"
    )
    return Problem(c.LEDGER_UNREADABLE, message)


def _outside(ledger: Ledger, resolved: ResolvedRange) -> int | None:
    """Return the first partition for which the ledger has offsets outside the range; None if there is none."""
    for partition, ranges in ledger.remaining.items():
        first, end = resolved.ranges.get(partition, (0, 0))
        if any(low < first or high > end for low, high in ranges):
            return partition
    return None


def read_pod(pod: Mapping[str, Any]) -> SparkPod:
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
    """Find the exit code of a driver whose pod was deleted in the message of the application's status; None without
    one."""
    found = EXIT_CODE.search(message)
    return DriverEnd(code=int(found[1])) if found is not None else None
