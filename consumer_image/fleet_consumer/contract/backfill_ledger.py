"""A Backfill's ledger and control: the two ConfigMaps through which its driver and the operator communicate.

Only the driver writes the ledger, after each slice and when it pauses; only the operator writes the control. A new
attempt continues from the ledger, so the driver writes the ledger only after the slice's records are stored. People can
edit both objects, so unreadable content raises an error and is never treated as an empty ledger.
"""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from fleet_consumer.contract import fields
from fleet_consumer.contract.backfill_config import BOTH, PASSES, is_range
from fleet_consumer.contract.section import Section, SettingsInvalid

LEDGER_KEY: Final = "ledger.json"
ALIVE_KEY: Final = "alive"
CONTROL_KEY: Final = "control.json"
"""Keys of the ConfigMaps' data. `alive` is in the ledger's ConfigMap, and changes while a Spark job makes progress."""
VERSION: Final = 1
SAMPLES_MAX: Final = 10
"""Maximum number of differing records in a ledger; the sink has all differing records."""
SAMPLE_TEXT_MAX: Final = 256
"""Maximum number of characters of one handler's result or error in a sample."""

Ranges = Mapping[int, tuple[tuple[int, int], ...]]
"""Maps partitions to sorted, disjoint ranges of offsets: pairs of first offset and end (exclusive)."""


def _said(section: Section, name: str) -> str:
    """Read a message for people, possibly empty."""
    return str(section.pop(name))


@fields.settings
class Counts:
    """Numbers of a Backfill's records. `records_in` counts handled records, and `bytes_in` is the size of their keys
    and values.

    `dropped` counts records that the handler or a rule skipped on purpose, `filtered` counts records that `filter`
    excluded. Records of both kinds are not included in `records_in`.
    """

    records_in: int = fields.integer(name="in", default=0)
    records_out: int = fields.integer(name="out", default=0)
    failed: int = fields.integer(default=0)
    dropped: int = fields.integer(default=0)
    filtered: int = fields.integer(default=0)
    bytes_in: int = fields.integer(name="bytes", later=0, default=0)

    def plus(self, other: "Counts") -> "Counts":
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in COUNTED})


COUNTED: Final = tuple(fields.names_of(Counts).values())
COUNTS: Final = {name: field for name, field in fields.names_of(Counts).items() if field != "bytes_in"}
"""Maps the names of the record counts in the ledger and in status to the fields of `Counts`."""


@fields.settings
class Sample:
    """A record with different results of the two handlers. `live` and `candidate` are results or errors as text."""

    partition: int = fields.integer()
    offset: int = fields.integer()
    live: str = fields.read_by(_said)
    candidate: str = fields.read_by(_said)


@fields.settings
class Comparison:
    """Numbers of records by comparison result. `equal` includes records that failed with the same error in both
    handlers."""

    equal: int = fields.integer(default=0)
    different: int = fields.integer(default=0)
    failed_live_only: int = fields.integer(default=0)
    failed_candidate_only: int = fields.integer(default=0)
    samples: tuple[Sample, ...] = fields.listed(Sample, default=())


COMPARED: Final = {name: field for name, field in fields.names_of(Comparison).items() if field != "samples"}
"""Maps the names of a comparison's counts in the ledger and in status to the fields of `Comparison`."""


@fields.settings
class SuspectedRecord:
    """A record at which the process of one handler (`side`: `Live` or `Candidate`) died `deaths` times."""

    partition: int = fields.integer()
    offset: int = fields.integer()
    side: str = fields.choice(*PASSES)
    deaths: int = fields.integer(1)


@fields.settings
class RunProblem:
    """The error that ended an attempt. If `final`, further attempts would fail in the same way."""

    reason: str = fields.text()
    message: str = fields.read_by(_said)
    final: bool = fields.boolean()


def _remaining(section: Section, name: str) -> Ranges:
    found = fields.by_partition(section, name, "ranges of offsets", "a list of [first, end]", _are_ranges)
    return {partition: tuple((first, end) for first, end in ranges) for partition, ranges in found}


def _are_ranges(ranges: object) -> bool:
    if not (isinstance(ranges, list) and all(map(is_range, ranges)) and all(first < end for first, end in ranges)):
        return False
    return all(before[1] <= after[0] for before, after in pairwise(ranges))


def _rate(section: Section, name: str) -> float:
    value = section.pop(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise SettingsInvalid(section.at(name), f"must be a number of at least 0, not {value!r}")
    return float(value)


@fields.settings
class Ledger:
    """Progress of a Backfill, as written by attempt number `attempt`.

    - `handlers` is one of `backfill_config.PASSES`: a comparison of two images reads the ranges twice.
    - `remaining` are the ranges that this pass has not yet covered; `slices_left` is an estimate of the remaining
      slices.
    - `records_per_second` is the rate of the last slice. `offsets_per_second` is the rate at which `remaining` shrinks.
      The latter is higher if a filter excludes records, or if some offsets have no record.
    - `throttled_by` is `Rate`, `Guard`, or empty.
    - `slice_offsets` is the size of the current slice, 0 between slices.
    - The rows of slices before `published` are committed to the sink's table. The rows of slices from `published` to
      `publishing` (exclusive) are being committed.
    - `repeated` counts tasks that Spark restarted because an executor died.
    - `ended` marks the driver's last write. The pass is complete if `remaining` is empty and `problem` is None.
      Otherwise the driver stopped because of the control or the `problem`.
    """

    attempt: int = fields.integer()
    handlers: str = fields.choice(*PASSES, default=BOTH)
    remaining: Ranges = fields.read_by(_remaining)
    slices_done: int = fields.integer(default=0)
    slices_left: int = fields.integer(default=0)
    slice_offsets: int = fields.integer(default=0)
    published: int = fields.integer(later=0, default=0)
    publishing: int = fields.integer(later=0, default=0)
    counts: Counts = fields.nested(Counts, default=Counts())
    comparison: Comparison | None = fields.nested(Comparison, null=True, default=None)
    records_per_second: float = fields.read_by(_rate, default=0.0)
    offsets_per_second: float = fields.read_by(_rate, later=0.0, default=0.0)
    throttled_by: str = fields.read_by(_said, default="")
    throttle_message: str = fields.read_by(_said, default="")
    suspects: tuple[SuspectedRecord, ...] = fields.listed(SuspectedRecord, later=(), default=())
    repeated: int = fields.integer(later=0, default=0)
    problem: RunProblem | None = fields.nested(RunProblem, null=True, default=None)
    ended: bool = fields.boolean(default=False)

    @property
    def offsets_left(self) -> int:
        return sum(end - first for ranges in self.remaining.values() for first, end in ranges)


@fields.settings
class GuardWord:
    """The operator's report on the live group: `pause`, and the reason as `message`. `checked` changes with every
    check.

    If `checked` stays the same for too long, the live group's state is unknown, and the driver pauses.
    """

    pause: bool = fields.boolean()
    message: str = fields.read_by(_said)
    checked: str = fields.read_by(_said)


@fields.settings
class Control:
    """The operator's instructions to the driver. `suspend` stops the driver after the current slice."""

    suspend: bool = fields.boolean(default=False)
    records_per_second: int | None = fields.integer(1, null=True, default=None)
    guard: GuardWord | None = fields.nested(GuardWord, null=True, default=None)


def ledger_text(ledger: Ledger) -> str:
    rates = {"recordsPerSecond": ledger.records_per_second, "offsetsPerSecond": ledger.offsets_per_second}
    return _json({**fields.rendered(ledger), **{name: round(rate, 3) for name, rate in rates.items()}})


def parse_ledger(text: str) -> Ledger:
    """Parse a stored ledger. Raises SettingsInvalid."""
    return fields.parse_file(Ledger, _loaded(text, LEDGER_KEY), LEDGER_KEY, VERSION)


def control_text(control: Control) -> str:
    return _json(fields.rendered(control))


def parse_control(text: str) -> Control:
    """Parse a stored control. Raises SettingsInvalid."""
    return fields.parse_file(Control, _loaded(text, CONTROL_KEY), CONTROL_KEY, VERSION)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps({"version": VERSION, **document}, separators=(",", ":"), ensure_ascii=True)


def _loaded(text: str, key: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsInvalid(key, f"is not JSON: {error}") from error
