"""What a worker tells about itself: alive, ready, and the document behind /member.

Everything is read from other threads' objects without locks: each field that is read is replaced as a whole by its
one writer, and mappings are copied in one step before they are walked.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from fleet_consumer.group.errors import DataPlaneFailed
from fleet_consumer.group.membership import Membership
from fleet_consumer.record import Record
from fleet_consumer.worker.breaker.pacing import BreakerSnapshot
from fleet_consumer.worker.consume.intake import WaitingHead
from fleet_consumer.worker.consume.parts import Loop
from fleet_consumer.worker.lifecycle.watchdog import Hang
from fleet_consumer.worker.logs import now_text
from fleet_consumer.worker.session import Session

IDLE_LOOP_LIMIT_S: Final = 60.0
"""A loop that handles no record comes round at least so often: the longest waits in it are those of a rebalance."""

HANDLER_GRACE_S: Final = 30.0
"""Beyond the poll interval, after which the watchdog ends a hung worker anyway."""

SESSION_ENDED: Final = "SessionEnded"
"""Why a partition is stuck: an error that is none of its handler's ended the session with this record."""

ERROR_CHARACTERS_MAX: Final = 500

FAILED_KINDS_MAX: Final = 20

NOT_JOINED: Final = frozenset({"Unjoined", "Left", "Failed"})


class TopicPartitionOffset(NamedTuple):
    """A record's coordinates."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class RetrySnapshot:
    """What a worker knows of its group's retry flow; the policy's fields are None until its file was read once.

    `suppressed` and `unknown` are the counts of the same names in `Stats`: copies passed over, unknown revisions.
    """

    role: str
    policy: str | None
    current: str | None
    waiting: tuple[WaitingHead, ...] = ()
    suppressed: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """Sessions that errors have ended, one soon after the other; of the last error no more than its words is kept.

    `since` and `at` are the ends of the first and the last (wall clock, seconds), `sessions` counts them. `record` was
    in the handler's hands at the last end, None where that is not known.
    """

    reason: str
    message: str
    since: float
    at: float
    sessions: int = 1
    record: TopicPartitionOffset | None = None


@dataclass(slots=True)
class WorkerState:
    """What the process's parts share. Written by the main thread, except `hangs` and `hung_setup` (by the watchdog).

    `breaker` and `retry` are asked by any thread and must return a value that is replaced as a whole, or None where a
    worker has no such thing.
    """

    revision: str
    max_poll_interval_s: float
    instance_id: str | None
    session: Session | None = None
    error: Exception | None = None
    hung_setup: Exception | None = None
    """A `setup` that does not return; written by the watchdog."""
    ended: SessionEnd | None = None
    """How sessions ended, until one has lived longer than the longest wait between two."""
    hangs: tuple[tuple[Hang, float], ...] = ()
    """Handlers that do not answer, and since when (wall clock, seconds)."""
    handler_error: Callable[[], Exception | None] = lambda: None
    """What keeps the handler itself from being called, such as a sidecar that does not listen."""
    breaker: Callable[[], BreakerSnapshot | None] = lambda: None
    retry: Callable[[], RetrySnapshot | None] = lambda: None
    failed: Callable[[], Mapping[tuple[str, str], int]] = dict
    """Records that this process has given up, by reason and class of the error; a copy."""


def alive(state: WorkerState, *, handling: bool, now: float) -> bool:
    """Whether the consume loop comes round (`now` is monotonic). A broker that is away is no reason to be restarted."""
    session = state.session
    if session is None:
        return True
    limit = state.max_poll_interval_s + HANDLER_GRACE_S if handling else IDLE_LOOP_LIMIT_S
    return now - session.loop.beat_at <= limit


def ready(state: WorkerState) -> tuple[bool, str]:
    """Whether this worker is a member that can do its work, and if not, why; a rebalance alone changes nothing.

    Trouble with a partition's leader is told by /member only: the other partitions go on, and librdkafka says when it
    begins but not when it is over.
    """
    session = state.session
    error = current_error(state) or state.handler_error()
    if error is not None and not isinstance(error, DataPlaneFailed):
        return False, f"{reason_of(error)}: {error}"
    if session is None:
        return False, "Starting: the group is not joined yet"
    membership = session.consumer.membership()
    if membership.generation < 0 or membership.state in NOT_JOINED:
        return False, f"Joining: the member is {membership.state}"
    return True, "joined"


def current_error(state: WorkerState) -> Exception | None:
    """What keeps the worker from its work now, the nearest cause first."""
    if state.hung_setup is not None:
        return state.hung_setup
    if state.error is not None or state.session is None:
        return state.error
    return state.session.loop.error or state.session.consumer.membership().error


def note_end(state: WorkerState, error: Exception, record: Record | None, now: float) -> None:
    """An error ended a session with this record in its hands; `now` is wall clock."""
    before = state.ended
    state.error = error
    state.ended = SessionEnd(
        reason=reason_of(error),
        message=_told(error),
        since=now if before is None else before.since,
        at=now,
        sessions=1 if before is None else before.sessions + 1,
        record=None if record is None else _coordinates(record),
    )


def _coordinates(record: Record) -> TopicPartitionOffset:
    """Where the record was read: that partition does not go on, also where the record's origin is another."""
    read = record.delivery
    return TopicPartitionOffset(read.topic, read.partition, read.offset)


def _told(error: Exception) -> str:
    """An error's words; where nobody has given it a reason it is a bug, and the place is worth more than the words."""
    text = str(error)[:ERROR_CHARACTERS_MAX]
    places = traceback.extract_tb(error.__traceback__)
    if hasattr(error, "reason") or not places:
        return text
    return f"{text} ({Path(places[-1].filename).name}:{places[-1].lineno})"


def reason_of(error: Exception) -> str:
    """The CamelCase word for an error."""
    return str(getattr(error, "reason", type(error).__name__))


def member_document(state: WorkerState) -> dict[str, Any]:
    """The JSON behind /member."""
    session = state.session
    membership = session.consumer.membership() if session else Membership(group_id="", instance_id=state.instance_id)
    error = current_error(state) or state.handler_error()
    return {
        "memberId": membership.member_id,
        "instanceId": state.instance_id,
        "generation": membership.generation,
        "leader": membership.leader,
        "assignor": membership.protocol,
        "state": membership.state,
        "assignment": {topic: sorted(partitions) for topic, partitions in membership.assignment.items()},
        "positions": _offsets(session.loop, "position") if session else {},
        "committed": _offsets(session.loop, "committed") if session else {},
        "revision": state.revision,
        "paused": _paused(session) if session else [],
        "stuck": _stuck(state),
        "error": None if error is None else {"reason": reason_of(error), "message": str(error)},
        "ended": _ended(state.ended),
        "breaker": _breaker(state.breaker()),
        "retry": _retry(state.retry()),
        "failed": _failed(state.failed()),
    }


def _failed(counts: Mapping[tuple[str, str], int]) -> list[dict[str, object]]:
    """Why this process has given records up, most frequent first."""
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:FAILED_KINDS_MAX]
    return [{"reason": reason, "errorClass": kind, "records": count} for (reason, kind), count in most]


def _ended(ended: SessionEnd | None) -> dict[str, object] | None:
    if ended is None:
        return None
    return {
        "reason": ended.reason,
        "message": ended.message,
        "since": now_text(ended.since),
        "at": now_text(ended.at),
        "sessions": ended.sessions,
    }


def _breaker(breaker: BreakerSnapshot | None) -> dict[str, object] | None:
    if breaker is None:
        return None
    return {
        "state": breaker.state,
        "since": now_text(breaker.since),
        "failurePercent": round(breaker.failure_percent, 1),
    }


def _retry(retry: RetrySnapshot | None) -> dict[str, object] | None:
    if retry is None:
        return None
    return {
        "role": retry.role,
        "waiting": [
            {"topic": head.topic, "partition": head.partition, "offset": head.offset, "dueAt": now_text(head.due_at)}
            for head in retry.waiting
        ],
        "suppressed": retry.suppressed,
        "policy": {"name": retry.policy, "current": retry.current, "unknown": retry.unknown},
    }


def _offsets(loop: Loop, field: str) -> dict[str, dict[str, int]]:
    told: dict[str, dict[str, int]] = {}
    for (topic, number), partition in sorted(dict(loop.progress.partitions).items()):
        offset = getattr(partition, field)
        if offset is not None:
            told.setdefault(topic, {})[str(number)] = offset
    return told


def _paused(session: Session) -> list[dict[str, object]]:
    """What the worker reads no further for the time being, and why."""
    return [
        {"topic": topic, "partition": number, "reasons": sorted(reasons)}
        for (topic, number), reasons in sorted(session.pauses.reasons.items())
    ]


def _stuck(state: WorkerState) -> list[dict[str, object]]:
    stuck: list[dict[str, object]] = []
    ended = state.ended
    if ended is not None and ended.record is not None:
        stuck.append(
            {
                **ended.record._asdict(),
                "reason": SESSION_ENDED,
                "message": f"{ended.reason}: {ended.message}",
                "since": now_text(ended.since),
            }
        )
    for hang, since in state.hangs:
        stuck.append(
            {
                **_coordinates(hang.record)._asdict(),
                "reason": "HandlerTimeout",
                "message": "its handler does not return",
                "since": now_text(since),
            }
        )
    if state.session is not None:
        for (topic, number), partition in sorted(dict(state.session.loop.progress.partitions).items()):
            hold = partition.hold
            if hold is not None:
                stuck.append(
                    {
                        "topic": topic,
                        "partition": number,
                        "offset": hold.offset,
                        "reason": hold.reason,
                        "message": hold.message,
                        "since": now_text(hold.since),
                    }
                )
    return stuck
