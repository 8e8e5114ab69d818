"""The states of a classic member, and the only moves between them.

The diagram in the docs and the tests are made from `MOVES`; a move that is not in it is a bug of ours and raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    """Where a member is in the protocol. The value is Kafka's word for it, as shown to people."""

    IDLE = ("Unjoined", "no subscription yet")
    UNJOINED = ("Unjoined", "to join once coordinator, backoff and the user's polling allow")
    REVOKING = ("PreparingRebalance", "the user's thread still holds partitions of the old generation")
    JOINING = ("PreparingRebalance", "JoinGroup is on its way")
    PLANNING = ("CompletingRebalance", "leader: metadata and assignor at work")
    SYNCING = ("CompletingRebalance", "SyncGroup is on its way")
    STABLE = ("Stable", "has its assignment")
    LEFT = ("Left", "closed")
    FAILED = ("Failed", "a fatal error; only closing is left")

    @property
    def word(self) -> str:
        """Kafka's word for the state."""
        return self.value[0]


_ENDS = (State.IDLE, State.LEFT, State.FAILED)
"""Where unsubscribing, closing and failing lead, from wherever a member is."""

MOVES: Mapping[State, frozenset[State]] = {
    State.IDLE: frozenset({State.UNJOINED, State.LEFT, State.FAILED}),
    State.UNJOINED: frozenset({State.REVOKING, State.JOINING, *_ENDS}),
    State.REVOKING: frozenset({State.UNJOINED, *_ENDS}),
    State.JOINING: frozenset({State.PLANNING, State.SYNCING, State.UNJOINED, *_ENDS}),
    State.PLANNING: frozenset({State.SYNCING, State.UNJOINED, *_ENDS}),
    State.SYNCING: frozenset({State.STABLE, State.UNJOINED, *_ENDS}),
    State.STABLE: frozenset({State.REVOKING, State.JOINING, State.UNJOINED, *_ENDS}),
    State.LEFT: frozenset(),
    State.FAILED: frozenset({State.LEFT}),
}

HEARTBEATING = frozenset({State.REVOKING, State.PLANNING, State.SYNCING, State.STABLE})
"""Where the broker expects heartbeats. A member whose JoinGroup waits at the broker counts as alive without them."""

IN_REBALANCE = frozenset({State.REVOKING, State.JOINING, State.PLANNING, State.SYNCING})
"""Where a commit that cannot be made is told to come back after the rebalance."""


class IllegalMove(Exception):
    """A move that the protocol does not know: our own bug. The state is untouched."""


def check_move(current: State, target: State) -> None:
    """Raise IllegalMove unless `target` may follow `current`."""
    if target not in MOVES[current]:
        raise IllegalMove(f"{current.name} -> {target.name}")
