"""The ledger and control of a Backfill: what is written is read again, and damage is never taken for a beginning."""

import json
from dataclasses import replace

import pytest

from fleet_consumer.contract.backfill_ledger import (
    COUNTS,
    Comparison,
    Control,
    Counts,
    GuardWord,
    Ledger,
    RunProblem,
    Sample,
    control_text,
    ledger_text,
    parse_control,
    parse_ledger,
)
from fleet_consumer.contract.section import SettingsInvalid

FULL = Ledger(
    attempt=3,
    handlers="Candidate",
    remaining={0: ((5, 9), (12, 20)), 11: ((0, 1),)},
    slices_done=4,
    slices_left=2,
    slice_offsets=7,
    counts=Counts(records_in=10, records_out=8, failed=1, dropped=1, filtered=2, bytes_in=900),
    comparison=Comparison(
        equal=7,
        different=1,
        failed_live_only=1,
        failed_candidate_only=1,
        samples=(Sample(partition=0, offset=6, live='{"a":1}', candidate="ValueError: é"),),
    ),
    records_per_second=12.5,
    throttled_by="Guard",
    throttle_message="live is behind",
    problem=RunProblem(reason="HandlerFailed", message="no", final=True),
    ended=True,
)


@pytest.mark.parametrize("ledger", [FULL, Ledger(attempt=0, remaining={})])
def test_a_ledger_is_read_as_it_was_written(ledger: Ledger) -> None:
    assert parse_ledger(ledger_text(ledger)) == ledger


@pytest.mark.parametrize(
    "control",
    [
        Control(),
        Control(suspend=True, records_per_second=5, guard=GuardWord(pause=True, message="behind", checked="7")),
    ],
)
def test_a_control_is_read_as_it_was_written(control: Control) -> None:
    assert parse_control(control_text(control)) == control


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("remaining", []),
        ("remaining", {"0": [[9, 5]]}),
        ("remaining", {"0": [[5, 9], [8, 12]]}),
        ("remaining", {"0": [[True, 9]]}),
        ("remaining", {"-1": [[5, 9]]}),
        ("counts", {}),
        ("recordsPerSecond", -1),
        ("ended", "yes"),
        ("surprise", 1),
    ],
)
def test_a_damaged_ledger_is_refused_with_the_field(field: str, value: object) -> None:
    document = {**json.loads(ledger_text(FULL)), field: value}
    with pytest.raises(SettingsInvalid, match=rf"ledger\.json\.{field}"):
        parse_ledger(json.dumps(document))


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_a_ledger_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(SettingsInvalid):
        parse_ledger(text)


def test_the_offsets_left_are_those_of_all_remaining_ranges() -> None:
    assert FULL.offsets_left == 4 + 8 + 1


def test_a_ledger_of_an_earlier_version_has_nothing_of_what_came_later() -> None:
    document = json.loads(ledger_text(FULL))
    for name in ("suspects", "repeated", "offsetsPerSecond"):
        del document[name]
    del document["counts"]["bytes"]
    found = parse_ledger(json.dumps(document))
    assert found == replace(FULL, counts=replace(FULL.counts, bytes_in=0))


def test_bytes_are_added_up_and_are_no_count_of_records() -> None:
    assert Counts(records_in=1, bytes_in=7).plus(Counts(bytes_in=2)) == Counts(records_in=1, bytes_in=9)
    assert list(COUNTS) == ["in", "out", "failed", "dropped", "filtered"]
