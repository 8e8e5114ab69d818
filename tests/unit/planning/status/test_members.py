"""Members and their partitions in status."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_operator.planning.status.conditions import useful_replicas
from fleet_operator.planning.status.members import name_some, ranges_text


@pytest.mark.parametrize(
    ("partitions", "text"),
    [
        ({}, ""),
        ({"orders": ()}, ""),
        ({"orders": (3,)}, "3"),
        ({"orders": (0, 1, 2, 3, 7)}, "0-3,7"),
        ({"orders": (7, 2, 0, 1)}, "0-2,7"),
        ({"refunds": (1,), "orders": (0, 1)}, "orders:0-1 refunds:1"),
    ],
)
def test_partitions_are_written_as_ranges(partitions: Mapping[str, tuple[int, ...]], text: str) -> None:
    assert ranges_text(partitions) == text


@given(st.sets(st.integers(0, 300), min_size=1, max_size=100))
def test_ranges_lose_nothing(numbers: set[int]) -> None:
    read = set()
    for part in ranges_text({"t": tuple(numbers)}).split(","):
        first, _, last = part.partition("-")
        read |= set(range(int(first), int(last or first) + 1))
    assert read == numbers


def test_long_lists_are_cut() -> None:
    text = ranges_text({"t": tuple(range(0, 10_000, 2))})
    assert len(text) == 1024
    assert text.endswith("…")


def test_sentences_name_a_few_and_count_the_rest() -> None:
    assert name_some(["a"]) == "a"
    assert name_some(list("abcde")) == "a, b, c and 2 more"


def test_useful_workers_depend_on_the_assignor() -> None:
    """Range deals every topic to the same first members; the others deal all partitions together."""
    counts = {"a": 4, "b": 2}
    assert (useful_replicas(counts, "range"), useful_replicas(counts, "roundrobin")) == (4, 6)
