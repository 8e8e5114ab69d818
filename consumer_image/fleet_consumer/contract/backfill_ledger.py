"""The ledger and the control of a Backfill: two ConfigMaps by which driver and operator tell each other what they need.

The driver alone writes the ledger, after each slice and when it pauses; the operator alone writes the control. The
ledger is what a new attempt goes on from, so it is written only when the slice's records are where they belong. Both
come from objects that people can edit: what cannot be read raises, and is never taken for a beginning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fleet_consumer.contract.section import Section, SettingsInvalid

LEDGER_KEY: Final = "ledger.json"
ALIVE_KEY: Final = "alive"
CONTROL_KEY: Final = "control.json"
"""Keys of the ConfigMaps' data. `alive` stands beside the ledger and changes while a job makes progress."""
VERSION: Final = 1
SAMPLES_MAX: Final = 10
"""Differing records that a ledger shows; all of them are in the sink."""
SAMPLE_TEXT_MAX: Final = 256
"""Characters of one side's result or error in a sample."""

Ranges = Mapping[int, tuple[tuple[int, int], ...]]
"""Offsets by partition: disjoint ranges in order, each with its first offset and its end (exclusive)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Records of a Backfill: handled (`records_in`), returned, failed, and passed by.

    `filtered` are the records that `filter` did not select; `dropped` those that the handler or a rule skipped on
    purpose. Neither is handled.
    """

    records_in: int = 0
    records_out: int = 0
    failed: int = 0
    dropped: int = 0
    filtered: int = 0

    def plus(self, other: Counts) -> Counts:
        """The sums."""
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in COUNTS.values()})


COUNTS: Final = {
    "in": "records_in",
    "out": "records_out",
    "failed": "failed",
    "dropped": "dropped",
    "filtered": "filtered",
}
"""Names of the counts in the ledger and in status, with their fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One record that two handlers answered differently: each side's result or error as text."""

    partition: int
    offset: int
    live: str
    candidate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Records by what both handlers made of them; `equal` includes those that failed alike in both."""

    equal: int = 0
    different: int = 0
    failed_live_only: int = 0
    failed_candidate_only: int = 0
    samples: tuple[Sample, ...] = ()


COMPARED: Final = {
    "equal": "equal",
    "different": "different",
    "failedLiveOnly": "failed_live_only",
    "failedCandidateOnly": "failed_candidate_only",
}
"""Names of the comparison's counts in the ledger and in status, with their fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProblem:
    """An attempt's error; `final`: another attempt would fail alike."""

    reason: str
    message: str
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Progress of a Backfill.

    `attempt` is the driver that wrote it, `handlers` one of `backfill_config.PASSES`: a comparison of two images goes
    through the ranges twice. `remaining` is what has not been covered by this pass. `slices_left` is an estimate.
    `records_per_second` is the rate of the last slice. `throttled_by` is `Rate`, `Guard`, or empty.
    `slice_offsets` is the size of the slice under way, 0 between slices. `ended`: the driver has written its last word:
    all is covered if nothing remains and there is no `problem`, else it stopped because the control says so.
    """

    attempt: int
    handlers: str = "Both"
    remaining: Ranges
    slices_done: int = 0
    slices_left: int = 0
    slice_offsets: int = 0
    counts: Counts = field(default_factory=Counts)
    comparison: Comparison | None = None
    records_per_second: float = 0.0
    throttled_by: str = ""
    throttle_message: str = ""
    problem: RunProblem | None = None
    ended: bool = False

    @property
    def offsets_left(self) -> int:
        """Offsets that this pass has not covered."""
        return sum(end - first for ranges in self.remaining.values() for first, end in ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardWord:
    """The operator's word about the live group: whether to pause, why, and a text that changes with every look.

    A driver that sees the same `look` for long does not know how the live group is, and pauses.
    """

    pause: bool
    message: str
    look: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The operator's orders. `suspend`: end after the slice under way. `guard` None: there is none."""

    suspend: bool = False
    records_per_second: int | None = None
    guard: GuardWord | None = None


def ledger_text(ledger: Ledger) -> str:
    """The ledger as it is stored."""
    comparison, problem = ledger.comparison, ledger.problem
    return _json(
        {
            "version": VERSION,
            "attempt": ledger.attempt,
            "handlers": ledger.handlers,
            "remaining": {str(part): [list(each) for each in ranges] for part, ranges in ledger.remaining.items()},
            "slicesDone": ledger.slices_done,
            "slicesLeft": ledger.slices_left,
            "sliceOffsets": ledger.slice_offsets,
            "counts": {name: getattr(ledger.counts, attribute) for name, attribute in COUNTS.items()},
            "comparison": None if comparison is None else _comparison_json(comparison),
            "recordsPerSecond": round(ledger.records_per_second, 3),
            "throttledBy": ledger.throttled_by,
            "throttleMessage": ledger.throttle_message,
            "problem": None
            if problem is None
            else {"reason": problem.reason, "message": problem.message, "final": problem.final},
            "ended": ledger.ended,
        }
    )


def parse_ledger(text: str) -> Ledger:
    """A stored ledger. Raises SettingsInvalid."""
    section = Section(_loaded(text, LEDGER_KEY), LEDGER_KEY)
    section.integer("version", VERSION, VERSION)
    ledger = Ledger(
        attempt=section.integer("attempt", 0),
        handlers=section.choice("handlers", "Both", "Live", "Candidate"),
        remaining=_remaining(section),
        slices_done=section.integer("slicesDone", 0),
        slices_left=section.integer("slicesLeft", 0),
        slice_offsets=section.integer("sliceOffsets", 0),
        counts=section.read("counts", _counts),
        comparison=section.optional("comparison", _comparison),
        records_per_second=_number(section, "recordsPerSecond"),
        throttled_by=str(section.take("throttledBy")),
        throttle_message=str(section.take("throttleMessage")),
        problem=section.optional("problem", _problem),
        ended=section.boolean("ended"),
    )
    section.end()
    return ledger


def control_text(control: Control) -> str:
    """The control as it is stored."""
    guard = control.guard
    return _json(
        {
            "version": VERSION,
            "suspend": control.suspend,
            "recordsPerSecond": control.records_per_second,
            "guard": None if guard is None else {"pause": guard.pause, "message": guard.message, "look": guard.look},
        }
    )


def parse_control(text: str) -> Control:
    """A stored control. Raises SettingsInvalid."""
    section = Section(_loaded(text, CONTROL_KEY), CONTROL_KEY)
    section.integer("version", VERSION, VERSION)
    control = Control(
        suspend=section.boolean("suspend"),
        records_per_second=section.optional_integer("recordsPerSecond", 1),
        guard=section.optional("guard", _guard),
    )
    section.end()
    return control


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True)


def _loaded(text: str, key: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsInvalid(key, f"is not JSON: {error}") from error


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    samples = [
        {"partition": each.partition, "offset": each.offset, "live": each.live, "candidate": each.candidate}
        for each in comparison.samples
    ]
    return {**{name: getattr(comparison, attribute) for name, attribute in COMPARED.items()}, "samples": samples}


def _remaining(section: Section) -> Ranges:
    found, path = section.take("remaining"), section.at("remaining")
    if not isinstance(found, dict):
        raise SettingsInvalid(path, "must map partitions to ranges of offsets")
    remaining = {}
    for partition, ranges in found.items():
        if not (partition.isascii() and partition.isdigit() and _are_ranges(ranges)):
            raise SettingsInvalid(path, f"has {partition!r}: {ranges!r}; write a partition and a list of [first, end]")
        remaining[int(partition)] = tuple((first, end) for first, end in ranges)
    return remaining


def _are_ranges(ranges: object) -> bool:
    """True for disjoint ranges in order."""
    if not isinstance(ranges, list):
        return False
    before = 0
    for each in ranges:
        if not (isinstance(each, list) and len(each) == 2 and all(type(offset) is int for offset in each)):
            return False
        if not before <= each[0] < each[1]:
            return False
        before = each[1]
    return True


def _counts(section: Section) -> Counts:
    return Counts(**{attribute: section.integer(name, 0) for name, attribute in COUNTS.items()})


def _comparison(section: Section) -> Comparison:
    counts = {attribute: section.integer(name, 0) for name, attribute in COMPARED.items()}
    samples = section.take("samples")
    if not isinstance(samples, list):
        raise SettingsInvalid(section.at("samples"), "must be a list")
    return Comparison(**counts, samples=tuple(_sample(each, section.at("samples")) for each in samples))


def _sample(found: object, path: str) -> Sample:
    section = Section(found, path)
    sample = Sample(
        partition=section.integer("partition", 0),
        offset=section.integer("offset", 0),
        live=str(section.take("live")),
        candidate=str(section.take("candidate")),
    )
    section.end()
    return sample


def _problem(section: Section) -> RunProblem:
    return RunProblem(
        reason=section.text("reason"), message=str(section.take("message")), final=section.boolean("final")
    )


def _guard(section: Section) -> GuardWord:
    return GuardWord(
        pause=section.boolean("pause"), message=str(section.take("message")), look=str(section.take("look"))
    )


def _number(section: Section, name: str) -> float:
    value = section.take(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise SettingsInvalid(section.at(name), f"must be a number of at least 0, not {value!r}")
    return float(value)
