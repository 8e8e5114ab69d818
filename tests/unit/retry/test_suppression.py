"""A copy of a retry publish is told from a record that is read again, and from a record that only claims to be the
same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.retry.headers import Origin, RetryHistory
from fleet_consumer.retry.suppression import RecordIdentity, Window, identity

ORIGIN = Origin("flights", 3, 42, 1_357_034_400_000)


def one(offset: int = 42, attempt: int = 1, redrives: int = 0, value: bytes | None = b"v") -> RecordIdentity:
    return identity(RetryHistory(Origin("flights", 3, offset, 0), attempt, redrive_count=redrives), b"k", value)


def test_copy_at_a_larger_offset_is_a_duplicate() -> None:
    window = Window()
    assert not window.duplicate(one(), 10)
    assert not window.duplicate(one(offset=43), 11)
    assert window.duplicate(one(), 12)
    assert window.duplicate(one(), 13)


def test_record_that_is_read_again_is_no_duplicate() -> None:
    """A partition that waits is sought back to its head, a held one to its first unwritten record."""
    window = Window()
    assert [window.duplicate(one(), 10) for _ in range(3)] == [False, False, False]
    assert window.duplicate(one(), 11)
    assert not window.duplicate(one(), 10)


def test_first_copy_seen_later_is_no_duplicate_of_its_own_copy() -> None:
    """After a seek far back the window may know the copy first."""
    window = Window()
    assert not window.duplicate(one(), 20)
    assert not window.duplicate(one(), 10)
    assert window.duplicate(one(), 20)


def test_next_attempt_and_next_redrive_of_a_record_are_not_duplicates() -> None:
    window = Window()
    assert [window.duplicate(each, n) for n, each in enumerate([one(), one(attempt=2), one(redrives=1)])] == [False] * 3


def test_forged_identity_does_not_make_another_record_disappear() -> None:
    window = Window()
    assert not window.duplicate(one(value=b"forged"), 1)
    assert not window.duplicate(one(), 2)


@given(
    st.tuples(st.none() | st.binary(max_size=4), st.none() | st.binary(max_size=4)),
    st.tuples(st.none() | st.binary(max_size=4), st.none() | st.binary(max_size=4)),
)
def test_different_bytes_are_different_identities(
    first: tuple[bytes | None, bytes | None], second: tuple[bytes | None, bytes | None]
) -> None:
    history = RetryHistory(ORIGIN, 1)
    assert (identity(history, *first) == identity(history, *second)) == (first == second)


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 10))
def test_window_is_bounded_and_remembers_the_last_ones(origins: list[int], size: int) -> None:
    window = Window(size)
    seen: list[int] = []
    for offset, origin in enumerate(origins):
        duplicate = window.duplicate(one(offset=origin), offset)
        newest = list(dict.fromkeys(reversed(seen)))
        if origin not in seen:
            assert not duplicate
        elif len(newest) < size:
            assert duplicate
        seen.append(origin)
    assert len(window._order) <= size
