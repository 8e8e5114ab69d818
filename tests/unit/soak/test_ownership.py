"""The judge of faults and soak: it must find what is wrong, and only that."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.ownership import History, holes, judge


def life(name: str, *rows: list[Any]) -> History:
    history = History(name)
    for row in rows:
        history.add(row)
    return history


def assigned(at: float, generation: int = 1) -> list[Any]:
    return ["a", [0], generation, at]


def handed(first: int, last: int, began: float, ended: float, generation: int = 1) -> list[Any]:
    return ["h", 0, generation, first, last, began, ended]


def commit(number: int, offset: int, asked: float, generation: int = 1) -> list[Any]:
    return ["c", number, generation, {"0": offset}, asked]


def answered(number: int, at: float, error: str | None = None) -> list[Any]:
    return ["k", number, at, error]


def test_handover_without_repetition_is_good() -> None:
    old = life("a", assigned(0), handed(0, 9, 1, 2), commit(0, 10, 2.1), answered(0, 2.2), ["r", [0], 1, 2.3])
    new = life("b", assigned(3, 2), handed(10, 19, 4, 5, 2))
    verdict = judge([old, new], {0: 20})
    assert verdict.good
    assert (verdict.handed, verdict.duplicates) == (20, 0)


def test_undelivered_record_is_lost() -> None:
    verdict = judge([life("a", handed(0, 3, 1, 2), handed(6, 7, 3, 4))], {0: 10})
    assert not verdict.good
    assert verdict.lost_count == 4
    assert verdict.lost == [
        "partition 0: offsets 4-5 were never handed out",
        "partition 0: offsets 8-9 were never handed out",
    ]


def test_repetition_without_a_commit_is_explained() -> None:
    killed = life("a", assigned(0), handed(0, 9, 1, 2), commit(0, 5, 1.5), answered(0, 1.6), commit(1, 10, 2.1))
    heir = life("b", assigned(8, 2), handed(5, 19, 9, 10, 2))
    verdict = judge([killed, heir], {0: 20})
    assert verdict.good
    assert (verdict.duplicates, verdict.explained) == (5, 5)


def test_repetition_after_a_refused_commit_is_explained() -> None:
    woken = life("a", assigned(0), handed(0, 9, 1, 2), commit(0, 10, 8), answered(0, 8.1, "CommitFailed"))
    verdict = judge([woken, life("b", assigned(5, 2), handed(0, 9, 6, 7, 2))], {0: 10})
    assert verdict.good
    assert verdict.refused_commits == {"CommitFailed": 1}


def test_redelivery_of_a_committed_record_is_a_violation() -> None:
    old = life("a", assigned(0), handed(0, 9, 1, 2), commit(0, 10, 2.1), answered(0, 2.2), ["r", [0], 1, 2.3])
    verdict = judge([old, life("b", assigned(3, 2), handed(8, 19, 4, 5, 2))], {0: 20})
    assert not verdict.good
    assert len(verdict.unexplained) == 1
    assert "although 10 was committed" in verdict.unexplained[0]


def test_repetition_from_a_commit_that_got_no_answer_is_explained() -> None:
    """A coordinator that hung reads it from its old connection when it wakes, maybe after the newer ones."""
    rows = [assigned(0), handed(0, 5, 1, 1.5), commit(0, 6, 1.6), answered(0, 4.6, "RetriableCommitFailed: timed out")]
    rows += [handed(6, 9, 1.7, 2), commit(1, 10, 4.7), answered(1, 4.8), ["r", [0], 1, 5.0]]
    assert judge([life("a", *rows), life("b", assigned(6, 2), handed(6, 19, 7, 8, 2))], {0: 20}).good
    elsewhere = judge([life("a", *rows), life("b", assigned(6, 2), handed(7, 19, 7, 8, 2))], {0: 20})
    assert len(elsewhere.unexplained) == 1
    before = judge([life("a", *rows), life("b", assigned(6, 2), handed(5, 19, 7, 8, 2))], {0: 20})
    assert len(before.unexplained) == 1


def test_overlap_is_wrong_only_if_the_older_ones_later_commit_was_accepted() -> None:
    younger = life("b", assigned(2, 2), handed(5, 20, 3, 9, 2))
    refused = life("a", assigned(0), handed(0, 9, 1, 6), commit(0, 10, 6.1), answered(0, 6.2, "CommitFailed"))
    accepted = life("a", assigned(0), handed(0, 9, 1, 6), commit(0, 10, 6.1), answered(0, 6.2))
    assert judge([refused, younger], {0: 21}).good
    found = judge([accepted, younger], {0: 21})
    assert [sentence.split()[0] for sentence in found.overlaps] == ["a"]


def test_later_commit_under_a_new_assignment_is_no_fault_of_the_old_stint() -> None:
    first = life("a", assigned(0), handed(0, 9, 1, 6), ["l", [0], 1, 7], assigned(20, 3), handed(21, 30, 21, 22, 3))
    for row in (commit(0, 31, 23, 3), answered(0, 23.1)):
        first.add(row)
    younger = life("b", assigned(2, 2), handed(0, 20, 3, 9, 2), commit(0, 21, 9.1, 2), answered(0, 9.2))
    assert judge([first, younger], {0: 31}).good


def test_ranges_of_one_assignment_join_into_one_stint() -> None:
    history = life("a", assigned(0), handed(0, 4, 1, 2), handed(5, 9, 3, 4), assigned(5, 2), handed(10, 11, 6, 7, 2))
    assert [(stint.first, stint.last) for stint in history.stints] == [(0, 9), (10, 11)]


@given(st.sets(st.integers(0, 40)), st.integers(0, 40))
def test_holes_are_exactly_the_uncovered_offsets(offsets: set[int], end: int) -> None:
    found = {
        offset for first, last in holes(((each, each) for each in offsets), end) for offset in range(first, last + 1)
    }
    assert found == set(range(end)) - offsets
