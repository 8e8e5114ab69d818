"""What a worker counts. Plain numbers: they are moved once for each batch, not once for each record.

Written by the consume loop's thread only; read by whoever renders metrics.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """Totals since the worker started; times in seconds."""

    done: int = 0
    failed: int = 0
    dropped: int = 0
    produced: int = 0
    batches: int = 0
    handler_seconds: float = 0.0
    poll_wait_seconds: float = 0.0
    ack_wait_seconds: float = 0.0
    commits: int = 0
    commit_failures: int = 0
    rebalances: int = 0
    lost_partitions: int = 0
    timeouts: int = 0
    abandoned: int = 0

    def count(self, result: str) -> None:
        """One record more came to `result` ("done", "failed" or "dropped")."""
        if result == DONE:
            self.done += 1
        elif result == FAILED:
            self.failed += 1
        else:
            self.dropped += 1


DONE = "done"
FAILED = "failed"
DROPPED = "dropped"
