"""Parser for the death of a container: exit code, signal, the kubelet's reason, and the records in its handler.

A worker's termination message is one line of JSON. The termination message of other containers, and of workers that
fail while they start, is the end of their log. Any termination message may be an arbitrary string, so it is parsed
strictly and shortened.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet_consumer.contract.skips import Place
from fleet_operator.planning import times
from fleet_operator.planning.fleet.pod_wait import container_statuses
from fleet_operator.planning.foreign_json import read_object

RECENT_S: Final = 60.0
"""Seconds for which a restarted container still counts as failing. This time is long enough for a container in a crash
loop to die again. It is also long enough for a worker to join the group and to reach the record at which it died
before."""

SAID_CHARACTERS_MAX: Final = 300
RECORDS_MAX: Final = 4
TOPIC_CHARACTERS_MAX: Final = 249

SIGNALS: Final = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
SIGNAL_EXIT: Final = 128
"""A process killed by a signal has the exit code 128 plus the signal's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEnd:
    """The last death of a container.

    - `at`: the time of the death in epoch seconds; None if unknown.
    - `started_at`: the time at which the container started again, in epoch seconds; None before that.
    - `said`: the termination message, in one line.
    - `records`: the records that the handler was processing when the container died.
    """

    container: str
    exit_code: int
    reason: str = ""
    at: float | None = None
    started_at: float | None = None
    said: str = ""
    records: tuple[Place, ...] = ()

    def is_recent(self, now: float) -> bool:
        return self.started_at is None or now - self.started_at < RECENT_S

    def __str__(self) -> str:
        signal = SIGNALS.get(self.exit_code - SIGNAL_EXIT)
        code = f"exit code {self.exit_code}" + (f", {signal}" if signal else "")
        reason = f"{self.reason}, " if self.reason not in ("", "Error") else ""
        named = ", ".join(f"{topic}-{partition}:{offset}" for topic, partition, offset in self.records)
        hand = f" while its handler processed {named}" if named else ""
        return f"container {self.container} ended ({reason}{code}){hand}" + (f": {self.said}" if self.said else "")


def last_end(status: Mapping[str, Any]) -> ContainerEnd | None:
    """The newest death among a pod's containers; None without one. An end with exit code 0 does not count."""
    return max(_ends(status), key=lambda end: end.at or 0.0, default=None)


def _ends(status: Mapping[str, Any]) -> Iterator[ContainerEnd]:
    for container in container_statuses(status):
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


def _message(text: str) -> tuple[str, tuple[Place, ...]]:
    """Parse a termination message. Return the message in one line, and the records that it names."""
    line = next((line for line in reversed(text.splitlines()) if line.strip()), "").strip()
    report = read_object(line) or {}
    if not isinstance(report.get("reason"), str):
        return (_log_message(report) or line)[:SAID_CHARACTERS_MAX], ()
    listed = report.get("records")
    named = listed[:RECORDS_MAX] if isinstance(listed, list) else []
    records = tuple(record for entry in named if (record := _record(entry)) is not None)
    return f"{report['reason']}: {report.get('message', '')}"[:SAID_CHARACTERS_MAX], records


def _log_message(entry: Mapping[str, Any]) -> str:
    """The message in a worker's JSON log line, with the line's error, if any; empty without a message."""
    if not isinstance(entry.get("message"), str):
        return ""
    error = entry.get("error")
    words = entry["message"] + (f": {error}" if isinstance(error, str) else "")
    return f"last log line: {' '.join(words.split())}"


def _record(entry: Any) -> Place | None:
    match entry:
        case {"topic": str(topic), "partition": partition, "offset": offset}:
            known = _is_count(partition, 31) and _is_count(offset, 63)
            return Place(topic[:TOPIC_CHARACTERS_MAX], partition, offset) if known else None
    return None


def _is_count(value: Any, bits: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**bits
