"""`status.retry` of a ConsumerGroup, and the status of a RetryPolicy.

Counts are in the steps of lag, and a time is replaced when it is no longer about right: a flow in which a record
becomes due every second would otherwise rewrite its status every second.

`failedReasons`: workers count since their process began, and only those that answer are included. The status therefore
shows a lower bound that does not fall when workers restart or do not answer; it ends when the failed topic is known to
be empty. Kinds that running workers report come first, so that old ones never hide new ones.

`failed`: the failed topic keeps a record that was put back until retention deletes it. So a run of a Redrive counts the
records in its ledger and ends with one number, `redrivenTo`: from then on, at most the sum of the topic's end offsets
less this number are failures that were not put back. The largest such number counts. It is kept in the group's state,
so that a Redrive may be deleted. A number is valid only for the topic with the same id, and only for observations after
the end of the run: an earlier sum of end offsets lacks failures that the run has seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.conditions import Condition
from fleet_operator.planning import times
from fleet_operator.planning.foreign_json import read_count
from fleet_operator.planning.lag import HYSTERESIS, count_bucket, lag_bucket
from fleet_operator.planning.observation import GroupObservation, RetryObservation, WorkerObservation
from fleet_operator.planning.problem import Problem
from fleet_operator.planning.retry.intent import PolicyRevision, RetryIntent
from fleet_operator.planning.state.group import Redriven

TIME_STEP_S: Final = 1.0
"""Times in statuses are whole seconds, rounded down."""


def find_redriven(
    redrives: Iterable[Mapping[str, Any]], seen_at: float, topic_id: str | None, known: Redriven | None
) -> Redriven | None:
    """The largest number for the topic with this id; None without one.

    `redrives` are statuses of Redrives, of which those count that had ended before the observation at `seen_at`;
    `known` is what was found before.
    """
    ended = (found for status in redrives if _had_ended(status, seen_at) and (found := _read(status)) is not None)
    for_topic = [each for each in (*ended, known) if each is not None and each.topic_id == topic_id]
    return max(for_topic, key=lambda each: each.to, default=None)


def redriven_of(known: Redriven | None, topic_id: str | None) -> Redriven | None:
    """The number that is known, if it is about the topic with this id."""
    return known if known is not None and known.topic_id == topic_id else None


def is_noted(redrive: Mapping[str, Any], known: Redriven | None, topic_id: str | None) -> bool:
    """True if nothing is lost with the status of a Redrive that has ended.

    `known` is what its ConsumerGroup's state has, `topic_id` that of the failed topic as it is, None while unknown.
    """
    found = _read(redrive) if redrive.get("phase") == "Succeeded" else None
    if found is None or (topic_id is not None and topic_id != found.topic_id):
        return True
    noted = redriven_of(known, found.topic_id)
    return noted is not None and noted.to >= found.to


def count_failures(seen: GroupObservation, redriven: Redriven | None) -> int | None:
    """Records of the failed topic, less those that were put back; None while unknown."""
    records, end = seen.failed_records, seen.failed_end
    # End offsets only grow. If they did not, the brokers lost records, and new ones will reuse the offsets.
    if records is None or end is None or redriven is None or redriven.to > end:
        return records
    return min(records, end - redriven.to)


def _had_ended(status: Mapping[str, Any], seen_at: float) -> bool:
    ended = times.from_text(status.get("finishedAt"))
    return status.get("phase") == "Succeeded" and ended is not None and ended + TIME_STEP_S <= seen_at


def _read(redrive: Mapping[str, Any]) -> Redriven | None:
    """The number that a Redrive has found; None for an unreadable status, as people may edit it."""
    topic_id, to = redrive.get("failedTopicId"), redrive.get("redrivenTo")
    if not isinstance(topic_id, str) or not isinstance(to, int) or isinstance(to, bool) or to < 0:
        return None
    return Redriven(topic_id, to)


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
    safe_until: float | None = None,
) -> dict[str, Any]:
    """`status.retry`; empty while nothing is known. Fields that could not be observed keep their previous values.

    `observed` is None when the group could not be observed, `intent` for a group without retries. `redriven` is the
    number of records that were put back.
    """
    if observed is None:
        return dict(previous)
    status = dict(previous) if intent is not None else {}
    left = count_failures(observed, redriven)
    failed = previous.get("failed") if left is None else count_bucket(left)
    if failed is not None:
        status["failed"] = failed
    reasons = failed_reasons(workers, observed.failed_records, previous.get("failedReasons") or ())
    status.pop("failedReasons", None)
    if reasons:
        status["failedReasons"] = reasons
    if intent is not None:
        status |= _expired(observed.retry, workers, previous)
        status |= {"policyRevision": revision_text(intent)} if intent.current else {}
        if observed.retry is not None and observed.retry.counted:
            status = _counted(observed.retry, status)
            status |= {"safeUntil": times.to_text(safe_until)} if safe_until is not None else {}
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
    status = {key: value for key, value in previous.items() if key not in ("oldestDueAt", "nextDueAt", "safeUntil")}
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


PARTITIONS_MAX: Final = 5000
"""Partitions of a topic for which `expiredTo` has room."""
EXPIRED_MAX: Final = 2**63 - 1
"""The largest number that a status can hold: a worker's report may say anything."""


def _expired(
    seen: RetryObservation | None, workers: Iterable[WorkerObservation], previous: Mapping[str, Any]
) -> dict[str, Any]:
    """`expired`, the number of records that were deleted while they waited, and `expiredTo`: the offset in each
    partition up to which they are counted, so that nothing counts twice, whoever sees it.

    The brokers show a gap until workers commit past it, workers those that they met. A topic that is gone takes its
    offsets with it.
    """
    if seen is None:
        return {}
    known = {name: topic for name, topic in seen.topics.items() if topic.error != conditions.TOPIC_NOT_FOUND}
    ends = {
        (entry["topic"], entry["partition"]): int(entry["offset"])
        for entry in previous.get("expiredTo") or ()
        if entry["topic"] in known
    }
    total = int(previous.get("expired") or 0)
    for gap in (*seen.expired, *(gap for worker in workers for gap in worker.expired)):
        if gap.topic in known and 0 <= gap.partition < min(known[gap.topic].partitions, PARTITIONS_MAX):
            counted = ends.get((gap.topic, gap.partition), 0)
            total += max(0, gap.next - max(gap.first, counted))
            ends[gap.topic, gap.partition] = max(gap.next, counted)
    shown = [
        {"topic": topic, "partition": partition, "offset": end} for (topic, partition), end in sorted(ends.items())
    ]
    return {"expired": min(total, EXPIRED_MAX), "expiredTo": shown} if total else {}


SHOWN_MAX: Final = 5

Kind = tuple[str, str]


def failed_reasons(
    workers: Iterable[WorkerObservation], failed: int | None, previous: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The entries of `status.retry.failedReasons`. `failed` is what the failed topic holds, None while unknown."""
    if failed == 0:
        return []
    reported: Counter[Kind] = Counter()
    for worker in workers:
        reported.update({kind: count for kind, count in worker.failed.items() if count > 0})
    before = {_kind(entry): read_count(entry, "records") for entry in previous}
    shown = {kind: _steady(count, before.get(kind)) for kind, count in reported.items()}
    # Sorted by the shown counts: by exact ones, equally frequent kinds would change places all the time.
    first = sorted(shown, key=lambda kind: (-shown[kind], kind))[:SHOWN_MAX]
    rest = sorted((kind for kind in before if kind not in shown), key=lambda kind: (-before[kind], kind))
    shown |= {kind: before[kind] for kind in rest}
    return [_entry(kind, shown[kind]) for kind in [*first, *rest][:SHOWN_MAX]]


def _steady(count: int, before: int | None) -> int:
    """The step to show, never lower than before: workers count from zero after a restart. It needs no hysteresis, which
    could keep a shown kind a step below one that is not shown."""
    return max(lag_bucket(count), before or 0)


def _entry(kind: Kind, records: int) -> dict[str, Any]:
    reason, error_class = kind
    return {"reason": reason, **({"errorClass": error_class} if error_class else {}), "records": records}


def _kind(entry: Mapping[str, Any]) -> Kind:
    return str(entry.get("reason") or ""), str(entry.get("errorClass") or "")


DELAYS_TEXT_CHARACTERS_MAX: Final = 1024
POLICY_KEPT: Final = ("revision", "delaysText", "attempts", "totalText")


def project_retrypolicy_status(
    outcome: PolicyRevision | Problem, *, generation: int, groups: int, previous: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """The whole status. An unusable policy shows its last usable content."""
    if isinstance(outcome, PolicyRevision):
        shown: dict[str, Any] = {
            "revision": outcome.hash,
            "delaysText": conditions.shorten(",".join(outcome.sequence), DELAYS_TEXT_CHARACTERS_MAX),
            "attempts": len(outcome.sequence),
            "totalText": times.duration_text(outcome.total_seconds),
        }
    else:
        shown = {key: previous[key] for key in POLICY_KEPT if key in previous}
    shown["groupCount"] = groups
    ready = _policy_ready(outcome, previous.get("revision"))
    return conditions.with_conditions(shown, [ready], times.to_text(now), generation, previous)


def _policy_ready(outcome: PolicyRevision | Problem, good: str | None) -> Condition:
    if isinstance(outcome, PolicyRevision):
        total = times.duration_text(outcome.total_seconds)
        message = f"{len(outcome.sequence)} attempts after the first, over {total}"
        return Condition(conditions.READY, "True", conditions.POLICY_ACCEPTED, message)
    stays = f"; groups keep revision {good}" if good else "; groups that refer to it wait"
    return Condition(conditions.READY, "False", outcome.reason, f"{outcome.message}{stays}")
