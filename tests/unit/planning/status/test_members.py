"""Members and their partitions in status."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_operator.planning.problem import name_some
from fleet_operator.planning.scaling.dealing import most_useful
from fleet_operator.planning.status.members import assignment


def listed(entries: Sequence[Mapping[str, str]]) -> dict[str, set[int]]:
    """The partitions that an assignment lists, by topic."""
    found: dict[str, set[int]] = {}
    for entry in entries:
        assert re.fullmatch(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*", entry["ranges"]), "the CRD's pattern"
        for run in entry["ranges"].split(","):
            first, _, last = run.partition("-")
            found.setdefault(entry["topic"], set()).update(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize(
    ("partitions", "entries"),
    [
        ({}, []),
        ({"orders": ()}, []),
        ({"orders": (3,)}, [("orders", "3")]),
        ({"orders": (0, 1, 2, 3, 7)}, [("orders", "0-3,7")]),
        ({"orders": (7, 2, 0, 1, 0)}, [("orders", "0-2,7")]),
        ({"refunds": (1,), "orders": (0, 1)}, [("orders", "0-1"), ("refunds", "1")]),
        ({"orders": (-1, 0), "x" * 250: (0,)}, [("orders", "0")]),
    ],
)
def test_partitions_are_ranges_by_topic(
    partitions: Mapping[str, tuple[int, ...]], entries: Sequence[tuple[str, str]]
) -> None:
    """Claims of a foreign member that no topic can have would make the API server refuse the status."""
    assert assignment(partitions) == [{"topic": topic, "ranges": ranges} for topic, ranges in entries]


@given(st.dictionaries(st.sampled_from(["a", "b.c"]), st.sets(st.integers(0, 150), min_size=1, max_size=50)))
def test_ranges_lose_nothing(owned: dict[str, set[int]]) -> None:
    assert listed(assignment({topic: tuple(numbers) for topic, numbers in owned.items()})) == owned


@pytest.mark.parametrize(
    "owned",
    [
        {"orders": range(0, 20_000, 2)},
        {f"{'topic' * 40}-{number:03}": (0, 2) for number in range(100)},
        {f"t{number:03}": range(0, 40, 2) for number in range(100)},
        {f"t{number}": (0,) for number in range(100)},
    ],
    ids=["scattered", "long names", "many topics", "short names"],
)
def test_large_assignments_are_cut_at_whole_ranges(owned: Mapping[str, Sequence[int]]) -> None:
    """A hundred members must fit into one object."""
    entries = assignment(owned)
    assert entries
    assert all(numbers <= set(owned[topic]) for topic, numbers in listed(entries).items())
    assert len(entries) <= 20
    assert sum(len(entry["topic"]) + len(entry["ranges"]) for entry in entries) <= 1024


def test_sentences_name_a_few_and_count_the_rest() -> None:
    assert name_some(["a"]) == "a"
    assert name_some(list("abcde")) == "a, b, c and 2 more"


def test_useful_workers_depend_on_the_assignor() -> None:
    """Range deals every topic to the same first members; the others deal all partitions together."""
    counts = {"a": 4, "b": 2}
    assert (most_useful(counts, "range"), most_useful(counts, "roundrobin")) == (4, 6)
