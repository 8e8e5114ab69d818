"""`status.retry` of a ConsumerGroup, and the status of a RetryPolicy.

Counts are rounded to the same buckets as lag, and a time in the status is replaced only if it is clearly wrong.
Otherwise the status would be written every second if a record becomes due every second.

`failedReasons` is computed from the counts of the workers that answer. Each worker counts since its process started. So
the status shows a lower bound, which does not decrease when workers restart or do not answer. The counts are reset when
the failed topic is known to be empty. Kinds of failures that workers report now are listed first, so that earlier kinds
never hide new kinds.

`failed` excludes records that Redrives put back. The failed topic keeps these records until retention deletes them. The
number of records that were not put back is at most the sum of the topic's end offsets minus the largest `redrivenTo`. A
`redrivenTo` applies only to the topic with the same id. It applies only to observations after the end of the run,
because an earlier sum of end offsets may not include all failures that the run has read. If the operator died between
creating the Job and writing the status, the run has no `failedTopicId`, and `failed` still includes its records.

Decision: docs/decisions/0030-failed-after-redrives.md.
"""

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
"""Resolution of times in statuses, in seconds; times are rounded down."""


def find_redriven(
    redrives: Iterable[Mapping[str, Any]], seen_at: float, topic_id: str | None, known: Redriven | None
) -> Redriven | None:
    """Return the largest `redrivenTo` for the topic with this id, or None. `redrives`: statuses of Redrives; a Redrive
    counts only if it ended before the observation at `seen_at`. `known`: the previous result."""
    ended = (_read(status) for status in redrives if _had_ended(status, seen_at))
    for_topic = [each for each in (*ended, known) if each is not None and each.topic_id == topic_id]
    return max(for_topic, key=lambda each: each.to, default=None)


def redriven_of(known: Redriven | None, topic_id: str | None) -> Redriven | None:
    return known if known is not None and known.topic_id == topic_id else None


def is_recorded(redrive: Mapping[str, Any], known: Redriven | None, topic_id: str | None) -> bool:
    """True if an ended Redrive can be deleted without losing its result, which is in its status. `known`: the result
    stored in the group's state."""
    found = _read(redrive) if redrive.get("phase") == "Succeeded" else None
    if found is None or (topic_id is not None and topic_id != found.topic_id):
        return True
    recorded = redriven_of(known, found.topic_id)
    return recorded is not None and recorded.to >= found.to


def count_failures(seen: GroupObservation, redriven: Redriven | None) -> int | None:
    """Return the number of records in the failed topic that were not put back; None while unknown."""
    records, end = seen.failed_records, seen.failed_end
    # End offsets only grow. If the sum is below `redriven.to`, the brokers have lost records, and new records will get
    # the offsets of the lost records.
    if records is None or end is None or redriven is None or redriven.to > end:
        return records
    return min(records, end - redriven.to)


def _had_ended(status: Mapping[str, Any], seen_at: float) -> bool:
    ended = times.from_text(status.get("finishedAt"))
    return status.get("phase") == "Succeeded" and ended is not None and ended + TIME_STEP_S <= seen_at


def _read(redrive: Mapping[str, Any]) -> Redriven | None:
    """Return the result of a Redrive; None if its status, which users may edit, is unreadable."""
    topic_id, to = redrive.get("failedTopicId"), redrive.get("redrivenTo")
    if not isinstance(topic_id, str) or not isinstance(to, int) or isinstance(to, bool) or to < 0:
        return None
    return Redriven(topic_id, to)


OVERDUE_SECONDS_MIN: Final = 5.0
"""The status shows a record as late only after it has been due for this many seconds. Until then, the record counts as
being processed."""
SOONER_SECONDS_MAX: Final = 5.0
LATER_SECONDS_MAX: Final = 60.0
"""A time in the status is kept if the exact time is at most `SOONER_SECONDS_MAX` seconds earlier or at most
`LATER_SECONDS_MAX` seconds later."""
REVISION_CHARACTERS_MAX: Final = 63


def retry_status(
    observed: GroupObservation,
    intent: RetryIntent | None,
    previous: Mapping[str, Any],
    workers: Iterable[WorkerObservation] = (),
    redriven: Redriven | None = None,
    safe_until: float | None = None,
) -> dict[str, Any]:
    """Build `status.retry`; empty while nothing is known. Fields that could not be observed keep their previous values.
    `redriven`: the records that Redrives put back. `safe_until`: epoch seconds until which retention deletes no waiting
    record."""
    status = dict(previous) if intent is not None else {}
    left = count_failures(observed, redriven)
    failed = previous.get("failed") if left is None else count_bucket(left)
    status |= {"failed": failed} if failed is not None else {}
    reasons = failed_reasons(workers, observed.failed_records, previous.get("failedReasons") or ())
    status.pop("failedReasons", None)
    status |= {"failedReasons": reasons} if reasons else {}
    if intent is not None:
        status |= _expired(observed.retry, workers, previous)
        status |= {"policyRevision": revision_text(intent)} if intent.current else {}
        if observed.retry is not None and observed.retry.counted:
            status = _counted(observed.retry, status)
            status |= {"safeUntil": times.to_text(safe_until)} if safe_until is not None else {}
    return status


def revision_text(intent: RetryIntent) -> str:
    """Return the policy revision that records follow if they fail now, in the form used in record headers. If the
    policy's name is too long, return only the hash."""
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
    """Return the time for the status: the time already `shown`, unless the exact time `at` is clearly earlier or more
    than `later` seconds later."""
    before = times.from_text(shown) if shown else None
    if before is not None and -SOONER_SECONDS_MAX <= at - before <= later:
        return str(shown)
    return times.to_text(at)


PARTITIONS_MAX: Final = 5000
"""Maximum number of partitions of a topic that `expiredTo` can list."""
EXPIRED_MAX: Final = 2**63 - 1
"""The largest count that a status can hold (int64). A worker's report may contain any number."""


def _expired(
    seen: RetryObservation | None, workers: Iterable[WorkerObservation], previous: Mapping[str, Any]
) -> dict[str, Any]:
    """Build `expired` and `expiredTo`. `expired`: the number of records that retention deleted while they waited.
    `expiredTo`: for each partition, the offset up to which deleted records are counted. So no record counts twice, even
    if the brokers and a worker both show its deletion. The brokers show a gap of deleted records until workers commit
    past the gap. Workers report the gaps that they found while reading. The offsets of a deleted topic are dropped."""
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
    """Build `failedReasons`. `failed`: the number of records in the failed topic, None while unknown."""
    if failed == 0:
        return []
    reported: Counter[Kind] = Counter()
    for worker in workers:
        reported.update({kind: count for kind, count in worker.failed.items() if count > 0})
    before = {_kind(entry): read_count(entry, "records") for entry in previous}
    # A count in the status never decreases, although workers count from zero after a restart. Counts have no
    # hysteresis. Otherwise a listed kind could stay one step below a kind that is not listed.
    shown = {kind: max(lag_bucket(count), before.get(kind, 0)) for kind, count in reported.items()}
    # Sort by the rounded counts. If exact counts were used, equally frequent kinds would constantly change places.
    first = sorted(shown, key=lambda kind: (-shown[kind], kind))[:SHOWN_MAX]
    rest = sorted((kind for kind in before if kind not in shown), key=lambda kind: (-before[kind], kind))
    shown |= {kind: before[kind] for kind in rest}
    return [_entry(kind, shown[kind]) for kind in [*first, *rest][:SHOWN_MAX]]


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
    """Build the whole status of a RetryPolicy. The status of an unusable policy shows the last usable content."""
    if isinstance(outcome, PolicyRevision):
        attempts, total = len(outcome.sequence), times.duration_text(outcome.total_seconds)
        shown: dict[str, Any] = {
            "revision": outcome.hash,
            "delaysText": conditions.shorten(",".join(outcome.sequence), DELAYS_TEXT_CHARACTERS_MAX),
            "attempts": attempts,
            "totalText": total,
        }
        message = f"{attempts} attempts after the first, over {total}"
        ready = Condition(conditions.READY, "True", conditions.POLICY_ACCEPTED, message)
    else:
        shown = {key: previous[key] for key in POLICY_KEPT if key in previous}
        good = previous.get("revision")
        stays = f"; groups keep revision {good}" if good else "; groups that refer to this policy wait"
        ready = Condition(conditions.READY, "False", outcome.reason, f"{outcome.message}{stays}")
    shown["groupCount"] = groups
    return conditions.with_conditions(shown, [ready], times.to_text(now), generation, previous)
