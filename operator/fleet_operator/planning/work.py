"""One worker's report about its work: how busy the worker is, and the records that its handler is processing."""

from dataclasses import dataclass
from typing import NamedTuple


class RecordInHand(NamedTuple):
    """A record that a handler has been processing for at least a second. For a batch, this is its first record. The
    record's partition continues once the handler returns. After the handler's timeout, the worker also reports the
    record as stuck. `since`: epoch seconds."""

    topic: str
    partition: int
    offset: int
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkObservation:
    """Totals since a worker's process started; two reports of one process give a rate.

    - `slots`: the number of handler calls that may run concurrently.
    - `busy_seconds`: the total duration of handler calls, divided by `slots`. While all slots are in use, it grows by
      one second per second.
    - `records`: the number of completed records, successful or not.
    - `in_hand`: the records that the handler is processing, the oldest first.
    """

    busy_seconds: float
    records: int
    slots: int
    in_hand: tuple[RecordInHand, ...] = ()
