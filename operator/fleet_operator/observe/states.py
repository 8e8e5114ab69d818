"""A group's states as a history: each look and each glance adds the change that it saw. Pure.

The history is kept where states are seen, on the observer's thread. A status is written later, and not for each
observation: made there, the history would lack every state that came and went while an object waited for its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby, pairwise
from typing import Final

from fleet_operator.planning.observation import (
    UNKNOWN_STATE,
    GroupObservation,
    GroupTransition,
    MemberName,
    MemberObservation,
)

STABLE: Final = "Stable"
DEAD: Final = "Dead"
TRANSITIONS_MAX: Final = 10
NAMED_MAX: Final = 4
"""The members that one transition names: a group of any size may come or go at once."""

Members = tuple[MemberObservation, ...]


def extend_transitions(
    last: GroupObservation | None, state: str, members: Members, now: float, *, passed: str = ""
) -> tuple[GroupTransition, ...]:
    """The last transitions with those that follow from a new observation of the group.

    `passed` is a state that the broker reported just before this one. The observed time has milliseconds, as the status
    shows them.
    """
    at = round(now, 3)
    known = last.transitions if last is not None else ()
    if last is None or not known:
        return (GroupTransition(before=UNKNOWN_STATE, after=state, at=at),)
    path = [word for word, _ in groupby(word for word in (last.state, passed, state) if word)]
    if len(path) == 1:
        if state != STABLE or not _rebalanced(last.members, members):
            return known
        path = [STABLE, STABLE]
    joined, left = _missing(members, last.members), _missing(last.members, members)
    first = GroupTransition(
        before=path[0],
        after=path[1],
        at=at,
        joined=joined[:NAMED_MAX],
        left=left[:NAMED_MAX],
        joined_count=len(joined),
        left_count=len(left),
    )
    later = (GroupTransition(before=before, after=after, at=at) for before, after in pairwise(path[1:]))
    return (*known, first, *later)[-TRANSITIONS_MAX:]


def _rebalanced(before: Members, after: Members) -> bool:
    """True if two Stable groups cannot be of one generation: only a rebalance changes members or assignments."""
    return before is not after and _assignments(before) != _assignments(after)


def _assignments(members: Members) -> Mapping[str, Mapping[str, tuple[int, ...]]]:
    return {member.key: member.partitions for member in members}


def _missing(members: Iterable[MemberObservation], among: Members) -> tuple[MemberName, ...]:
    """The members that are not among others."""
    keys = {member.key for member in among}
    return tuple(
        MemberName(member.member_id, member.instance_id, member.client_id)
        for member in members
        if member.key not in keys
    )
