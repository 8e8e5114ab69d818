"""Death of a container, read from its pod: exit code, signal, the kubelet's reason, and the records in process.

A worker leaves a line of JSON as its termination message; other containers, and workers that fail at their start, leave
the tail of their log. Both may be any text, so they are read strictly and cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fleet_operator.planning import times

RECENT_S: Final = 60.0
"""Time for which a restarted container counts as failing: long enough for the next death of a crash loop, or for a join
and the record that killed it."""

SAID_CHARACTERS_MAX: Final = 300
RECORDS_MAX: Final = 4
TOPIC_CHARACTERS_MAX: Final = 249

SIGNALS: Final = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
SIGNAL_EXIT: Final = 128
"""A process that was killed by a signal has the exit code 128 plus the signal's number."""


class RecordInHand(NamedTuple):
    """The coordinates of a record whose handler was called when the process died."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEnd:
    """The last death of a container, at epoch seconds `at`. `started_at` is the start of the next process, None before
    it. `said` is the process's termination message, in one line."""

    container: str
    exit_code: int
    reason: str = ""
    at: float | None = None
    started_at: float | None = None
    said: str = ""
    records: tuple[RecordInHand, ...] = ()

    def is_recent(self, now: float) -> bool:
        return self.started_at is None or now - self.started_at < RECENT_S

    def __str__(self) -> str:
        signal = SIGNALS.get(self.exit_code - SIGNAL_EXIT)
        code = f"exit code {self.exit_code}" + (f", {signal}" if signal else "")
        reason = f"{self.reason}, " if self.reason not in ("", "Error") else ""
        hand = f" while its handler processed {', '.join(map(str, self.records))}" if self.records else ""
        return f"container {self.container} ended ({reason}{code}){hand}" + (f": {self.said}" if self.said else "")


def last_end(status: Mapping[str, Any]) -> ContainerEnd | None:
    """The newest death among a pod's containers. An end with exit code 0 is none."""
    ends = list(_ends(status))
    return max(ends, key=lambda end: end.at or 0.0, default=None)


def _ends(status: Mapping[str, Any]) -> Iterator[ContainerEnd]:
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state") or {}
        ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
        if not ended.get("exitCode"):
            continue
        said, records = _message(str(ended.get("message") or ""))
        yield ContainerEnd(
            container=str(container.get("name", "")),
            exit_code=int(ended["exitCode"]),
            reason=str(ended.get("reason") or ""),
            at=times.from_text(ended.get("finishedAt")),
            started_at=times.from_text((state.get("running") or {}).get("startedAt")),
            said=said,
            records=records,
        )


def _message(text: str) -> tuple[str, tuple[RecordInHand, ...]]:
    """A termination message in one line, and the records that it names."""
    line = next((line for line in reversed(text.splitlines()) if line.strip()), "").strip()
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        report = None
    if not isinstance(report, dict) or not isinstance(report.get("reason"), str):
        return (_log_message(report) or line)[:SAID_CHARACTERS_MAX], ()
    listed = report.get("records")
    named = listed[:RECORDS_MAX] if isinstance(listed, list) else []
    records = tuple(record for entry in named if (record := _record(entry)) is not None)
    return f"{report['reason']}: {report.get('message', '')}"[:SAID_CHARACTERS_MAX], records


def _log_message(entry: Any) -> str:
    """The words of a worker's log line in JSON: the message, and the error if it has one. Empty for anything else."""
    if not isinstance(entry, dict) or not isinstance(entry.get("message"), str):
        return ""
    error = entry.get("error")
    words = entry["message"] + (f": {error}" if isinstance(error, str) else "")
    return f"last log line: {' '.join(words.split())}"


def _record(entry: Any) -> RecordInHand | None:
    try:
        topic, partition, offset = entry["topic"], entry["partition"], entry["offset"]
    except (TypeError, KeyError):
        return None
    if not isinstance(topic, str) or not _is_count(partition, 31) or not _is_count(offset, 63):
        return None
    return RecordInHand(topic[:TOPIC_CHARACTERS_MAX], partition, offset)


def _is_count(value: Any, bits: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**bits
