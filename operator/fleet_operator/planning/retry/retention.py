"""Retention of retry topics, and the time until which their waiting records are safe. Pure.

Brokers delete records by age, whether they were handled or not. The retention of a retry topic is long enough while the
fleet handles due records. The operator sets the topic's retention to unlimited while the fleet is suspended, or while
due records are not handled. Reasons for the latter are broken workers, an open breaker, or a handler that never
returns. It restores the limit when due records are handled in time. If the operator stops in between, retention stays
unlimited.

If the user sets `spec.managedTopics.retentionSeconds`, the operator never sets unlimited retention, and does not lower
the retention while that would delete waiting records. The condition RetriesKept warns when a waiting record has reached
half of its retention.

Decision: docs/decisions/0050-waiting-retries.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fleet_consumer.contract import naming
from fleet_consumer.contract.managed_topics import RETENTION, UNLIMITED
from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.api.v1alpha1.consumergroup import ConsumerGroup
from fleet_operator.planning import times
from fleet_operator.planning.observation import ManagedTopic, RetryObservation
from fleet_operator.planning.problem import Problem

OVERDUE_S: Final = 3600.0
"""If a record still waits this many seconds after its due time, the fleet apparently cannot handle it, and the topic's
retention becomes unlimited."""
RECOVERED_S: Final = 1800.0
"""An unlimited retention is limited again once no record has been due for more than this many seconds."""
WARNED_SHARE: Final = 0.5
"""The condition RetriesKept warns after this share of a record's retention."""
ROUNDED_S: Final = ((naming.DAY_SECONDS, 3600), (0, 60))
"""Pairs of a retention and a rounding step, both in seconds. A step is used for topics with at least this retention.
The deadline in the status is rounded down to a multiple of the step, because the deadline of a busy topic changes all
the time."""


def flow_topics(group_id: str, seen: RetryObservation) -> Iterator[tuple[str, ManagedTopic, float]]:
    """Yield the observed topics that retry workers read, each with its delay in seconds; 0 for the redrive topic."""
    prefix = naming.retry_topic(group_id, "")
    for name, topic in seen.topics.items():
        if name != naming.failed_topic(group_id):
            yield name, topic, float(naming.parse_delay(name.removeprefix(prefix))) if name.startswith(prefix) else 0.0


def is_set(group: ConsumerGroup) -> bool:
    """True if the spec sets the retention of the group's retry topics."""
    return group.spec.managed_topics.retention_seconds is not None


def is_kept(topic: ManagedTopic) -> bool:
    """True if the topic's retention is unlimited."""
    return (topic.configs or {}).get(RETENTION) == UNLIMITED


def must_keep(group: ConsumerGroup, topic: ManagedTopic, delay_s: float, now: float) -> bool | None:
    """True if waiting records must be kept longer than the topic's retention; None while unknown. `now`: the
    observation's time."""
    if topic.waiting == 0:
        return False
    if group.spec.suspend:
        return True
    if topic.waiting is None or topic.oldest_at is None:
        return None
    return now - topic.oldest_at - delay_s > (RECOVERED_S if is_kept(topic) else OVERDUE_S)


def next_change(group: ConsumerGroup, seen: RetryObservation) -> float | None:
    """Seconds from the observation until a topic will need unlimited retention, or until the condition must warn. None
    if neither is expected."""
    found: list[float] = []
    for _, topic, delay_s in flow_topics(group.group_id, seen):
        limit_s = _limit_s(topic)
        if topic.oldest_at is not None and limit_s is not None:
            age_s = seen.observed_at - topic.oldest_at
            found += [delay_s + OVERDUE_S - age_s, WARNED_SHARE * limit_s - age_s]
    return min((seconds for seconds in found if seconds > 0.0), default=None)


@dataclass(frozen=True, slots=True)
class Kept:
    """The condition RetriesKept. `safe_until`: the time, in epoch seconds, from which brokers may delete a waiting
    record. None if no record waits, if retention is unlimited, or while the time is unknown."""

    status: conditions.Status
    reason: str
    message: str
    safe_until: float | None = None


NOTHING_WAITS: Final = Kept("True", conditions.NOTHING_WAITS, "no record waits for a retry")


def judge(group: ConsumerGroup, seen: RetryObservation, refusal: Problem | None) -> Kept:
    """Derive the condition from the brokers' actual retention. `refusal`: why the operator could not change a topic, or
    None."""
    waiting = [each for each in flow_topics(group.group_id, seen) if each[1].waiting != 0]
    if not waiting:
        return NOTHING_WAITS
    for name, topic, _ in waiting:
        if topic.waiting is None or topic.configs is None or (topic.oldest_at is None and not is_kept(topic)):
            return Kept("Unknown", conditions.NOT_YET_OBSERVED, f"topic {name}: {_unknown(topic)}")
    limited = [
        (topic.oldest_at + limit, limit, name, must_keep(group, topic, delay_s, seen.observed_at))
        for name, topic, delay_s in waiting
        if topic.oldest_at is not None and (limit := _limit_s(topic)) is not None
    ]
    if not limited:
        message = "waiting records are kept without a limit until workers have handled them"
        return Kept("True", conditions.KEPT_WITHOUT_LIMIT, message)
    ends_at, limit, name, _ = min(limited)
    step = next(step for least, step in ROUNDED_S if limit >= least)
    safe_until = float(ends_at // step * step)
    late = seen.observed_at >= ends_at - WARNED_SHARE * limit
    refused = refusal is not None and any(must for *_, must in limited)
    if not (late or refused):
        message = "no record that waits for a retry is near the end of its retention"
        return Kept("True", conditions.WITHIN_RETENTION, message, safe_until)
    reason, remedy = _remedy(group, refusal)
    until = times.to_text(safe_until)
    message = f"brokers delete records that wait in {name} from {until} on, because of its retention.ms: {remedy}"
    return Kept("False", reason, message, safe_until)


def _remedy(group: ConsumerGroup, refusal: Problem | None) -> tuple[str, str]:
    """Return the condition's reason for records that may be deleted, and the remedy for its message."""
    if group.paused:
        what = "remove the annotation consumerfleet.io/paused, so that the operator can extend the retention"
        return conditions.PAUSED_BY_ANNOTATION, what
    if is_set(group):
        what = "let the fleet handle them before then, or raise or remove spec.managedTopics.retentionSeconds"
        return conditions.RETENTION_SET, what
    if refusal is not None:
        return refusal.reason, f"the operator could not change the retention: {refusal.message}"
    return conditions.RETENTION_ENDS, "let the fleet handle them before then, or raise the retention"


def _unknown(topic: ManagedTopic) -> str:
    if topic.error or topic.waiting is None:
        return f"the number of waiting records is unknown{f' ({topic.error})' if topic.error else ''}"
    if topic.configs is None:
        return "its retention is unknown: allow the operator's principal to DescribeConfigs the group's topics"
    return "the age of the oldest waiting record is being looked up"


def _limit_s(topic: ManagedTopic) -> float | None:
    """Return the topic's retention in seconds; None if it is unlimited or unknown."""
    text = (topic.configs or {}).get(RETENTION, "")
    return int(text) / 1000 if text.isdigit() else None
