"""The ledger and the control of a Backfill: two ConfigMaps by which driver and operator tell each other what they need.

The driver alone writes the ledger, after each slice and when it pauses; the operator alone writes the control. The
ledger is what a new attempt goes on from, so it is written only when the slice's records are where they belong. Both
come from objects that people can edit: what cannot be read raises, and is never taken for a beginning.
"""

from __future__ import annotations

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
"""Keys of the ConfigMaps' data. `alive` stands next to the ledger and changes while a job makes progress."""
VERSION: Final = 1
SAMPLES_MAX: Final = 10
"""Differing records that a ledger shows; all of them are in the sink."""
SAMPLE_TEXT_MAX: Final = 256
"""Characters of one side's result or error in a sample."""

Ranges = Mapping[int, tuple[tuple[int, int], ...]]
"""Offsets by partition: disjoint ranges in order, each with its first offset and its end (exclusive)."""


def _said(section: Section, name: str) -> str:
    """A text for people, which may be empty."""
    return str(section.take(name))


@fields.settings
class Counts:
    """Records of a Backfill: handled (`records_in`), returned, failed, and passed by.

    `filtered` are the records that `filter` did not select; `dropped` those that the handler or a rule skipped on
    purpose. Neither is handled. `bytes_in` are those of the keys and values of the handled ones.
    """

    records_in: int = fields.integer(name="in", default=0)
    records_out: int = fields.integer(name="out", default=0)
    failed: int = fields.integer(default=0)
    dropped: int = fields.integer(default=0)
    filtered: int = fields.integer(default=0)
    bytes_in: int = fields.integer(name="bytes", later=0, default=0)

    def plus(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in COUNTED})


COUNTED: Final = tuple(fields.names_of(Counts).values())
COUNTS: Final = {name: field for name, field in fields.names_of(Counts).items() if field != "bytes_in"}
"""Names of the counts of records in the ledger and in status, with their fields."""


@fields.settings
class Sample:
    """One record that two handlers answered differently: each side's result or error as text."""

    partition: int = fields.integer()
    offset: int = fields.integer()
    live: str = fields.read_by(_said)
    candidate: str = fields.read_by(_said)


@fields.settings
class Comparison:
    """Records by what both handlers made of them; `equal` includes those that failed alike in both."""

    equal: int = fields.integer(default=0)
    different: int = fields.integer(default=0)
    failed_live_only: int = fields.integer(default=0)
    failed_candidate_only: int = fields.integer(default=0)
    samples: tuple[Sample, ...] = fields.listed(Sample, default=())


COMPARED: Final = {name: field for name, field in fields.names_of(Comparison).items() if field != "samples"}
"""Names of the comparison's counts in the ledger and in status, with their fields."""


@fields.settings
class Suspect:
    """A record that a handler had in hand when its process died, so often. `side` is the handler, `Live` or
    `Candidate`."""

    partition: int = fields.integer()
    offset: int = fields.integer()
    side: str = fields.choice(*PASSES)
    deaths: int = fields.integer(1)


@fields.settings
class RunProblem:
    """An attempt's error; `final`: another attempt would fail alike."""

    reason: str = fields.text()
    message: str = fields.read_by(_said)
    final: bool = fields.boolean()


def _remaining(section: Section, name: str) -> Ranges:
    found = fields.by_partition(section, name, "ranges of offsets", "a list of [first, end]", _are_ranges)
    return {partition: tuple((first, end) for first, end in ranges) for partition, ranges in found}


def _are_ranges(ranges: object) -> bool:
    """True for disjoint ranges in order, none of them empty."""
    if not (isinstance(ranges, list) and all(map(is_range, ranges)) and all(first < end for first, end in ranges)):
        return False
    return all(before[1] <= after[0] for before, after in pairwise(ranges))


def _rate(section: Section, name: str) -> float:
    value = section.take(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise SettingsInvalid(section.at(name), f"must be a number of at least 0, not {value!r}")
    return float(value)


@fields.settings
class Ledger:
    """Progress of a Backfill.

    `attempt` is the driver that wrote it, `handlers` one of `backfill_config.PASSES`: a comparison of two images goes
    through the ranges twice. `remaining` is what has not been covered by this pass. `slices_left` is an estimate.
    `records_per_second` is the rate of the last slice, and `offsets_per_second` that at which the range gets shorter: a
    filter passes records by, and not every offset has one. `throttled_by` is `Rate`, `Guard`, or empty.
    `slice_offsets` is the size of the slice under way, 0 between slices. The rows of the slices before `published` are
    in the sink's table, and those before `publishing` are on their way there. `suspects` are records that may have
    ended the process of their handler, `repeated` counts tasks that Spark began again because an executor died.

    `ended`: the driver has written its last word: all is covered if nothing remains and there is no `problem`, else it
    stopped because the control says so.
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
    suspects: tuple[Suspect, ...] = fields.listed(Suspect, later=(), default=())
    repeated: int = fields.integer(later=0, default=0)
    problem: RunProblem | None = fields.nested(RunProblem, null=True, default=None)
    ended: bool = fields.boolean(default=False)

    @property
    def offsets_left(self) -> int:
        """Offsets that this pass has not covered."""
        return sum(end - first for ranges in self.remaining.values() for first, end in ranges)


@fields.settings
class GuardWord:
    """The operator's word about the live group: whether to pause, why, and a text that changes with every look.

    A driver that sees the same `look` for long does not know how the live group is, and pauses.
    """

    pause: bool = fields.boolean()
    message: str = fields.read_by(_said)
    look: str = fields.read_by(_said)


@fields.settings
class Control:
    """The operator's orders. `suspend`: end after the slice under way. `guard` None: there is none."""

    suspend: bool = fields.boolean(default=False)
    records_per_second: int | None = fields.integer(1, null=True, default=None)
    guard: GuardWord | None = fields.nested(GuardWord, null=True, default=None)


def ledger_text(ledger: Ledger) -> str:
    """The ledger as it is stored."""
    rates = {"recordsPerSecond": ledger.records_per_second, "offsetsPerSecond": ledger.offsets_per_second}
    return _json({**fields.rendered(ledger), **{name: round(rate, 3) for name, rate in rates.items()}})


def parse_ledger(text: str) -> Ledger:
    """A stored ledger. Raises SettingsInvalid."""
    return fields.parse_file(Ledger, _loaded(text, LEDGER_KEY), LEDGER_KEY, VERSION)


def control_text(control: Control) -> str:
    """The control as it is stored."""
    return _json(fields.rendered(control))


def parse_control(text: str) -> Control:
    """A stored control. Raises SettingsInvalid."""
    return fields.parse_file(Control, _loaded(text, CONTROL_KEY), CONTROL_KEY, VERSION)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps({"version": VERSION, **document}, separators=(",", ":"), ensure_ascii=True)


def _loaded(text: str, key: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsInvalid(key, f"is not JSON: {error}") from error
