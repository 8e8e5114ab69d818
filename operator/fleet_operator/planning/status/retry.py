"""`status.retry` of a ConsumerGroup.

Counts are in the steps of lag, and a time is replaced when it is no longer about right: a flow in which a record
becomes due every second would otherwise rewrite its status every second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fleet_operator.planning import times
from fleet_operator.planning.lag import HYSTERESIS, count_bucket, lag_bucket
from fleet_operator.planning.observation import GroupObservation, RetryObservation, WorkerObservation
from fleet_operator.planning.retry.failed_reasons import failed_reasons
from fleet_operator.planning.retry.intent import RetryIntent
from fleet_operator.planning.retry.redriven import Redriven, count_failures

OVERDUE_SECONDS_MIN: Final = 5.0
"""A record that has been due for less is being processed: it is not late, and not shown."""
SOONER_SECONDS_MAX: Final = 5.0
LATER_SECONDS_MAX: Final = 60.0
"""Most seconds by which a shown time may be too late or too early before it is replaced."""
REVISION_CHARACTERS_MAX: Final = 63


def retry_status(
    observed: GroupObservation | None,
    intent: RetryIntent | None,
    previous: Mapping[str, Any],
    workers: Iterable[WorkerObservation] = (),
    redriven: Redriven | None = None,
) -> dict[str, Any]:
    """`status.retry`; empty while nothing is known. Fields that could not be observed keep their previous values.

    `observed` is None when the group could not be observed, `intent` for a group without retries. `redriven` is the
    number of records that were put back; its previous value is kept while it is None, as it names its topic.
    """
    if observed is None:
        return dict(previous)
    status = dict(previous) if intent is not None else {}
    left = count_failures(observed, redriven)
    failed = previous.get("failed") if left is None else count_bucket(left)
    if failed is not None:
        status["failed"] = failed
    memory = {"topicId": redriven.topic_id, "to": redriven.to} if redriven is not None else previous.get("redriven")
    if memory:
        status["redriven"] = memory
    reasons = failed_reasons(workers, observed.failed_records, previous.get("failedReasons") or ())
    status.pop("failedReasons", None)
    if reasons:
        status["failedReasons"] = reasons
    if intent is not None:
        status |= {"policyRevision": revision_text(intent)} if intent.current else {}
        if observed.retry is not None and observed.retry.counted:
            status = _counted(observed.retry, status)
    return status


def revision_text(intent: RetryIntent) -> str:
    """The revision for new failures, as in record headers; only the hash where the name is long."""
    text = f"{intent.policy}@{intent.current}"
    return text if len(text) <= REVISION_CHARACTERS_MAX else str(intent.current)


def _counted(seen: RetryObservation, previous: Mapping[str, Any]) -> dict[str, Any]:
    assert seen.waiting is not None
    assert seen.due_lag is not None
    now, oldest = seen.observed_at, seen.oldest_due_at
    if oldest is not None and now - oldest < OVERDUE_SECONDS_MIN:
        oldest = None
    late = seen.due_lag if oldest is not None else 0
    status = {key: value for key, value in previous.items() if key not in ("oldestDueAt", "nextDueAt")}
    status |= {
        "waiting": lag_bucket(seen.waiting, previous.get("waiting")),
        "dueLag": lag_bucket(late, previous.get("dueLag")),
    }
    if oldest is not None:
        slack = max(LATER_SECONDS_MAX, HYSTERESIS * (now - oldest))
        status["oldestDueAt"] = _calm(oldest, previous.get("oldestDueAt"), later=slack)
    if seen.next_due_at is not None:
        status["nextDueAt"] = _calm(seen.next_due_at, previous.get("nextDueAt"), later=LATER_SECONDS_MAX)
    return status


def _calm(at: float, shown: str | None, *, later: float) -> str:
    """The shown time: the previous one while the exact time is at most a little sooner and not much later."""
    before = times.from_text(shown) if shown else None
    if before is not None and -SOONER_SECONDS_MAX <= at - before <= later:
        return str(shown)
    return times.to_text(at)
