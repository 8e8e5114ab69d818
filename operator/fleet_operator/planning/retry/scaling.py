"""Number of retry workers: none while nothing is due, one before the next due time, more while late, fewer after.

Lag is no measure here, as every waiting record is lag. The count follows the records whose time has come, and the next
due time. Unknown values change nothing: a fleet never shrinks on missing data.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.state.group import RetrySizing

WAKE_S: Final = 30.0
"""Lead time of the first worker before the next due time: scheduling, image, join, and the rebalance."""

CALM_S: Final = 60.0
"""Time without due records, or ones about to be, after which workers are removed."""

LATE_S: Final = 15.0
"""A record that has been due longer is late: the workers cannot keep up, or have not started."""

GROW_S: Final = 30.0
"""Time for a change of the count to show its effect before more workers are added."""

SHRINK_S: Final = 120.0
"""Time without late records and without a change of the count, after which half of the workers are removed."""

REGRET_S: Final = 300.0
"""Records that are late so soon after workers were removed show that these were needed."""

SHORT_S: Final = 1800.0
"""Time for which a count that was too small is not tried again."""

EMPTY_S: Final = 43_200.0
"""Longest time that the retry workers' group stays empty where `offsets.retention.minutes` is unknown: half of Kafka's
shortest default ever. A group without its commits starts at the oldest record of every retry topic, and would process
all records again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLoad:
    """Load of a group's retry workers. Counts and times are None where unknown; times are epoch seconds.

    - `least`, `most`: the spec's limits of the count, `most` None without one; `partitions`: of one managed topic.
    - `counted`: every partition was observed. A time of None then means that there is no such record.
    - `lag`: the number of due records; `oldest_at`, `next_at`: when the first of them became due, and when the next one
      will.
    - `current`: the StatefulSet's count, None without one; `changed_at` its last change.
    - `held`: a breaker is open, so late records are late on purpose and the count stays.
    - `unsure`: the state of the breakers is unknown, so lateness is no reason for more workers.
    - `shortest_delay_s`: shortest delay of the policy, None while no record can fail.
    - `empty`: the workers' Kafka group exists and has no members; `empty_s` is for how long it may stay so.
    """

    least: int
    most: int | None
    partitions: int | None
    counted: bool = False
    lag: int | None = None
    oldest_at: float | None = None
    next_at: float | None = None
    current: int | None
    changed_at: float | None = None
    held: bool = False
    unsure: bool = False
    shortest_delay_s: float | None = None
    empty: bool = False
    empty_s: float = EMPTY_S

    def within(self, count: int) -> int:
        """The count within the bounds. More workers than a topic has partitions might be idle; while nothing is known,
        the present count is the limit."""
        known = [bound for bound in (self.most, self.partitions) if bound is not None]
        return min(max(count, self.least), min(known, default=max(self.current or 0, self.least, 1)))


@dataclass(frozen=True, slots=True)
class RetryMemory:
    """Past of a fleet of retry workers; times are epoch seconds.

    - `calm_since`, `keeping_up_since`: since when nothing is due or about to be, and no due record is late. Known to
      this process only: after a restart, workers stay a while longer.
    - `drained_at`: time of the first of the last observations in a row that saw nothing wait after the end of retries.
      Known to this process only: after a restart, workers stay for one observation more.
    - `kept`: what the group's state keeps, or a restart would try the same removal again.
    """

    calm_since: float | None = None
    keeping_up_since: float | None = None
    drained_at: float | None = None
    kept: RetrySizing = field(default_factory=RetrySizing)

    def decided(self, replicas: int, now: float) -> RetryMemory:
        if replicas == self.kept.count:
            return self
        return replace(self, kept=replace(self.kept, count=replicas, changed_at=round(now, 1)))


def is_busy(load: RetryLoad, now: float) -> bool | None:
    """True if a record is due, or will be before a worker could be up; None while unknown.

    One record that is known to be due is enough, even if other partitions were not observed.
    """
    soon = load.next_at is not None and load.next_at - now <= WAKE_S
    if soon or load.oldest_at is not None:
        return True
    if not load.counted or load.lag is None:
        return None
    return load.lag > 0


def is_late(load: RetryLoad, now: float) -> bool | None:
    """True if due records wait longer than it takes to handle them; None while unknown."""
    if load.lag and load.oldest_at is not None and now - load.oldest_at > LATE_S:
        return True
    return False if load.counted and load.lag is not None else None


def _remember(memory: RetryMemory, load: RetryLoad, now: float) -> RetryMemory:
    """The memory with the present load. Unknown load proves neither calm nor that the workers keep up."""
    busy, late = is_busy(load, now), is_late(load, now)
    if busy is not None:
        memory = replace(memory, calm_since=None if busy else min(memory.calm_since or now, now))
    in_time = late is False and not load.held and not load.unsure
    memory = replace(memory, keeping_up_since=min(memory.keeping_up_since or now, now) if in_time else None)
    kept = memory.kept
    if late and not load.held and kept.shrunk_at is not None:
        if now - kept.shrunk_at < REGRET_S:
            kept = replace(kept, short=load.current or 0, short_at=round(now, 1))
        kept = replace(kept, shrunk_at=None)
    if kept.short_at is not None and now - kept.short_at >= SHORT_S:
        kept = replace(kept, short=0, short_at=None)
    return replace(memory, kept=kept)


def decide_retry_scale(load: RetryLoad, memory: RetryMemory, now: float) -> tuple[ScaleDecision, RetryMemory]:
    """The count for what is known, and the memory with this load; `now` in epoch seconds."""
    scale, memory = _decide(load, memory, now), _remember(memory, load, now)
    if load.current is not None and scale.replicas < load.current and is_busy(load, now):
        memory = replace(memory, kept=replace(memory.kept, shrunk_at=round(now, 1)))
    return scale, memory


def _decide(load: RetryLoad, memory: RetryMemory, now: float) -> ScaleDecision:
    if load.changed_at is not None and load.changed_at > now + GROW_S:
        load = replace(load, changed_at=None)  # noted before the clock was set back
    if load.shortest_delay_s is not None and load.shortest_delay_s < WAKE_S:
        # A worker that is started for one record would come too late.
        load = replace(load, least=max(load.least, 1))
    current = load.current if load.current is not None else load.least
    if load.held:
        return _scale(load.within(current), "a breaker is open", GROW_S)
    busy = is_busy(load, now)
    if busy is None:
        return _scale(load.within(current), "the number of due records is unknown", _wake_in(load, now))
    return _work(load, memory, current, now) if busy else _rest(load, memory, current, now)


def _scale(replicas: int, reason: str, requeue_after: float | None) -> ScaleDecision:
    return ScaleDecision(replicas=replicas, reason=reason, requeue_after=requeue_after)


def _work(load: RetryLoad, memory: RetryMemory, current: int, now: float) -> ScaleDecision:
    """At least one worker. Doubled while records stay late although the last change has had its time, halved once they
    have been in time for a while."""
    started = load.within(max(current, 1))
    if started > current:
        return _scale(started, "records are due, or about to be", GROW_S)
    late = is_late(load, now)
    if late is None:
        return _scale(started, "records are due", GROW_S)
    if not late:
        return _fewer(load, memory, started, now)
    more = load.within(2 * started)
    if more <= started:
        return _scale(started, "no more workers are useful", GROW_S)
    if load.unsure:
        return _scale(started, "due records wait, and the state of the breakers is unknown", GROW_S)
    settled_at = (load.changed_at or 0.0) + GROW_S
    if now < settled_at:
        return _scale(started, "the last change has not shown its effect yet", settled_at - now)
    return _scale(more, "due records wait", GROW_S)


def _fewer(load: RetryLoad, memory: RetryMemory, current: int, now: float) -> ScaleDecision:
    """Half the workers, once all records have been in time for a while; more than were lately too few."""
    fewer = load.within(max(-(-current // 2), memory.kept.short + 1, 1))
    if fewer >= current or memory.keeping_up_since is None:
        return _scale(current, "the workers keep up", GROW_S)
    left = max(memory.keeping_up_since, load.changed_at or 0.0) + SHRINK_S - now
    if left > 0.0:
        return _scale(current, "the workers keep up", min(left, GROW_S))
    return _scale(fewer, "fewer workers can keep up with what is due", GROW_S)


def _rest(load: RetryLoad, memory: RetryMemory, current: int, now: float) -> ScaleDecision:
    """The least count after a calm minute; more before the next record is due, or the group's commits expire."""
    least = load.within(load.least)
    calm_since = memory.calm_since if memory.calm_since is not None else now
    if current <= least:
        return _sleep(load, least, now)
    left = calm_since + CALM_S - now
    if left > 0.0:
        return _scale(load.within(current), "nothing is due", left)
    # Times on objects are whole seconds.
    started_in_calm = load.changed_at is not None and calm_since < load.changed_at + 1.0
    if load.empty and started_in_calm:
        return _scale(load.within(current), "a worker joins, so that the group's commits are kept", GROW_S)
    return _scale(least, "nothing is due", _wake_in(load, now))


def _sleep(load: RetryLoad, least: int, now: float) -> ScaleDecision:
    """Scale to minReplicas. Before an empty group's commits expire, run one worker briefly: brokers count their age
    from when the last member left."""
    wake_in = _wake_in(load, now)
    if least > 0 or not load.empty or load.current is None:
        return _scale(least, "nothing is due", wake_in)
    join_in = (load.changed_at or 0.0) + load.empty_s - now
    if join_in <= 0.0:
        return _scale(load.within(1), "the commits of the empty group are about to expire", GROW_S)
    return _scale(least, "nothing is due", join_in if wake_in is None else min(join_in, wake_in))


def _wake_in(load: RetryLoad, now: float) -> float | None:
    """Seconds until the first worker must be started for the next record; None while none is known."""
    return load.next_at - WAKE_S - now if load.next_at is not None else None
