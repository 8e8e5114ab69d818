"""A record is due when its delay is over: never early, none put off, only heads waited for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.retry.due import DueClock, Waiting, due_at

PARTITION = TopicPartition("_fleet.orders.retry.30s", 0)
OTHER = TopicPartition("_fleet.orders.retry.5s", 3)
REDRIVE = TopicPartition("_fleet.orders.redrive", 0)
T = 1_700_000_000_000


def run(*appended: int, first: int = 100, partition: TopicPartition = PARTITION) -> list[Record]:
    return [Record(*partition, first + n, at, b"k", b"v") for n, at in enumerate(appended)]


def clock(**delays: int) -> DueClock:
    made = DueClock()
    for partition, delay in ((PARTITION, delays.get("delay", 30)), (OTHER, 5), (REDRIVE, 0)):
        made.assign(partition, delay)
    return made


@given(
    st.lists(st.integers(0, 100_000), min_size=1, max_size=20).map(sorted),
    st.integers(0, 200_000),
    st.integers(1, 60),
)
def test_no_record_is_delivered_early_and_no_due_record_waits(ages: list[int], now: int, delay: int) -> None:
    """LogAppendTime never falls along a partition."""
    made = clock(delay=delay)
    records = run(*(T + age for age in ages))
    ready = made.split(PARTITION, records, T + now)
    ahead = T + now + delay * 1000
    for index, record in enumerate(records):
        due = min(record.timestamp + delay * 1000, ahead)
        assert (index < ready) == (due <= T + now)
    head = made.waiting.get(PARTITION)
    assert (head is None) == (ready == len(records))
    if head is not None:
        assert head.offset == records[ready].offset
        assert T + now < head.due_at <= ahead


def test_partition_waits_until_its_head_is_due_and_resumes_once() -> None:
    made = clock()
    assert made.split(PARTITION, run(T, T + 10_000), T + 29_999) == 0
    assert made.waiting == {PARTITION: Waiting(100, T, T + 30_000)}
    assert made.take_due(T + 29_999) == []
    assert made.take_due(T + 30_000) == [PARTITION]
    assert made.take_due(T + 30_000) == []
    assert made.next_due_at is None
    assert made.split(PARTITION, run(T, T + 10_000), T + 30_001) == 1
    assert made.waiting == {PARTITION: Waiting(101, T + 10_000, T + 40_000)}


def test_partitions_wait_independently_and_the_first_due_time_counts() -> None:
    made = clock()
    made.split(PARTITION, run(T), T + 1)
    made.split(OTHER, run(T, partition=OTHER), T + 1)
    assert made.next_due_at == T + 5_000
    assert made.take_due(T + 60_000) == [PARTITION, OTHER]


def test_redriven_record_never_waits() -> None:
    made = clock()
    assert made.split(REDRIVE, run(T + 10**9, -1, partition=REDRIVE), T) == 2
    assert made.waiting == {}


def test_broker_with_a_fast_clock_delays_a_record_by_its_delay_at_most() -> None:
    """Its time would move on with every call; the head keeps the time that it was given first."""
    made = clock()
    century = run(T + 100 * 365 * 86_400_000)
    assert made.split(PARTITION, century, T) == 0
    assert made.take_due(T + 30_000) == [PARTITION]
    assert made.split(PARTITION, century, T + 30_000) == 1


def test_record_without_a_time_waits_for_its_delay_once() -> None:
    made = clock()
    assert due_at(-1, 30_000, T) == T + 30_000
    assert made.split(PARTITION, run(-1), T) == 0
    assert made.take_due(T + 30_000) == [PARTITION]
    assert made.split(PARTITION, run(-1), T + 30_000) == 1


def test_record_that_took_the_place_of_the_head_has_its_own_time() -> None:
    """The topic was created again, or its leader lost the end of the log, while the partition waited."""
    made = clock()
    assert made.split(PARTITION, run(T), T) == 0
    assert made.take_due(T + 30_000) == [PARTITION]
    assert made.split(PARTITION, run(T + 20_000), T + 30_000) == 0
    assert made.waiting[PARTITION].due_at == T + 50_000


def test_partition_that_went_away_is_not_resumed_and_starts_again_when_it_returns() -> None:
    made = clock()
    made.split(PARTITION, run(T), T + 1)
    made.discard_partitions([PARTITION])
    assert made.take_due(T + 10**6) == []
    made.assign(PARTITION, 30)
    assert made.waiting == {}
    assert made.split(PARTITION, run(T), T + 30_000) == 1


def test_partition_assigned_again_without_having_gone_forgets_its_head() -> None:
    """After an assignment nothing of a wait is left: a stale one would leave the partition paused indefinitely."""
    made = clock()
    made.split(PARTITION, run(T), T + 1)
    made.assign(PARTITION, 30)
    assert made.next_due_at is None
