"""A group's transitions, as an observer notes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_operator.observe.group_aggregation import TRANSITIONS_MAX, extend_transitions
from fleet_operator.planning.observation import GroupObservation, MemberName, MemberObservation

PREPARING, COMPLETING, STABLE, EMPTY = "PreparingRebalance", "CompletingRebalance", "Stable", "Empty"


def member(name: str, *partitions: int, instance_id: str | None = None) -> MemberObservation:
    return MemberObservation(
        member_id=name, instance_id=instance_id, client_id=f"{name}-client", host="h", partitions={"t": partitions}
    )


def after(
    last: GroupObservation | None, state: str, *members: MemberObservation, at: float = 1.0, passed: str = ""
) -> GroupObservation:
    """The observation of a group that was found so."""
    transitions = extend_transitions(last, state, members, at, passed=passed)
    return GroupObservation(group_id="g", observed_at=at, state=state, members=members, transitions=transitions)


def moves(group: GroupObservation) -> list[tuple[str, str]]:
    return [(each.before, each.after) for each in group.transitions]


def test_history_begins_with_the_first_observation() -> None:
    first = after(None, STABLE, member("a"))
    assert moves(first) == [("Unknown", STABLE)]
    never_seen = GroupObservation(group_id="g", observed_at=0.0, error="NotObserved")
    assert moves(after(never_seen, EMPTY)) == [("Unknown", EMPTY)]


def test_each_change_is_recorded_with_its_time_and_who_came_and_went() -> None:
    seen = after(None, STABLE, member("a"), member("b"))
    seen = after(seen, PREPARING, member("b"), member("c"), at=7.1234)
    assert seen.transitions[-1].at == 7.123
    assert seen.transitions[-1].joined == (MemberName("c", None, "c-client"),)
    assert seen.transitions[-1].left == (MemberName("a", None, "a-client"),)
    seen = after(seen, COMPLETING, member("b"), member("c"), at=8.0)
    seen = after(seen, COMPLETING, member("b"), member("c"), at=9.0)
    seen = after(seen, STABLE, member("b", 0), member("c", 1), at=10.0)
    assert moves(seen)[1:] == [(STABLE, PREPARING), (PREPARING, COMPLETING), (COMPLETING, STABLE)]


def test_state_that_lasts_adds_nothing() -> None:
    seen = after(None, STABLE, member("a", 0))
    assert after(seen, STABLE, member("a", 0), at=2.0).transitions is seen.transitions
    empty = after(seen, EMPTY)
    assert after(empty, EMPTY, at=3.0).transitions is empty.transitions


@pytest.mark.parametrize(
    ("then", "joined"),
    [
        ((member("a", 0), member("b", 1)), 1),
        ((member("a", 0),), 0),
    ],
)
def test_rebalance_between_two_polls_shows_in_members_and_assignments(
    then: tuple[MemberObservation, ...], joined: int
) -> None:
    seen = after(after(None, STABLE, member("a", 0, 1)), STABLE, *then)
    assert moves(seen)[1:] == [(STABLE, STABLE)]
    assert seen.transitions[-1].joined_count == joined


def test_static_member_that_restarts_is_no_rebalance() -> None:
    """The coordinator hands out a new member id and keeps the generation."""
    before = after(None, STABLE, member("a-1", 0, instance_id="a"))
    assert moves(after(before, STABLE, member("a-2", 0, instance_id="a"))) == [("Unknown", STABLE)]


def test_state_that_was_listed_and_is_over_is_kept() -> None:
    seen = after(None, STABLE, member("a", 0))
    assert moves(after(seen, STABLE, member("a", 0), passed=PREPARING))[1:] == [
        (STABLE, PREPARING),
        (PREPARING, STABLE),
    ]
    assert moves(after(seen, PREPARING, member("a"), passed=PREPARING))[1:] == [(STABLE, PREPARING)]
    ended = after(seen, COMPLETING, member("a"), passed=PREPARING)
    assert moves(ended)[1:] == [(STABLE, PREPARING), (PREPARING, COMPLETING)]


def test_history_is_short_however_often_a_group_rebalances_and_however_many_members_it_has() -> None:
    seen = after(None, STABLE)
    for number in range(50):
        crowd = tuple(member(f"{number}-{index}") for index in range(200))
        seen = after(seen, STABLE if number % 2 else PREPARING, *crowd, at=float(number))
    assert len(seen.transitions) == TRANSITIONS_MAX
    assert (seen.transitions[-1].joined_count, len(seen.transitions[-1].joined)) == (200, 4)


def test_clock_that_goes_back_changes_no_order() -> None:
    seen = after(after(after(None, STABLE, at=100.0), EMPTY, at=50.0), "Dead", at=40.0)
    assert [each.at for each in seen.transitions] == [100.0, 50.0, 40.0]
    assert moves(replace(seen, error="Disconnected")) == [("Unknown", STABLE), (STABLE, EMPTY), (EMPTY, "Dead")]
