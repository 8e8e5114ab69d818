"""A worker's report: liveness, readiness and the /member document.

Data of other threads is read without locks. This is safe because each field is written by a single thread, which
replaces the field as a whole. Mappings are copied in one step before they are iterated.
"""

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
"""Maximum duration in seconds of a consume loop's round in which no record is handled. The longest waits in such a
round occur during a rebalance."""

HANDLER_GRACE_S: Final = 30.0
"""If a handler exceeds the poll interval by this many seconds, liveness fails. The watchdog normally ends the process
earlier."""

SESSION_ENDED: Final = "SessionEnded"
"""Reason for a stuck partition: the session ended while handling this record, with an error outside the handler."""

ERROR_CHARACTERS_MAX: Final = 512
"""Maximum number of characters of a reported error message, as in the operator's list of stuck partitions."""

ENTRIES_MAX: Final = 100
"""Maximum length of lists with one entry per partition. The operator shows fewer entries, and ignores a report of more
than 1 MiB."""

PLACES_MAX: Final = 1_000
"""Maximum number of listed stuck partitions. Entries after the first `ENTRIES_MAX` have no message. When the operator
shrinks a fleet, it keeps a worker for each stuck partition. No fleet has more workers than this limit."""

FAILED_KINDS_MAX: Final = 20

NOT_JOINED: Final = frozenset({"Unjoined", "Left", "Failed"})


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """A series of short sessions that ended with errors. `reason` and `message` describe the last error.

    `since` is the end of the first session, and `at` the end of the last session (wall clock, seconds). `record` is the
    record that was being handled when the last session ended; None if unknown.
    """

    reason: str
    message: str
    since: float
    at: float
    sessions: int = 1
    record: Place | None = None


@dataclass(slots=True)
class WorkerState:
    """State shared by the threads of the process.

    The watchdog writes `hangs`, `in_hand` and `hung_setup`. The consume loop writes `stats`. The main thread writes all
    other fields. `breaker`, `retry` and `work` are called on any thread.
    """

    revision: str
    max_poll_interval_s: float
    instance_id: str | None
    stats: Stats = field(default_factory=Stats)
    session: Session | None = None
    error: Exception | None = None
    hung_setup: Exception | None = None
    """The error if the handler's `setup` has not returned in time, otherwise None."""
    ended: SessionEnd | None = None
    """The current series of sessions that ended with errors, or None. A session that lasts longer than the longest
    back-off ends the series."""
    hangs: tuple[tuple[Hang, float], ...] = ()
    """Hanging handler calls, each with its start time (wall clock, seconds)."""
    in_hand: tuple[tuple[Record, float], ...] = ()
    """Records in handlers for at least a second, each with its start time (wall clock, seconds), the oldest first."""
    handler_error: Callable[[], Exception | None] = lambda: None
    """Returns the error that prevents handler calls, or None. For example, a sidecar may not accept connections."""
    breaker: Callable[[], BreakerSnapshot | None] = lambda: None
    retry: Callable[[], dict[str, Any] | None] = lambda: None
    """Returns `retry_document`, or None without retries."""
    work: Callable[[], Work] = lambda: Work(0.0, slots=1)


def stopped_part(state: WorkerState, watchdog_beat_at: float | None, *, handling: bool, now: float) -> str | None:
    """Return a message about a stuck thread for the liveness probe; None if all threads make progress.

    `now` is in monotonic seconds. `watchdog_beat_at` is the start of the watchdog's last round, or None before the
    watchdog has started. An unreachable broker does not fail the probe, because a restart would not help.
    """
    if watchdog_beat_at is not None and now - watchdog_beat_at > IDLE_LOOP_LIMIT_S:
        return "the watchdog is stuck or has ended, so the worker would not react to SIGTERM"
    session = state.session
    limit = state.max_poll_interval_s + HANDLER_GRACE_S if handling else IDLE_LOOP_LIMIT_S
    return "the consume loop is stuck" if session is not None and now - session.loop.beat_at > limit else None


def ready(state: WorkerState) -> tuple[bool, str]:
    """Return True if the worker is ready, and the reason. A worker is ready if it is a group member that can work.

    A rebalance alone does not change readiness. Errors of single partitions do not change it either, because the other
    partitions continue. Such errors are fetch errors, refused commits, and a missing committed offset under the reset
    policy `none`. Only /member shows these errors.
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
    """Return the error that currently prevents work, or None. Of several errors, the most direct cause is returned."""
    if state.hung_setup is not None:
        return state.hung_setup
    if state.error is not None or state.session is None:
        return state.error
    loop = state.session.loop
    return loop.error or state.session.consumer.membership().error or loop.committing.refused


def record_end(state: WorkerState, error: Exception, record: Record | None, now: float) -> None:
    """Store the error that ended a session and the record that was being handled. `now` is in wall-clock seconds."""
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
    """Return an error's message. An error without a `reason` is a bug, so its code location is added."""
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
    """Return why this process sent records to the failed topic: reasons and counts, the most frequent first."""
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:FAILED_KINDS_MAX]
    return [{"reason": reason, "errorClass": kind, "records": count} for (reason, kind), count in most]


def _expired(session: Session) -> list[dict[str, object]]:
    """Return each retry partition's last gap in this session: a range of records deleted while they waited."""
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
    """Return the busy time and number of handled records since the process started, and the records in handlers."""
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
    """Return the `retry` section of /member. `policies` is None until the policy file has been read."""
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
    return [
        {"topic": topic, "partition": number, "reasons": sorted(reasons)}
        for (topic, number), reasons in sorted(session.parts.pauses.reasons.items())
    ]


def _stuck(state: WorkerState) -> list[dict[str, object]]:
    """Return the records at which partitions are stuck, starting with the partition that has been stuck longest."""
    stuck: list[tuple[float, dict[str, object]]] = []

    def add(place: Place, reason: str, message: str, since: float) -> None:
        text = message[:ERROR_CHARACTERS_MAX]
        stuck.append((since, {**place._asdict(), "reason": reason, "message": text, "since": now_text(since)}))

    ended = state.ended
    if ended is not None and ended.record is not None:
        add(ended.record, SESSION_ENDED, f"{ended.reason}: {ended.message}", ended.since)
    for hang, since in state.hangs:
        add(place_of(hang.record), "HandlerTimeout", "the handler does not return", since)
    if state.session is not None:
        for (topic, number), partition in sorted(dict(state.session.loop.partitions).items()):
            hold = partition.hold
            if hold is not None:
                add(Place(topic, number, hold.offset), hold.reason, hold.message, hold.since)
        for (topic, number), data in sorted(state.session.consumer.unreadable().items()):
            place = Place(topic, number, data.offset)
            add(place, data.error.reason, str(data.error), data.since)
    return [entry for _, entry in sorted(stuck, key=lambda each: each[0])]
