"""Open transactions, which hold readers of committed records back. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

HANGS_S: Final = 120.0
"""Time after which an open transaction is said to hang: twice what producers allow themselves by default, which is
`transaction.timeout.ms` of a minute."""


class OpenTransaction(NamedTuple):
    """The oldest open transaction of a partition: readers of committed records stand at its first `offset`.

    - `since`: time of the look that saw it first. `stood_s`: seconds from that one to the last that compared both ends,
      by a clock that nobody sets.
    - `end_offset`: the end of the log (its high watermark) then.
    """

    offset: int
    since: float
    stood_s: float
    end_offset: int

    @property
    def hangs(self) -> bool:
        """True if it has been open for longer than transactions usually are."""
        return self.stood_s >= HANGS_S
