"""Rates as members report them: levels, bytes, and when a plan takes a rate for changed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.assignors.reported_rates import (
    NO_REPORT,
    SECTION_BYTES_MAX,
    WEIGHTS,
    Report,
    decode_report,
    encode_report,
    level_of,
    steady,
)

tables = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.dictionaries(st.integers(0, 5000), st.integers(0, 255), min_size=1, max_size=40),
    max_size=6,
)


@given(own=tables, kept=tables)
def test_report_is_read_as_it_was_written(own: dict[str, dict[int, int]], kept: dict[str, dict[int, int]]) -> None:
    assert decode_report(encode_report(Report(own, kept))) == Report(own, kept)


@pytest.mark.parametrize("rate", [0.01, 0.5, 1.0, 3.0, 250.0, 80_000.0])
def test_level_keeps_a_rate_within_five_per_cent(rate: float) -> None:
    assert WEIGHTS[level_of(rate)] / WEIGHTS[level_of(1.0)] == pytest.approx(rate, rel=0.05)


def test_impossible_rates_have_the_nearest_level() -> None:
    rates = [float("nan"), -1.0, 0.0, 1e-9, float("inf"), 1e300]
    assert [level_of(rate) for rate in rates] == [0, 0, 0, 0, 255, 255]


def test_five_thousand_partitions_take_five_kilobytes() -> None:
    table = {"orders": {number: number % 200 for number in range(5000)}}
    assert len(encode_report(Report(kept=table))) < 5100


def test_report_of_too_many_topics_keeps_the_busiest() -> None:
    table = {f"topic-{number:0200}": {0: 100 + number % 100} for number in range(1000)}
    data = encode_report(Report(table, table))
    report = decode_report(data)
    assert len(data) < 2 * SECTION_BYTES_MAX + 10
    assert report.own == report.kept
    assert min(levels[0] for levels in report.own.values()) >= 180


@pytest.mark.parametrize(
    "data", [None, b"", b"\x00", b"\x01", b"\x02\x00\x00", b"\x01\x00\x00\x00", b"\x01" + b"\xff" * 9]
)
def test_damaged_report_is_no_report(data: bytes | None) -> None:
    assert decode_report(data) == NO_REPORT


@given(st.binary(max_size=80))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    report = decode_report(b"\x01" + data)
    assert sum(map(len, report.own.values())) + sum(map(len, report.kept.values())) <= len(data)


def test_cut_report_is_no_report() -> None:
    whole = encode_report(Report({"orders": {0: 9, 1: 8, 7: 3}}, {"orders": {5: 5}}))
    assert [decode_report(whole[:end]) for end in range(len(whole))] == [NO_REPORT] * len(whole)


@pytest.mark.parametrize("seed", range(50))
def test_noise_of_twenty_per_cent_leaves_the_levels_of_the_last_plan(seed: int) -> None:
    chance = random.Random(seed)
    rates = {number: chance.lognormvariate(3, 2) for number in range(20)}
    former = {"t": {number: level_of(rate) for number, rate in rates.items()}}
    noisy = {"t": {number: level_of(rate * chance.uniform(0.8, 1.2)) for number, rate in rates.items()}}
    assert steady(noisy, former) == former


def test_load_of_all_that_doubles_leaves_the_levels() -> None:
    former = {"t": {0: 100, 1: 120, 2: 90}}
    assert steady({"t": {0: 108, 1: 128, 2: 98}}, former) == former


def test_partition_whose_share_doubles_gets_its_new_level() -> None:
    former = {"t": {0: 100, 1: 120, 2: 90}}
    assert steady({"t": {0: 108, 1: 120, 2: 90}}, former) == {"t": {0: 108, 1: 120, 2: 90}}


def test_level_that_nobody_measures_now_stays() -> None:
    assert steady({"t": {1: 50}}, {"t": {0: 100}, "u": {3: 7}}) == {"t": {0: 100, 1: 50}, "u": {3: 7}}
