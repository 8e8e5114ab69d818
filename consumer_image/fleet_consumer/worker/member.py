"""The worker's own report: alive, ready, and the document behind /member.

Everything is read from other threads' objects without locks: each field that is read is replaced as a whole by its
one writer, and mappings are copied in one step before they are walked.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fleet_consumer.contract.naming import is_managed_topic
from fleet_consumer.contract.policies import Policies
from fleet_consumer.contract.skips import Place
from fleet_consumer.group.errors import DataPlaneFailed, NoOffsetForPartition
from fleet_consumer.group.membership import Membership
from fleet_consumer.handlers.executor import Work
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.retry.due import Waiting
from fleet_consumer.worker.breaker.pacing import BreakerSnapshot
from fleet_consumer.worker.consume.committing import CommitsRefused
from fleet_consumer.worker.consume.loop import Loop
from fleet_consumer.worker.lifecycle.watchdog import Hang
from fleet_consumer.worker.logs import MESSAGE_CHARACTERS_MAX, now_text, place_of
from fleet_consumer.worker.session import Session
from fleet_consumer.worker.stats import Stats

IDLE_LOOP_LIMIT_S: Final = 60.0
"""A loop that handles no record comes round at least so often: the longest waits in it are those of a rebalance."""

HANDLER_GRACE_S: Final = 30.0
"""Time beyond the poll interval, after which the watchdog ends a hung worker anyway."""

SESSION_ENDED: Final = "SessionEnded"
"""Reason of a stuck partition: an error outside of its handler ended the session at this record."""

ERROR_CHARACTERS_MAX: Final = 512
"""Characters of an error's text: the operator shows as many of a stuck partition's."""

ENTRIES_MAX: Final = 100
"""Entries of lists that have one for each partition: the operator shows fewer, and drops a report beyond 1 MiB."""

PLACES_MAX: Final = 1_000
"""Stuck partitions that are named, if only by their place: each keeps a worker from being taken away, and no fleet has
more workers."""

FAILED_KINDS_MAX: Final = 20

NOT_JOINED: Final = frozenset({"Unjoined", "Left", "Failed"})


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """Sessions that errors have ended, one soon after the other; of the last error only its text is kept.

    `since` and `at` are the ends of the first and the last (wall clock, seconds), `sessions` counts them. `record` was
    in the handler's hands at the last end, None where that is not known.
    """

    reason: str
    message: str
    since: float
    at: float
    sessions: int = 1
    record: Place | None = None


@dataclass(slots=True)
class WorkerState:
    """State shared by the process's parts. Written by the main thread, except `hangs`, `in_hand` and `hung_setup` (by
    the watchdog) and `stats` (by the consume loop's).

    `breaker`, `retry` and `work` are called by any thread.
    """

    revision: str
    max_poll_interval_s: float
    instance_id: str | None
    stats: Stats = field(default_factory=Stats)
    session: Session | None = None
    error: Exception | None = None
    hung_setup: Exception | None = None
    """A `setup` that does not return; written by the watchdog."""
    ended: SessionEnd | None = None
    """The last ends of sessions, until one has lived longer than the longest wait between two."""
    hangs: tuple[tuple[Hang, float], ...] = ()
    """Handlers that do not answer, and since when (wall clock, seconds)."""
    in_hand: tuple[tuple[Record, float], ...] = ()
    """Records that handlers have had for a while, and since when, the oldest first."""
    handler_error: Callable[[], Exception | None] = lambda: None
    """The error that keeps the handler from being called, such as a sidecar that does not listen."""
    breaker: Callable[[], BreakerSnapshot | None] = lambda: None
    retry: Callable[[], dict[str, Any] | None] = lambda: None
    """`retry_document`, None without retries."""
    work: Callable[[], Work] = lambda: Work(0.0, slots=1)


def stopped_part(state: WorkerState, watchdog_beat_at: float | None, *, handling: bool, now: float) -> str | None:
    """Liveness: the part of the worker that does not come round, None while all do (`now` is monotonic).

    An unreachable broker is no reason to restart. `watchdog_beat_at`: the watchdog's last round, None before its start.
    """
    if watchdog_beat_at is not None and now - watchdog_beat_at > IDLE_LOOP_LIMIT_S:
        return "the watchdog is stuck or has ended, so the worker would not hear SIGTERM"
    session = state.session
    limit = state.max_poll_interval_s + HANDLER_GRACE_S if handling else IDLE_LOOP_LIMIT_S
    return "the consume loop is stuck" if session is not None and now - session.loop.beat_at > limit else None


def ready(state: WorkerState) -> tuple[bool, str]:
    """Readiness and its reason: the worker is a member that can do its work. A rebalance alone changes nothing.

    Errors of a partition are shown by /member only, those of reading and of its commits, and the stop that the policy
    `none` asks for: the others go on.
    """
    session = state.session
    error = current_error(state) or state.handler_error()
    if error is not None and not isinstance(error, (DataPlaneFailed, CommitsRefused, NoOffsetForPartition)):
        return False, f"{reason_of(error)}: {error}"
    if session is None:
        return False, "Starting: the group is not joined yet"
    membership = session.consumer.membership()
    if membership.generation < 0 or membership.state in NOT_JOINED:
        return False, f"Joining: the member is {membership.state}"
    return True, "joined"


def current_error(state: WorkerState) -> Exception | None:
    """The error that keeps the worker from its work now, the nearest cause first."""
    if state.hung_setup is not None:
        return state.hung_setup
    if state.error is not None or state.session is None:
        return state.error
    loop = state.session.loop
    return loop.error or state.session.consumer.membership().error or loop.committing.refused


def note_end(state: WorkerState, error: Exception, record: Record | None, now: float) -> None:
    """Note that an error ended a session with this record in its handler; `now` is wall clock."""
    before = state.ended
    state.error = error
    state.ended = SessionEnd(
        reason=reason_of(error),
        message=_text(error),
        since=now if before is None else before.since,
        at=now,
        sessions=1 if before is None else before.sessions + 1,
        record=None if record is None else place_of(record),
    )


def _text(error: Exception) -> str:
    """An error's text; one without a reason is a bug, so its place in the code is added."""
    text = str(error)[:ERROR_CHARACTERS_MAX]
    places = traceback.extract_tb(error.__traceback__)
    if hasattr(error, "reason") or not places:
        return text
    return f"{text} ({Path(places[-1].filename).name}:{places[-1].lineno})"


def reason_of(error: Exception) -> str:
    return str(getattr(error, "reason", type(error).__name__))


def member_document(state: WorkerState) -> dict[str, Any]:
    session = state.session
    membership = session.consumer.membership() if session else Membership(group_id="", instance_id=state.instance_id)
    error = current_error(state) or state.handler_error()
    paused, stuck = _paused(session) if session else [], _stuck(state)
    return {
        "memberId": membership.member_id,
        "instanceId": state.instance_id,
        "generation": membership.generation,
        "leader": membership.leader,
        "assignor": membership.protocol,
        "state": membership.state,
        "revoking": membership.revoking,
        "rejoins": [rejoin._asdict() for rejoin in membership.rejoins],
        "assignment": {topic: sorted(partitions) for topic, partitions in membership.assignment.items()},
        "positions": _offsets(session.loop, "position") if session else {},
        "committed": _offsets(session.loop, "committed") if session else {},
        "revision": state.revision,
        "paused": paused[:ENTRIES_MAX],
        "pausedCount": len(paused),
        "stuck": [*stuck[:ENTRIES_MAX], *({**entry, "message": ""} for entry in stuck[ENTRIES_MAX:PLACES_MAX])],
        "stuckCount": len(stuck),
        "error": None
        if error is None
        else {"reason": reason_of(error), "message": str(error)[:MESSAGE_CHARACTERS_MAX]},
        "ended": _ended(state.ended),
        "breaker": _breaker(state.breaker()),
        "work": _work(state),
        "retry": state.retry(),
        "failed": _failed(state.stats.error_classes.copy()),
        "expired": _expired(session) if session else [],
        "skipped": [
            {**place._asdict(), "at": now_text(passed.at), "lastOffset": passed.last_offset}
            for place, passed in sorted(state.stats.skipped.items())
        ],
    }


def _failed(counts: Mapping[tuple[str, str], int]) -> list[dict[str, object]]:
    """Reasons for which this process has given records up, most frequent first."""
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:FAILED_KINDS_MAX]
    return [{"reason": reason, "errorClass": kind, "records": count} for (reason, kind), count in most]


def _expired(session: Session) -> list[dict[str, object]]:
    """The last gap that this session met in each partition of a retry topic: records deleted while they waited."""
    return [
        {"topic": topic, "partition": number, "first": reset.position, "next": reset.start}
        for (topic, number), reset in sorted(session.consumer.out_of_range().by_partition.items())
        if is_managed_topic(topic) and reset.skipped
    ]


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


def _work(state: WorkerState) -> dict[str, object]:
    """The time for which this process was busy and the records that it has handled, both since its start, and the
    records that it has in hand."""
    busy_seconds, slots = state.work()
    return {
        "busySeconds": round(busy_seconds, 3),
        "records": state.stats.handled,
        "slots": slots,
        "inHand": [{**place_of(record)._asdict(), "since": now_text(since)} for record, since in state.in_hand],
    }


def _breaker(breaker: BreakerSnapshot | None) -> dict[str, object] | None:
    if breaker is None:
        return None
    return {
        "state": breaker.state,
        "since": now_text(breaker.since),
        "failurePercent": round(breaker.failure_percent, 1),
    }


def retry_document(
    role: str, policies: Policies | None, waiting: Mapping[TopicPartition, Waiting], stats: Stats
) -> dict[str, Any]:
    """A worker's view of its group's retry flow. `policies` is None until their file was read once."""
    return {
        "role": role,
        "waiting": [
            {**place._asdict(), "offset": head.offset, "dueAt": now_text(head.due_at / 1000)}
            for place, head in sorted(waiting.items())[:ENTRIES_MAX]
        ],
        "waitingCount": len(waiting),
        "suppressed": stats.suppressed,
        "policy": {
            "name": None if policies is None else policies.name,
            "current": None if policies is None else policies.current,
            "unknown": stats.unknown_policies,
        },
    }


def _offsets(loop: Loop, field: str) -> dict[str, dict[str, int]]:
    offsets: dict[str, dict[str, int]] = {}
    for (topic, number), partition in sorted(dict(loop.partitions).items()):
        offset = getattr(partition, field)
        if offset is not None:
            offsets.setdefault(topic, {})[str(number)] = offset
    return offsets


def _paused(session: Session) -> list[dict[str, object]]:
    """Partitions that the worker does not read for the time being, with the reasons."""
    return [
        {"topic": topic, "partition": number, "reasons": sorted(reasons)}
        for (topic, number), reasons in sorted(session.pauses.reasons.items())
    ]


def _stuck(state: WorkerState) -> list[dict[str, object]]:
    """Records that are not completed, the oldest first."""
    stuck: list[tuple[float, dict[str, object]]] = []

    def add(place: Place, reason: str, message: str, since: float) -> None:
        text = message[:ERROR_CHARACTERS_MAX]
        stuck.append((since, {**place._asdict(), "reason": reason, "message": text, "since": now_text(since)}))

    ended = state.ended
    if ended is not None and ended.record is not None:
        add(ended.record, SESSION_ENDED, f"{ended.reason}: {ended.message}", ended.since)
    for hang, since in state.hangs:
        add(place_of(hang.record), "HandlerTimeout", "its handler does not return", since)
    if state.session is not None:
        for (topic, number), partition in sorted(dict(state.session.loop.partitions).items()):
            hold = partition.hold
            if hold is not None:
                add(Place(topic, number, hold.offset), hold.reason, hold.message, hold.since)
        for (topic, number), data in sorted(state.session.consumer.unreadable().items()):
            place = Place(topic, number, data.offset)
            add(place, data.error.reason, str(data.error), data.since)
    return [entry for _, entry in sorted(stuck, key=lambda each: each[0])]
