"""The work of one worker, as it reports it: how busy it is, and what it has in hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class RecordInHand(NamedTuple):
    """A record that a handler has had for a second or longer; of a batch the first. `since` in epoch seconds.

    Its partition goes on once the handler returns. After the handler's time-out the report names it as stuck, too.
    """

    topic: str
    partition: int
    offset: int
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkObservation:
    """Sums since a worker's process began, and what it has in hand; two reports of one process make a rate.

    `busy_seconds` is the time for which calls of the handler were under way, divided by `slots`, the calls that may be:
    with all slots in use it grows by one second in each. `records` have come to their end, whatever became of them.
    `in_hand` has the oldest first.
    """

    busy_seconds: float
    records: int
    slots: int
    in_hand: tuple[RecordInHand, ...] = ()
