"""One worker's report about its work: how busy the worker is, and the records that its handler is processing."""

from dataclasses import dataclass
from typing import NamedTuple


class RecordInHand(NamedTuple):
    """A record that a handler has been processing for at least a second; for a batch, its first record. The record's
    partition continues once the handler returns. After the handler's timeout, the worker also reports the record as
    stuck. `since`: epoch seconds."""

    topic: str
    partition: int
    offset: int
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkObservation:
    """Totals since a worker's process started; two reports of one process give a rate. `busy_seconds`: total duration
    of handler calls divided by `slots`, the number of calls that may run concurrently. While all slots are in use,
    `busy_seconds` grows by one second per second. `records`: completed records, whatever their outcome. `in_hand`:
    oldest first."""

    busy_seconds: float
    records: int
    slots: int
    in_hand: tuple[RecordInHand, ...] = ()
