"""Parsing of reset policies."""

from __future__ import annotations

import pytest

from fleet_consumer.coordinator.starts import ResetPolicy


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT1H", 3_600_000),
        ("P1D", 86_400_000),
        ("P2DT3H4M5.5S", 183_845_500),
        ("PT0S", 0),
        ("pt90m", 5_400_000),
        ("PT0.001S", 1),
    ],
)
def test_durations_are_read_as_java_reads_them(text: str, milliseconds: int) -> None:
    assert ResetPolicy.parse(f"by_duration:{text}").duration_ms == milliseconds


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "PT-1H", "-PT1H", "P1Y", "P1W", "PT1H30", "P1DT", " PT1H"])
def test_invalid_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="by_duration:PT1H"):
        ResetPolicy.parse(f"by_duration:{text}")


@pytest.mark.parametrize("text", ["newest", "EARLIEST", "earliest:PT1H", "by_duration", ""])
def test_unknown_policies_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="auto_offset_reset"):
        ResetPolicy.parse(text)


def test_policies_by_word() -> None:
    assert [ResetPolicy.parse(word) for word in ("earliest", "latest", "none")] == [
        ResetPolicy.EARLIEST,
        ResetPolicy.LATEST,
        ResetPolicy.NONE,
    ]
    assert str(ResetPolicy.parse("by_duration:PT1H")) == "by_duration 3600 s"
