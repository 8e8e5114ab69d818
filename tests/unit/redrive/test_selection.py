"""Each failed record that is wanted is moved once, by whichever run comes first, and none goes round in circles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.contract.failure_reasons import FailureReason
from fleet_consumer.contract.patterns import compile_pattern
from fleet_consumer.contract.redrive_config import Filter
from fleet_consumer.record import Headers, Record
from fleet_consumer.redrive.selection import Decision, Ledger, Selection, matches
from fleet_consumer.retry.headers import read
from tests.unit.redrive.documents import FAILED, ID, NOW, OTHER_ID, REDRIVE, failed, moved

ALL = Filter()


def run(
    topic: list[Record], *, ledger: list[Record] | None = None, redrive_id: str = ID, wanted: Filter = ALL
) -> tuple[list[int], list[Record]]:
    """The offsets that a run selects, and what it writes to the redrive topic."""
    known = Ledger(redrive_id)
    for record in ledger or []:
        known.record_moved(record, NOW)
    selection = Selection(wanted, known, redrive_id=redrive_id, max_redrives=3)
    offsets, written = [], []
    for record in topic:
        choice = selection.choose(record, NOW)
        if choice.decision in (Decision.MOVE, Decision.MOVED_BEFORE):
            known.add(choice.digest, record)
            offsets.append(record.offset)
        if choice.decision is Decision.MOVE:
            written.append(moved(record, choice.history, redrive_id))
    return offsets, written


def decision(record: Record, *, redrive_id: str = ID) -> Decision:
    return Selection(ALL, Ledger(redrive_id), redrive_id=redrive_id, max_redrives=3).choose(record, NOW).decision


def test_every_wanted_record_is_moved_once_and_a_second_run_moves_none() -> None:
    topic = [failed(offset) for offset in range(10)]
    offsets, written = run(topic)
    assert offsets == list(range(10))
    assert run(topic, ledger=written, redrive_id=OTHER_ID) == ([], [])


@given(st.integers(0, 10))
def test_killed_run_counts_moved_records_and_writes_only_the_rest(written_before: int) -> None:
    topic = [failed(offset) for offset in range(10)]
    _, written = run(topic)
    offsets, again = run(topic, ledger=written[:written_before])
    assert offsets == list(range(10))
    assert len(again) == 10 - written_before


def test_copies_in_the_failed_topic_are_moved_once() -> None:
    """A record redelivered on the main topic after its retry publish was written runs through its attempts twice."""
    topic = [failed(0, origin=5), failed(1, origin=6), failed(2, origin=5)]
    offsets, written = run(topic)
    assert offsets == [0, 1]
    assert run(topic[2:], ledger=written, redrive_id=OTHER_ID) == ([], [])


def test_copies_count_once_also_when_the_run_was_killed_between_them() -> None:
    topic = [failed(0, origin=5), failed(1, origin=5)]
    _, written = run(topic)
    assert run(topic, ledger=written) == ([0], [])


def test_copy_of_a_record_that_was_moved_and_committed_before_a_stop_counts_no_second_time() -> None:
    topic = [failed(0, origin=5), failed(1, origin=5), failed(2, origin=6)]
    _, written = run(topic[:1])
    assert run(topic[1:], ledger=written)[0] == [2]


def test_record_that_failed_again_is_moved_by_another_run_up_to_the_limit() -> None:
    found = [decision(failed(0, redrives=count, redrive_id=OTHER_ID if count else None)) for count in range(5)]
    assert found == [Decision.MOVE] * 3 + [Decision.GUARDED] * 2


def test_run_never_moves_its_own_records_that_failed_again() -> None:
    assert decision(failed(0, redrives=1, redrive_id=ID)) is Decision.GUARDED


def test_record_that_claims_the_identity_of_another_does_not_hide_it() -> None:
    topic = [failed(0, origin=5, value=b"forged"), failed(1, origin=5)]
    assert run(topic)[0] == [0, 1]


def test_records_that_others_wrote_into_the_redrive_topic_hide_nothing() -> None:
    topic = [failed(0)]
    strange = [Record(REDRIVE, 0, 0, NOW, b"k", b"v"), Record(REDRIVE, 0, 1, NOW, b"k", b"v", topic[0].headers)]
    assert run(topic, ledger=strange)[0] == [0]


@pytest.mark.parametrize(
    ("wanted", "offsets"),
    [
        (Filter(), [0, 1, 2, 3]),
        (Filter(reasons=frozenset({"timeout", "fatal"})), [1, 3]),
        (Filter(error=compile_pattern("ValueError: dup")), [2]),
        (Filter(error=compile_pattern("^cancelled")), []),
        (Filter(key=compile_pattern("^UA")), [0, 1]),
        (Filter(from_ms=NOW + 10), [1, 2, 3]),
        (Filter(to_ms=NOW + 20), [0, 1]),
        (Filter(from_ms=NOW + 10, to_ms=NOW + 30), [1, 2]),
        (Filter(reasons=frozenset({"timeout"}), key=compile_pattern("DL")), []),
    ],
)
def test_filter_selects_records_matching_all_its_parts(wanted: Filter, offsets: list[int]) -> None:
    topic = [
        failed(0, key=b"UA-1"),
        failed(1, key=b"UA-2", reason=FailureReason.TIMEOUT, at=NOW + 10),
        failed(2, key=b"DL-1", error="duplicate", at=NOW + 20),
        failed(3, key=None, reason=FailureReason.FATAL, at=NOW + 30),
    ]
    assert run(topic, wanted=wanted)[0] == offsets


def test_record_without_details_is_matched_by_an_expression_for_nothing() -> None:
    assert matches(Filter(error=compile_pattern("^: $")), Record(FAILED, 0, 0, NOW, b"k", b"v"))


VALUES = st.none() | st.binary(max_size=30) | st.integers(-5, 2**70).map(lambda number: str(number).encode())
NAMES = st.sampled_from(["kr-reason", "kr-attempt", "kr-redrive-id", "kr-redrive-count", "kr-origin-offset", "a"])


@given(st.lists(st.tuples(NAMES, VALUES), max_size=12), st.none() | st.binary(max_size=9))
def test_damaged_record_is_moved_once_and_known_again(headers: Headers, key: bytes | None) -> None:
    record = Record(FAILED, 2, 9, NOW, key, b"v", headers)
    offsets, written = run([record])
    if read(record, now_ms=NOW).redrive_count >= 3:
        assert offsets == []
        return
    assert offsets == [9]
    assert run([record], ledger=written, redrive_id=OTHER_ID) == ([], [])
    assert run([record], ledger=written) == ([9], [])
