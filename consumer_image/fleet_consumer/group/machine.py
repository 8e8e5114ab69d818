"""The interface between a group protocol and the thread that runs it."""

from __future__ import annotations

from typing import Protocol

from fleet_consumer.group.membership import Membership
from fleet_consumer.group.messages import Action, Address, Event


class GroupMachine(Protocol):
    """One member of one group as a state machine without I/O: events with their time go in, actions come out.

    Calls come from one thread at a time. No user code runs inside `handle`: callbacks and assignors are actions.
    """

    @property
    def closed(self) -> bool:
        """True once closing is complete: nothing is in flight any more."""

    @property
    def fatal(self) -> Exception | None:
        """The error that ended the member, else None."""

    @property
    def commits_pending(self) -> bool:
        """True while a commit is unfinished."""

    @property
    def fence_deadline(self) -> float:
        """End of certain ownership of the partitions; `timing.NEVER` without a membership."""

    @property
    def coordinator(self) -> Address | None:
        """The coordinator's address; None while it is unknown."""

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event; return actions to carry out in order."""

    def next_deadline(self, now: float) -> float:
        """The time after `now` at which a Tick is due."""

    def snapshot(self) -> Membership:
        """The membership as other threads may see it."""
