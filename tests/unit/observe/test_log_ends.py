"""Offsets of logs that all groups share: the history says what a history of every poll would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet_operator.observe.aggregation import HISTORY_SAMPLES_MAX, History, Offsets, TopicLog, extend_history
from fleet_operator.observe.poll_memory import COMPARED_SECONDS, LogEnds
from fleet_operator.planning.lag import time_behind
from fleet_operator.planning.observation import HANGS_S, OpenTransaction

A, B = ("t", 0), ("t", 1)


def log(ends: LogEnds, topic: str = "t", *, answered: bool = True, starts: bool = True) -> TopicLog:
    return known(ends, False, topic, answered=answered, starts=starts)


def known(ends: LogEnds, read_committed: bool, *topics: str, answered: bool = True, starts: bool = True) -> TopicLog:
    return ends.log(read_committed, topics, ends=topics if answered else (), starts=topics if starts else ())


def take(ends: LogEnds, now: float, **topics: Offsets) -> None:
    ends.take_ends(False, topics, now)


def compare(ends: LogEnds, clock: float, stable: Offsets, highs: Offsets, *, wall: float | None = None) -> TopicLog:
    """A poll that asks for both ends; by default both clocks show the same time."""
    now = clock if wall is None else wall
    ends.take_ends(True, {"t": stable}, now)
    ends.compare({"t": stable}, {"t": highs}, now, clock)
    return known(ends, True, "t")


seen_ends = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, 2), st.sampled_from(("both", "both", "both", "first", "created again"))
    ),
    max_size=120,
)
"""For each poll the records that arrived in two partitions, and which of them answered."""


@given(seen_ends)
def test_time_behind_is_that_of_a_history_extended_at_every_poll(polls: list[tuple[int, int, str]]) -> None:
    """Invariants: where nothing changes the newest sample may be older, and says the same; all others are equal."""
    shared, each_poll = LogEnds(), dict[tuple[str, int], tuple[object, ...]]()
    plain: History = {}
    ends = {A: 0, B: 0}
    now = 1000.0
    for first, second, answered in polls:
        now += 5.0
        ends = {A: ends[A] + first, B: ends[B] + second} if answered != "created again" else {A: first, B: second}
        read = dict(ends) if answered != "first" else {A: ends[A]}
        plain = extend_history(plain, read, now)
        take(shared, now, t=read)
        found = log(shared)
        assert found.ends == read
        assert found.history.keys() == plain.keys()
        for key, samples in plain.items():
            each_poll[key] = samples
            assert len(found.history[key]) <= HISTORY_SAMPLES_MAX
            assert [s.end_offset for s in found.history[key]] == [s.end_offset for s in samples]
            assert found.history[key][:-1] == samples[:-1]
            for offset in range(max(0, ends[key] - 12), ends[key] + 1) if key in read else ():
                assert time_behind(offset, found.history[key], now) == time_behind(offset, samples, now)


def test_history_outlives_a_poll_in_which_the_partition_or_its_topic_did_not_answer() -> None:
    """The time behind is as exact after a change of leaders as before."""
    ends = LogEnds()
    take(ends, 0.0, t={A: 7, B: 3})
    take(ends, 5.0, t={B: 4})
    assert log(ends, answered=False).history.keys() == {A, B}
    take(ends, 10.0, t={A: 9, B: 4})
    assert log(ends).history[A] == ((0.0, 7), (10.0, 9))


def test_records_after_an_idle_time_are_not_spread_over_it() -> None:
    ends = LogEnds()
    for second in range(0, 3600, 5):
        take(ends, float(second), t={A: 7})
    take(ends, 3600.0, t={A: 17})
    assert log(ends).history[A] == ((0.0, 7), (3595.0, 7), (3600.0, 17))


def test_nothing_changes_as_long_as_nothing_arrives() -> None:
    ends = LogEnds()
    take(ends, 1.0, t={A: 7})
    ends.take_starts({"t": {A: 0}})
    take(ends, 2.0, t={A: 7})
    before = log(ends)
    for now in (3.0, 4.0, 5.0):
        take(ends, now, t={A: 7})
        ends.take_starts({"t": {A: 0}})
        assert log(ends) == before
    ends.take_starts({"t": {A: 3}})
    assert log(ends).starts == {A: 3}
    take(ends, 6.0, t={A: 8})
    assert log(ends).ends == {A: 8}
    assert (before.ends, before.starts) == ({A: 7}, {A: 0}), "an observation that was published stays as it is"


def test_topic_that_was_not_answered_is_not_known_and_keeps_its_history() -> None:
    ends = LogEnds()
    take(ends, 1.0, t={A: 7})
    ends.take_starts({"t": {A: 0}})
    silent = log(ends, answered=False, starts=False)
    assert (silent.ends, silent.starts) == ({}, {})
    assert log(ends, answered=False, starts=False) == silent
    take(ends, 60.0, t={A: 9})
    assert log(ends).history[A] == ((1.0, 7), (60.0, 9))


def test_partition_that_did_not_answer_is_not_known() -> None:
    ends = LogEnds()
    take(ends, 1.0, t={A: 7, B: 3})
    take(ends, 2.0, t={A: 7})
    assert log(ends).ends == {A: 7}


def test_topics_and_isolation_levels_have_a_log_each() -> None:
    ends = LogEnds()
    take(ends, 1.0, t={A: 7}, other={("other", 0): 1})
    ends.take_ends(True, {"t": {A: 5}}, 1.0)
    assert log(ends).ends == {A: 7}
    assert known(ends, True, "t").ends == {A: 5}
    assert log(ends, "other").ends == {("other", 0): 1}


def test_end_that_stands_while_its_log_is_longer_is_that_of_an_open_transaction() -> None:
    ends = LogEnds()
    assert compare(ends, 100.0, {A: 7, B: 3}, {A: 8, B: 3}).transactions == {}, "a record may have come between the two"
    found = compare(ends, 120.0, {A: 7, B: 3}, {A: 9, B: 3}).transactions
    assert found == {A: OpenTransaction(offset=7, since=100.0, stood_s=20.0, end_offset=9)}
    assert not found[A].hangs
    found = compare(ends, 100.0 + HANGS_S, {A: 7, B: 5}, {A: 30, B: 5}).transactions
    assert (found[A].hangs, found[A].since, found[A].end_offset) == (True, 100.0, 30)
    assert known(ends, False, "t", answered=False).transactions == {}, "others read those records"


def test_transaction_is_over_as_soon_as_the_end_has_moved() -> None:
    """The next one, right behind it, has its own time."""
    ends = LogEnds()
    for clock in (0.0, 20.0, 200.0):
        opened = compare(ends, clock, {A: 7}, {A: 9})
    assert opened.transactions[A].hangs
    ends.take_ends(True, {"t": {A: 8}}, 205.0)
    assert known(ends, True, "t").transactions == {}
    assert compare(ends, 220.0, {A: 8}, {A: 9}).transactions == {}
    assert compare(ends, 240.0, {A: 8}, {A: 9}).transactions[A].since == 220.0
    assert compare(ends, 260.0, {A: 9}, {A: 9}).transactions == {}


def test_busy_topic_of_short_transactions_has_none_that_stays_open() -> None:
    ends = LogEnds()
    for turn in range(20):
        assert compare(ends, turn * 20.0, {A: turn}, {A: turn + 5}).transactions == {}


def test_transaction_of_a_partition_that_does_not_answer_is_still_known() -> None:
    ends = LogEnds()
    for clock in (0.0, 20.0):
        before = compare(ends, clock, {A: 7, B: 3}, {A: 9, B: 3}).transactions
    for stable, highs in (({B: 3}, {A: 9, B: 3}), ({A: 7, B: 3}, {B: 3}), ({B: 4}, {})):
        assert compare(ends, 40.0, stable, highs).transactions == before
    assert compare(ends, 60.0, {A: 7, B: 4}, {A: 9, B: 4}).transactions[A].stood_s == 60.0


def test_clock_that_is_set_makes_no_transaction_old_or_young() -> None:
    ends = LogEnds()
    compare(ends, 0.0, {A: 7}, {A: 9}, wall=1000.0)
    assert not compare(ends, 20.0, {A: 7}, {A: 9}, wall=90_000.0).transactions[A].hangs
    assert compare(ends, HANGS_S, {A: 7}, {A: 9}, wall=5.0).transactions[A].hangs


def test_log_with_an_open_transaction_stays_as_it_is_until_it_is_compared_again() -> None:
    ends = LogEnds()
    for clock in (0.0, 20.0, 40.0):
        seen = compare(ends, clock, {A: 7}, {A: 9})
    ends.take_ends(True, {"t": {A: 7}}, 45.0)
    assert known(ends, True, "t") == seen
    take(ends, 45.0, u={("u", 0): 2})
    assert known(ends, True, "t", "u").transactions == seen.transactions
    ends.retain({"u"})
    assert known(ends, True, "t") == TopicLog()


def test_both_ends_of_a_topic_are_compared_from_time_to_time_whoever_asks() -> None:
    ends = LogEnds()
    assert ends.due_comparisons(["t", "u"], 5.0) == {"t", "u"}
    assert ends.due_comparisons(["t", "v"], 5.0 + COMPARED_SECONDS - 1) == {"v"}
    assert ends.due_comparisons(["t"], 5.0 + COMPARED_SECONDS) == {"t"}


def test_only_topics_of_subscriptions_are_remembered() -> None:
    ends = LogEnds()
    take(ends, 1.0, t={A: 7}, other={("other", 0): 1})
    ends.take_starts({"t": {A: 0}, "other": {("other", 0): 0}})
    kept = log(ends)
    log(ends, "other")
    ends.retain({"t"})
    assert log(ends) == kept
    assert log(ends, "other") == TopicLog()
    take(ends, 9.0, other={("other", 0): 1})
    assert log(ends, "other").history == {("other", 0): ((9.0, 1),)}


def test_log_of_several_topics_has_those_of_each() -> None:
    ends = LogEnds()
    take(ends, 1.0, t={A: 1}, u={("u", 0): 2})
    ends.take_starts({"u": {("u", 0): 1}})
    both = known(ends, False, "t", "u")
    assert (both.ends, both.starts) == ({A: 1, ("u", 0): 2}, {("u", 0): 1})
    assert both.history.keys() == {A, ("u", 0)}


def test_readers_of_one_topic_share_its_offsets() -> None:
    ends = LogEnds()
    take(ends, 1.0, t={A: 1})
    assert log(ends).ends is log(ends).ends
    assert known(ends, False, "t", "u").history is log(ends).history
