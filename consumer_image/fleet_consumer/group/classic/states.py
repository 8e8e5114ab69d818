"""States of a classic member and the moves between them, as one table: state × trigger → next states.

The machine checks every move against the table, `MOVES`; a move that is not in the table is a bug. docs/rebalance.md
draws the table.
"""

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    """A member's state. Each value has Kafka's name for the state, and an explanation."""

    IDLE = ("Unjoined", "no subscription")
    UNJOINED = ("Unjoined", "joins once the coordinator is known, the backoff has passed and the user polls")
    REVOKING = ("PreparingRebalance", "the user's thread still holds partitions of the old generation")
    JOINING = ("PreparingRebalance", "JoinGroup in flight")
    PLANNING = ("CompletingRebalance", "leader: reads metadata and runs the assignor")
    SYNCING = ("CompletingRebalance", "SyncGroup in flight")
    STABLE = ("Stable", "has its assignment")
    LEFT = ("Left", "closed")
    FAILED = ("Failed", "fatal error; can only be closed")

    def __init__(self, word: str, meaning: str) -> None:
        self.word = word
        self.meaning = meaning


class Trigger(Enum):
    """Causes of moves; the value is the label in the diagram of docs/rebalance.md."""

    SUBSCRIBED = "subscribe"
    UNSUBSCRIBED = "unsubscribe"
    CLOSED = "close"
    LOGIN_REFUSED = "credentials refused"
    CALLED_BACK = "callback returned"
    USER_DATA = "assignor's user data"
    PLANNED = "assignor's plan"
    PLAN_FAILED = "assignor failed"
    LOOKUP = "FindCoordinator response"
    JOIN = "JoinGroup response"
    JOIN_LOST = "JoinGroup without response"
    SYNC = "SyncGroup response"
    SYNC_LOST = "SyncGroup without response"
    HEARTBEAT = "Heartbeat response"
    COMMIT = "OffsetCommit response"
    DUE = "due"
    """The last step after every event: start a requested rebalance if possible, and give up the membership if the poll
    timer has expired."""
    OTHER = "other"
    """Events that never cause a move."""


_FATAL = (Trigger.LOGIN_REFUSED, Trigger.LOOKUP, Trigger.JOIN, Trigger.SYNC, Trigger.COMMIT)
"""Triggers that may end a member with a fatal error in any state. The error FENCED_INSTANCE_ID, for example, is fatal
even in a late response."""

Moves = Mapping[Trigger, frozenset[State]]


def _moves(ends: Moves, moves: Mapping[Trigger, State | tuple[State, ...]]) -> Moves:
    """Build one row of the table: the moves of one state. `ends` are moves that this state shares with others; `moves`
    are its own."""
    row = dict(ends)
    for trigger, targets in moves.items():
        own = frozenset(targets if isinstance(targets, tuple) else (targets,))
        row[trigger] = own | row.get(trigger, frozenset())
    return row


_OPEN: Moves = {Trigger.CLOSED: frozenset({State.LEFT})} | dict.fromkeys(_FATAL, frozenset({State.FAILED}))
_SUBSCRIBED: Moves = {
    **_OPEN,
    Trigger.UNSUBSCRIBED: frozenset({State.IDLE}),
    Trigger.HEARTBEAT: frozenset({State.FAILED}),
}
_GIVEN_UP = {Trigger.HEARTBEAT: State.UNJOINED, Trigger.DUE: State.UNJOINED}
"""Moves that end a membership: a Heartbeat response invalidated the identity, or the poll timer expired."""

MOVES: Mapping[State, Moves] = {
    State.IDLE: _moves(_OPEN, {Trigger.SUBSCRIBED: State.UNJOINED}),
    State.UNJOINED: _moves(_SUBSCRIBED, {Trigger.USER_DATA: State.JOINING, Trigger.DUE: State.REVOKING}),
    State.REVOKING: _moves(_SUBSCRIBED, {Trigger.CALLED_BACK: State.UNJOINED}),
    State.JOINING: _moves(
        _SUBSCRIBED,
        {
            Trigger.JOIN: (State.PLANNING, State.SYNCING, State.UNJOINED),
            Trigger.JOIN_LOST: State.UNJOINED,
            Trigger.HEARTBEAT: State.UNJOINED,
            Trigger.COMMIT: State.UNJOINED,
        },
    ),
    State.PLANNING: _moves(
        _SUBSCRIBED, {Trigger.PLANNED: State.SYNCING, Trigger.PLAN_FAILED: State.UNJOINED, **_GIVEN_UP}
    ),
    State.SYNCING: _moves(
        _SUBSCRIBED, {Trigger.SYNC: (State.STABLE, State.UNJOINED), Trigger.SYNC_LOST: State.UNJOINED, **_GIVEN_UP}
    ),
    State.STABLE: _moves(
        _SUBSCRIBED,
        {
            Trigger.USER_DATA: State.JOINING,
            Trigger.HEARTBEAT: State.UNJOINED,
            Trigger.COMMIT: State.UNJOINED,
            Trigger.DUE: (State.REVOKING, State.UNJOINED),
        },
    ),
    State.LEFT: {},
    State.FAILED: {Trigger.CLOSED: frozenset({State.LEFT})},
}

HEARTBEATING = frozenset({State.REVOKING, State.PLANNING, State.SYNCING, State.STABLE})
"""States in which the broker expects heartbeats. It expects none while the member waits for a JoinGroup response."""

IN_REBALANCE = frozenset({State.REVOKING, State.JOINING, State.PLANNING, State.SYNCING})
"""States in which a commit that the broker refuses fails with RebalanceInProgress."""


class IllegalMove(Exception):
    """The member tried a move that the table does not allow, which is a bug. The state is unchanged."""


def check_move(current: State, trigger: Trigger, target: State) -> None:
    if target not in MOVES[current].get(trigger, ()):
        raise IllegalMove(f"{current.name} -> {target.name} at {trigger.value!r}")
