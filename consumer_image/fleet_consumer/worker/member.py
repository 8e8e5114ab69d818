"""What a worker tells about itself: alive, ready, and the document behind /member.

Everything is read from other threads' objects without locks: each field that is read is replaced as a whole by its
one writer, and mappings are copied in one step before they are walked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fleet_consumer.group.errors import DataPlaneFailed
from fleet_consumer.group.membership import Membership
from fleet_consumer.worker.brake import BreakerPicture
from fleet_consumer.worker.intake import WaitingHead
from fleet_consumer.worker.logs import now_text
from fleet_consumer.worker.loop import ConsumeLoop
from fleet_consumer.worker.session import Session
from fleet_consumer.worker.watchdog import Hang

IDLE_LOOP_LIMIT_S: Final = 60.0
"""A loop that handles no record comes round at least so often: the longest waits in it are those of a rebalance."""

HANDLER_GRACE_S: Final = 30.0
"""Beyond the poll interval, after which the watchdog ends a hung worker anyway."""

NOT_JOINED: Final = frozenset({"Unjoined", "Left", "Failed"})


@dataclass(frozen=True, slots=True)
class RetryPicture:
    """What a worker knows of its group's retry flow; the policy's fields are None until its file was read once.

    `suppressed` and `unknown` are the counts of the same names in `Stats`: copies passed over, unknown revisions.
    """

    role: str
    policy: str | None
    current: str | None
    waiting: tuple[WaitingHead, ...] = ()
    suppressed: int = 0
    unknown: int = 0


@dataclass(slots=True)
class WorkerState:
    """What the process's parts share. Written by the main thread, except `hangs` (by the watchdog).

    `breaker` and `retry` are asked by any thread and must return a value that is replaced as a whole, or None where a
    worker has no such thing.
    """

    revision: str
    max_poll_interval_s: float
    instance_id: str | None
    session: Session | None = None
    error: Exception | None = None
    hangs: tuple[tuple[Hang, float], ...] = ()
    """Handlers that do not answer, and since when (wall clock, seconds)."""
    handler_trouble: Callable[[], Exception | None] = lambda: None
    """What keeps the handler itself from being called, such as a sidecar that does not listen."""
    breaker: Callable[[], BreakerPicture | None] = lambda: None
    retry: Callable[[], RetryPicture | None] = lambda: None


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
    error = current_error(state) or state.handler_trouble()
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
    if state.error is not None or state.session is None:
        return state.error
    return state.session.loop.error or state.session.consumer.membership().error


def reason_of(error: Exception) -> str:
    """The CamelCase word for an error."""
    return str(getattr(error, "reason", type(error).__name__))


def member_document(state: WorkerState) -> dict[str, Any]:
    """The JSON behind /member."""
    session = state.session
    membership = session.consumer.membership() if session else Membership(group_id="", instance_id=state.instance_id)
    error = current_error(state) or state.handler_trouble()
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
        "breaker": _breaker(state.breaker()),
        "retry": _retry(state.retry()),
    }


def _breaker(breaker: BreakerPicture | None) -> dict[str, object] | None:
    if breaker is None:
        return None
    return {
        "state": breaker.state,
        "since": now_text(breaker.since),
        "failurePercent": round(breaker.failure_percent, 1),
    }


def _retry(retry: RetryPicture | None) -> dict[str, object] | None:
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


def _offsets(loop: ConsumeLoop, field: str) -> dict[str, dict[str, int]]:
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
    for hang, since in state.hangs:
        read = hang.record.delivery  # the partition that does not go on, also where the record's origin is another
        stuck.append(
            {
                "topic": read.topic,
                "partition": read.partition,
                "offset": read.offset,
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
