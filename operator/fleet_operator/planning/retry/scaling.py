"""Number of retry workers. It depends on the due records and on the next due time.

No worker runs while no record is due. The first worker is started shortly before the next record is due. More workers
are added while due records are late, and are removed once no record has been late for a while. Lag is not used, because
it includes records that are not due yet. An unknown value changes nothing, so a fleet never shrinks because of missing
data.

Decision: docs/decisions/0017-policy-revisions.md.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from fleet_operator.api.v1alpha1.consumergroup import REPLICAS_MAX
from fleet_operator.planning.scaling.decision import ScaleDecision
from fleet_operator.planning.state.group import RetrySizing

WAKE_S: Final = 30.0
"""The first worker is started this many seconds before the next due time. It needs this time for scheduling, image
pull, join and rebalance."""

CALM_S: Final = 60.0
"""Seconds after which workers are removed if no record is due and none will be due soon."""

LATE_S: Final = 15.0
"""A record is late if it is still waiting this many seconds after its due time. The workers then cannot keep up, or
have not started."""

GROW_S: Final = 30.0
"""Minimum seconds from a change of the number of workers until more workers are added, so that the change can take
effect."""

SHRINK_S: Final = 120.0
"""Half of the workers are removed if, for this many seconds, no record was late and the number of workers did not
change."""

REGRET_S: Final = 300.0
"""If records are late within this many seconds after a removal of workers, the removed workers were needed."""

SHORT_S: Final = 1800.0
"""After a number of workers proved to be too small, it is not tried again for this many seconds."""

EMPTY_S: Final = 43_200.0
"""Maximum seconds for which the Kafka group of the retry workers may stay empty while the brokers'
`offsets.retention.minutes` is unknown. This is half of the shortest default of any Kafka version. If the group's
commits expired, its workers would process every retry topic again from the oldest record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLoad:
    """The load of a group's retry workers. Counts and times are None while unknown. Times are epoch seconds.

    - `least`, `most`: the spec's limits for the number of workers; `most` is None without a limit.
    - `partitions`: the number of partitions of each managed topic.
    - `counted`: True if every partition was observed. If `oldest_at` or `next_at` is then None, no such record exists.
    - `lag`: the number of due records. `oldest_at`: the time at which the first of them became due. `next_at`: the time
      at which the next record will be due.
    - `current`: the StatefulSet's number of replicas, None without a StatefulSet. `changed_at`: the time of the last
      change of the number of workers.
    - `held`: True if a breaker is open. Records are then late on purpose, and the number of workers does not change.
    - `unsure`: True if the state of the breakers is unknown; then no workers are added for late records.
    - `shortest_delay_s`: the shortest delay of the policy in seconds; None while nothing writes to the retry topics.
    - `empty`: True if the workers' Kafka group exists and has no members. `empty_s`: maximum seconds for which the
      group may stay empty.
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
        """Limit a count to the spec's limits and to REPLICAS_MAX.

        The number of partitions of a topic is also a limit, because additional workers might be idle. If no upper limit
        is known, the present number of workers is the limit."""
        known = [bound for bound in (self.most, self.partitions) if bound is not None]
        most = min(known, default=max(self.current or 0, self.least, 1))
        return min(max(count, self.least), most, REPLICAS_MAX)


@dataclass(frozen=True, slots=True)
class RetryMemory:
    """History of a group's retry workers. Times are epoch seconds. Only `kept` survives a restart of the operator.

    - `calm_since`: the time since which no record has been due or about to be due. `keeping_up_since`: the time since
      which no due record has been late. A restart loses both times, so workers are then removed later.
    - `drained_at`: used while retries are being ended. No record has been waiting since the observation at this time;
      None if records wait. A restart loses this time, so the workers then stay for one more observation.
    - `kept`: stored in the group's state. It shows, for example, that an earlier removal of workers was a mistake, so
      a new process does not repeat it.
    """

    calm_since: float | None = None
    keeping_up_since: float | None = None
    drained_at: float | None = None
    kept: RetrySizing = field(default_factory=RetrySizing)

    def decided(self, replicas: int, now: float) -> "RetryMemory":
        if replicas == self.kept.count:
            return self
        return replace(self, kept=replace(self.kept, count=replicas, changed_at=round(now, 1)))


def is_busy(load: RetryLoad, now: float) -> bool | None:
    """True if a record is due now or within `WAKE_S`, the time that a worker needs to start; None while unknown. A
    single such record is enough, even if other partitions were not observed."""
    soon = load.next_at is not None and load.next_at - now <= WAKE_S
    if soon or load.oldest_at is not None:
        return True
    if not load.counted or load.lag is None:
        return None
    return load.lag > 0


def is_late(load: RetryLoad, now: float) -> bool | None:
    """True if a record became due more than LATE_S ago; None while unknown."""
    if load.lag and load.oldest_at is not None and now - load.oldest_at > LATE_S:
        return True
    return False if load.counted and load.lag is not None else None


def _remember(memory: RetryMemory, load: RetryLoad, now: float) -> RetryMemory:
    """Update the memory. While the load is unknown, it is not assumed that no record is due or that records are handled
    in time."""
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
    scale, memory = _decide(load, memory, now), _remember(memory, load, now)
    if load.current is not None and scale.replicas < load.current and is_busy(load, now):
        memory = replace(memory, kept=replace(memory.kept, shrunk_at=round(now, 1)))
    return scale, memory


def _decide(load: RetryLoad, memory: RetryMemory, now: float) -> ScaleDecision:
    if load.changed_at is not None and load.changed_at > now + GROW_S:
        load = replace(load, changed_at=None)  # recorded before the clock was set back
    if load.shortest_delay_s is not None and load.shortest_delay_s < WAKE_S:
        # The delay is shorter than the start of a worker. A worker started after a record failed would be too late for
        # the record, so one worker always runs.
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
    """Decide while records are due or will be due soon: at least one worker runs. The number doubles if records are
    still late GROW_S after the last change, and halves after SHRINK_S without late records."""
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
        return _scale(started, "records are late, and the number of workers is at its limit", GROW_S)
    if load.unsure:
        return _scale(started, "due records are late, but the state of the breakers is unknown", GROW_S)
    settled_at = (load.changed_at or 0.0) + GROW_S
    if now < settled_at:
        return _scale(started, "the last change has not shown its effect yet", settled_at - now)
    return _scale(more, "due records wait", GROW_S)


def _fewer(load: RetryLoad, memory: RetryMemory, current: int, now: float) -> ScaleDecision:
    """After SHRINK_S without late records, halve the workers, but not down to a number that was recently too small."""
    fewer = load.within(max(-(-current // 2), memory.kept.short + 1, 1))
    if fewer >= current or memory.keeping_up_since is None:
        return _scale(current, "the workers keep up", GROW_S)
    left = max(memory.keeping_up_since, load.changed_at or 0.0) + SHRINK_S - now
    if left > 0.0:
        return _scale(current, "the workers keep up", min(left, GROW_S))
    return _scale(fewer, "fewer workers can keep up with the due records", GROW_S)


def _rest(load: RetryLoad, memory: RetryMemory, current: int, now: float) -> ScaleDecision:
    """Decide while no record is due: after CALM_S, only `minReplicas` workers stay. Workers are started again before
    the next record is due, or before the group's commits expire."""
    least = load.within(load.least)
    calm_since = memory.calm_since if memory.calm_since is not None else now
    if current <= least:
        return _sleep(load, least, now)
    left = calm_since + CALM_S - now
    if left > 0.0:
        return _scale(load.within(current), "nothing is due", left)
    # Times in Kubernetes objects are in whole seconds.
    started_in_calm = load.changed_at is not None and calm_since < load.changed_at + 1.0
    if load.empty and started_in_calm:
        return _scale(load.within(current), "a worker joins, so that the group's commits are kept", GROW_S)
    return _scale(least, "nothing is due", _wake_in(load, now))


def _sleep(load: RetryLoad, least: int, now: float) -> ScaleDecision:
    """Keep `minReplicas` workers. Before the commits of an empty group expire, run one worker for a short time. Brokers
    count the age of commits from the time at which the last member left, so the age then starts at zero again."""
    wake_in = _wake_in(load, now)
    if least > 0 or not load.empty or load.current is None:
        return _scale(least, "nothing is due", wake_in)
    join_in = (load.changed_at or 0.0) + load.empty_s - now
    if join_in <= 0.0:
        return _scale(load.within(1), "the commits of the empty group are about to expire", GROW_S)
    return _scale(least, "nothing is due", join_in if wake_in is None else min(join_in, wake_in))


def _wake_in(load: RetryLoad, now: float) -> float | None:
    """Return the seconds until a worker must be started for the next due record; None if no due time is known."""
    return load.next_at - WAKE_S - now if load.next_at is not None else None
