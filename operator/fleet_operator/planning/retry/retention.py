"""For how long retry topics keep what waits in them, and until when it is safe. Pure.

Brokers delete records by their age, handled or not. The retention of a topic is enough for a fleet that runs; while the
fleet is suspended, and while what is due is not handled for whatever reason (broken workers, an open breaker, a record
that never ends), the topic keeps its records without a limit. The limit returns once what waits is far younger. An
operator that is stopped in between leaves the topics as they are.

`spec.managedTopics.retentionSeconds` is a person's word: such topics are never kept for longer, and never shortened
while that would lose what waits. The condition RetriesKept warns when half of the time is over.
"""

from __future__ import annotations

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
"""A record that has been due for longer shows that the fleet cannot handle it: its topic keeps it without a limit."""
RECOVERED_S: Final = 1800.0
"""The limit returns once no record has been due for longer."""
WARNED_SHARE: Final = 0.5
"""The part of a record's retention after which the condition warns."""
ROUNDED_S: Final = ((naming.DAY_SECONDS, 3600), (0, 60))
"""Steps in which deadlines are shown, by retention: those of a busy topic move all the time."""


def flow_topics(group_id: str, seen: RetryObservation) -> Iterator[tuple[str, ManagedTopic, float]]:
    """The topics that retry workers read, as observed, each with its delay in seconds."""
    prefix = naming.retry_topic(group_id, "")
    for name, topic in seen.topics.items():
        if name != naming.failed_topic(group_id):
            yield name, topic, float(naming.parse_delay(name.removeprefix(prefix))) if name.startswith(prefix) else 0.0


def is_set(group: ConsumerGroup) -> bool:
    """True if a person has set the retention of the group's retry topics."""
    return group.spec.managed_topics.retention_seconds is not None


def is_kept(topic: ManagedTopic) -> bool:
    """True if brokers keep the topic's records without a limit."""
    return (topic.configs or {}).get(RETENTION) == UNLIMITED


def must_keep(group: ConsumerGroup, topic: ManagedTopic, delay_s: float, now: float) -> bool | None:
    """True if what waits must not expire; None while unknown. `now` is the time of the observation."""
    if topic.waiting == 0:
        return False
    if group.spec.suspend:
        return True
    if topic.waiting is None or topic.oldest_at is None:
        return None
    return now - topic.oldest_at - delay_s > (RECOVERED_S if is_kept(topic) else OVERDUE_S)


def next_change(group: ConsumerGroup, seen: RetryObservation) -> float | None:
    """Seconds from the observation until a topic has to keep its records without a limit, or its deadline is near."""
    found: list[float] = []
    for _, topic, delay_s in flow_topics(group.group_id, seen):
        limit_s = _limit_s(topic)
        if topic.oldest_at is not None and limit_s is not None:
            age_s = seen.observed_at - topic.oldest_at
            found += [delay_s + OVERDUE_S - age_s, WARNED_SHARE * limit_s - age_s]
    return min((seconds for seconds in found if seconds > 0.0), default=None)


@dataclass(frozen=True, slots=True)
class Kept:
    """The verdict (status, reason and message) of the condition RetriesKept, and when the first waiting record may be
    deleted: None while nothing waits, without a limit, and while unknown."""

    status: conditions.Status
    reason: str
    message: str
    safe_until: float | None = None


NOTHING_WAITS: Final = Kept("True", conditions.NOTHING_WAITS, "no record waits for a retry")


def judge(group: ConsumerGroup, seen: RetryObservation, refusal: Problem | None) -> Kept:
    """The verdict by the retention that the brokers really have. `refusal` is why a topic could not be changed."""
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
        message = "what waits is kept without a limit until workers have handled it"
        return Kept("True", conditions.KEPT_WITHOUT_LIMIT, message)
    ends_at, limit, name, _ = min(limited)
    safe_until = _rounded(ends_at, limit)
    late = seen.observed_at >= ends_at - WARNED_SHARE * limit
    refused = refusal is not None and any(must for *_, must in limited)
    if not (late or refused):
        message = "what waits is young enough, and its topics keep it for longer if workers cannot handle it in time"
        return Kept("True", conditions.WITHIN_RETENTION, message, safe_until)
    reason, remedy = _remedy(group, refusal)
    until = times.to_text(safe_until)
    message = f"brokers delete records that wait in {name} from {until} on, by the topic's retention.ms: {remedy}"
    return Kept("False", reason, message, safe_until)


def _remedy(group: ConsumerGroup, refusal: Problem | None) -> tuple[str, str]:
    """The reason why a topic does not keep what waits in it, and what to do."""
    if group.paused:
        what = "remove the annotation consumerfleet.io/paused, and the operator keeps them for longer"
        return conditions.PAUSED_BY_ANNOTATION, what
    if is_set(group):
        what = "have the fleet handle them before, or raise or remove spec.managedTopics.retentionSeconds"
        return conditions.RETENTION_SET, what
    if refusal is not None:
        return refusal.reason, f"the operator could not change that: {refusal.message}"
    return conditions.RETENTION_ENDS, "have the fleet handle them before, or raise it"


def _unknown(topic: ManagedTopic) -> str:
    if topic.error or topic.waiting is None:
        return f"it is not known what waits there{f' ({topic.error})' if topic.error else ''}"
    if topic.configs is None:
        return "its retention is not known: let the operator's principal describe the configs of the group's topics"
    return "the age of the oldest waiting record is being looked up"


def _limit_s(topic: ManagedTopic) -> float | None:
    """The topic's retention in seconds; None for one without a limit, and while unknown."""
    text = (topic.configs or {}).get(RETENTION, "")
    return int(text) / 1000 if text.isdigit() else None


def _rounded(at: float, limit_s: float) -> float:
    step = next(step for least, step in ROUNDED_S if limit_s >= least)
    return float(at // step * step)
