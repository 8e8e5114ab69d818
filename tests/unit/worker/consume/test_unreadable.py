"""Data that cannot be read are passed by on request only, and nothing next to them is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet_consumer.contract.skips import PassedBy, Place, render_skips
from fleet_consumer.fetch.read_errors import PartitionError
from fleet_consumer.group.errors import DataUnreadable, OffsetLookupFailed
from fleet_consumer.record import Produce
from fleet_consumer.worker.consume.loop import AGAIN_S
from tests.unit.worker.consume.test_retry_intake import R0, START_MS, waiting_headers
from tests.unit.worker.consume.test_retry_intake import Shop as RetryShop
from tests.unit.worker.scripted import P0, P1, Bench, values

WRONG = DataUnreadable("partition t-0: wrong CRC")


class Stands:
    """A worker whose partition stands at offset 3, in a batch that ends at 7."""

    def __init__(self, folder: Path, handle: Any = None) -> None:
        self.path = folder / "skip.json"
        self.seen: list[bytes] = []
        kept = handle or (lambda record: self.seen.append(record.value))
        self.bench = Bench(kept, {P0: values(3), P1: values(2)}, skips=str(self.path))
        self.consumer = self.bench.consumer
        self.consumer.stands_at = {P0: PartitionError(3, WRONG, 90.0, 0.0, void=True)}
        self.consumer.batch_end = self.batch_end
        self.consumer.seek = self.seek
        self.asked: list[int] = []
        self.sought: list[int] = []
        self.refusal: Exception | None = None

    def batch_end(self, partition: object, offset: int, timeout_s: float) -> int:
        self.asked.append(offset)
        if self.refusal is not None:
            raise self.refusal
        return 7

    def seek(self, partition: Any, offset: int) -> None:
        assert partition == P0
        self.sought.append(offset)
        self.consumer._positions[P0] = offset
        self.consumer.stands_at = {}

    def skip(self, *places: Place) -> None:
        self.path.write_text(json.dumps(render_skips("u", places)))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.bench.clock.now += 1
            self.bench.steps(1)


def test_place_that_is_named_is_passed_to_the_end_of_its_batch(tmp_path: Path) -> None:
    stands = Stands(tmp_path)
    stands.steps(20)
    assert (stands.asked, stands.sought) == ([], [])
    assert stands.consumer.offsets == {P0: 3, P1: 2}
    stands.skip(Place("t", 0, 3))
    stands.steps(20)
    assert (stands.asked, stands.sought) == ([3], [7])
    assert stands.consumer.offsets == {P0: 7, P1: 2}
    stats = stands.bench.stats
    (passed,) = stats.skipped.items()
    assert passed[0] == Place("t", 0, 3)
    assert passed[1] == PassedBy(passed[1].at, last_offset=6)
    assert stats.unreadable_offsets == 4
    assert stands.seen == [*values(3), *values(2)]


@pytest.mark.parametrize("place", [Place("t", 0, 2), Place("t", 0, 4), Place("t", 1, 3), Place("u", 0, 3)])
def test_other_places_pass_nothing(tmp_path: Path, place: Place) -> None:
    stands = Stands(tmp_path)
    stands.skip(place)
    stands.steps(20)
    assert (stands.asked, stands.sought) == ([], [])


def test_batch_whose_end_is_not_found_stands_and_is_tried_again(tmp_path: Path) -> None:
    stands = Stands(tmp_path)
    stands.refusal = OffsetLookupFailed("its header is damaged")
    stands.skip(Place("t", 0, 3))
    stands.steps(int(3 * AGAIN_S))
    assert 2 <= len(stands.asked) <= 10
    assert stands.sought == []
    assert stands.bench.stats.skipped == {}


def test_nothing_is_passed_before_all_in_front_of_it_is_written(tmp_path: Path) -> None:
    stands = Stands(tmp_path, lambda record: Produce("out", record.value))
    stands.bench.producer.silent = True
    stands.skip(Place("t", 0, 3))
    stands.steps(20)
    assert stands.sought == []
    assert stands.consumer.offsets[P0] == 0


def test_history_of_a_retry_topic_that_cannot_be_read_is_not_needed() -> None:
    """Records before the commit only help to find copies."""
    seen: list[int] = []
    laid = [(START_MS - 60_000, waiting_headers(n)) for n in range(5)]
    shop = RetryShop(lambda record: seen.append(record.offset), laid, committed=3, per_poll=1)
    shop.bench.steps(2)
    assert shop.consumer.position(R0) == 1, "it reads again what was committed"
    shop.consumer._paused.add(R0)  # nothing comes
    shop.consumer.stands_at = {R0: PartitionError(1, WRONG, 90.0, 0.0, void=True)}
    shop.pass_time(2)
    assert shop.consumer.position(R0) == 3
    shop.consumer._paused.clear()
    shop.pass_time(10)
    assert seen == [3, 4]
    assert shop.consumer.offsets[R0] == 5
    shop.consumer.stands_at = {R0: PartitionError(5, WRONG, 90.0, 0.0, void=True)}
    shop.pass_time(10)
    assert shop.consumer.position(R0) == 5, "what was not committed is needed"


def test_history_that_comes_just_before_what_cannot_be_read_is_not_handled_again() -> None:
    """The check finds the unreadable data in the round whose poll returned the records before them."""
    seen: list[int] = []
    laid = [(START_MS - 60_000, waiting_headers(n)) for n in range(6)]
    shop = RetryShop(lambda record: seen.append(record.offset), laid, committed=4, per_poll=2)
    shop.bench.steps(1)
    shop.consumer.stands_at = {R0: PartitionError(2, WRONG, 90.0, 0.0, void=True)}
    shop.bench.clock.now += 2
    shop.bench.steps(1)
    shop.consumer.stands_at = {}
    committed: list[int] = []
    commit = shop.consumer.commit

    def recorded(offsets: Any, timeout_s: float) -> None:
        committed.extend(entry.offset for entry in offsets.values())
        commit(offsets, timeout_s)

    shop.consumer.commit = recorded
    shop.pass_time(10)
    assert seen == [4, 5]
    assert min(committed) >= 4
