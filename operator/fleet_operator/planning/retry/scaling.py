"""The number of retry workers: none while nothing is due, one before the next record is, more while late, fewer after.

Lag is the wrong measure here, for whatever waits is lag. What counts is what is due: the records whose time has come,
and when the next one's comes. What is unknown changes nothing: a fleet never shrinks because nobody could look.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

WAKE_S: Final = 30.0
"""How long before the next due time the first worker is started: scheduling, image, join, and the rebalance."""

CALM_S: Final = 60.0
"""How long nothing may have been due, or about to be, before workers are taken away."""

LATE_S: Final = 15.0
"""A record that has been due for longer shows that the workers cannot keep up, or are not there yet."""

GROW_S: Final = 30.0
"""How long the last change of the count must have had to show its effect before more workers are added."""

SHRINK_S: Final = 120.0
"""How long records must have been handled in time, and the count unchanged, before half of the workers go."""

REGRET_S: Final = 300.0
"""Records that are late so soon after workers went show that these were needed."""

SHORT_S: Final = 1800.0
"""How long a count that was too small is not tried again."""

EMPTY_S: Final = 43_200.0
"""How long a group of retry workers is left without members where the brokers do not say after what time they throw the
commits of an empty group away: half of the shortest that has ever been Kafka's default. Without its commits a group
begins with the oldest record of every retry topic, and would handle again all that it has handled since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLoad:
    """What is known of a group's retries. Counts and times that could not be asked are None.

    `counted` says whether every partition could be asked: with it, a time which is None means that there is no such
    record. `partitions` is what one managed topic has. `current` is the StatefulSet's count, None while there is none;
    `changed_at` when it was last changed, `calm_since` since when nothing is due or about to be (both epoch seconds).
    `held` keeps the count as it is: a breaker is open, and what is late is late on purpose. `unsure` says that nobody
    knows whether one is, so that lateness is no reason for more workers. `shortest_delay_s` is that of the policy, None
    while nobody can fail a record. `empty` says that the workers' Kafka group exists and has no members, `empty_s` for
    how long it may stay so.
    """

    least: int
    most: int | None
    partitions: int | None
    current: int | None
    counted: bool = False
    due_lag: int | None = None
    oldest_due_at: float | None = None
    next_due_at: float | None = None
    changed_at: float | None = None
    calm_since: float | None = None
    keeping_up_since: float | None = None
    short: int = 0
    held: bool = False
    unsure: bool = False
    shortest_delay_s: float | None = None
    empty: bool = False
    empty_s: float = EMPTY_S


@dataclass(frozen=True, slots=True)
class RetryMemory:
    """The past that a count depends on; kept in memory only, so that after a restart workers stay for a while longer.

    Times are epoch seconds: since when nothing is due or about to be, and nothing due is late; when workers last went
    although records were due. `short` workers were too few at `short_at`.
    """

    calm_since: float | None = None
    keeping_up_since: float | None = None
    shrunk_at: float | None = None
    short: int = 0
    short_at: float | None = None


@dataclass(frozen=True, slots=True)
class RetryScale:
    """The wanted count, why, and after how many seconds to look again (None: when something changes)."""

    replicas: int
    reason: str
    requeue_after: float | None = None


def busy(load: RetryLoad, now: float) -> bool | None:
    """Whether something is due, or will be before a worker could be up; None where that is unknown.

    One record that is known to be due is enough, whatever the partitions that could not be asked may hold.
    """
    soon = load.next_due_at is not None and load.next_due_at - now <= WAKE_S
    if soon or load.oldest_due_at is not None:
        return True
    if not load.counted or load.due_lag is None:
        return None
    return load.due_lag > 0


def is_late(load: RetryLoad, now: float) -> bool | None:
    """Whether due records wait for longer than it takes to handle them; None where that is unknown."""
    if load.due_lag and load.oldest_due_at is not None and now - load.oldest_due_at > LATE_S:
        return True
    return False if load.counted and load.due_lag is not None else None


def recall(memory: RetryMemory, load: RetryLoad) -> RetryLoad:
    """The load with what was seen before."""
    return replace(load, calm_since=memory.calm_since, keeping_up_since=memory.keeping_up_since, short=memory.short)


def remember(memory: RetryMemory, load: RetryLoad, now: float) -> RetryMemory:
    """The memory with what is seen now. What is unknown proves neither calm nor that the workers keep up."""
    is_busy, late = busy(load, now), is_late(load, now)
    if is_busy is not None:
        memory = replace(memory, calm_since=None if is_busy else memory.calm_since or now)
    in_time = late is False and not load.held and not load.unsure
    memory = replace(memory, keeping_up_since=(memory.keeping_up_since or now) if in_time else None)
    if late and not load.held and memory.shrunk_at is not None:
        if now - memory.shrunk_at < REGRET_S:
            memory = replace(memory, short=load.current or 0, short_at=now)
        memory = replace(memory, shrunk_at=None)
    if memory.short_at is not None and now - memory.short_at >= SHORT_S:
        memory = replace(memory, short=0, short_at=None)
    return memory


def decide_retry_scale(load: RetryLoad, now: float) -> RetryScale:
    """The count for what is known; `now` in epoch seconds."""
    if load.shortest_delay_s is not None and load.shortest_delay_s < WAKE_S:
        load = replace(load, least=max(load.least, 1))  # a worker that is started for a record would come too late
    current = load.current if load.current is not None else load.least
    most = _most(load)
    if load.held:
        return RetryScale(_within(current, load.least, most), "a breaker is open", GROW_S)
    is_busy = busy(load, now)
    if is_busy is None:
        return RetryScale(_within(current, load.least, most), "what waits is not known", _wake_in(load, now))
    if is_busy:
        return _work(load, current, most, now)
    return _rest(load, current, most, now)


def _work(load: RetryLoad, current: int, most: int, now: float) -> RetryScale:
    """At least one; twice as many while records stay late although the last change has had its time, half as many once
    they have been in time for a while."""
    started = _within(max(current, 1), load.least, most)
    if started > current:
        return RetryScale(started, "records are due, or about to be", GROW_S)
    late = is_late(load, now)
    if not late:
        return _fewer(load, started, most, now) if late is False else RetryScale(started, "records are due", GROW_S)
    if started >= most:
        return RetryScale(started, "no more workers are useful", GROW_S)
    if load.unsure:
        return RetryScale(started, "due records wait, and whether a breaker is open is not known", GROW_S)
    settled_at = (load.changed_at or 0.0) + GROW_S
    if now < settled_at:
        return RetryScale(started, "the last change has yet to show its effect", settled_at - now)
    return RetryScale(_within(2 * started, load.least, most), "due records wait", GROW_S)


def _fewer(load: RetryLoad, current: int, most: int, now: float) -> RetryScale:
    """Half the workers, once all records have been in time for a while; never as few as have lately been too few."""
    fewer = _within(max(-(-current // 2), load.short + 1, 1), load.least, most)
    if fewer >= current or load.keeping_up_since is None:
        return RetryScale(current, "the workers keep up", GROW_S)
    left = max(load.keeping_up_since, load.changed_at or 0.0) + SHRINK_S - now
    if left > 0.0:
        return RetryScale(current, "the workers keep up", min(left, GROW_S))
    return RetryScale(fewer, "fewer workers have kept up with what is due", GROW_S)


def _rest(load: RetryLoad, current: int, most: int, now: float) -> RetryScale:
    """Down to the least after a calm minute; back before the next record is due, or the group's commits are."""
    least = _within(load.least, load.least, most)
    calm_since = load.calm_since if load.calm_since is not None else now
    if current <= least:
        return _sleep(load, least, most, now)
    left = calm_since + CALM_S - now
    if left > 0.0:
        return RetryScale(_within(current, load.least, most), "nothing is due", left)
    # Times on objects are whole seconds.
    started_in_calm = load.changed_at is not None and calm_since < load.changed_at + 1.0
    if load.empty and started_in_calm:
        return RetryScale(_within(current, load.least, most), "a worker is to join, so that commits are kept", GROW_S)
    return RetryScale(least, "nothing is due", _wake_in(load, now))


def _sleep(load: RetryLoad, least: int, most: int, now: float) -> RetryScale:
    """No more than the least, save for a moment in which one worker joins the group and leaves it again: that is what
    the brokers count the age of its commits from."""
    wake_in = _wake_in(load, now)
    if least > 0 or not load.empty or load.current is None:
        return RetryScale(least, "nothing is due", wake_in)
    join_in = (load.changed_at or 0.0) + load.empty_s - now
    if join_in <= 0.0:
        return RetryScale(
            _within(1, load.least, most), "the brokers would forget the commits of an empty group", GROW_S
        )
    return RetryScale(least, "nothing is due", join_in if wake_in is None else min(join_in, wake_in))


def _wake_in(load: RetryLoad, now: float) -> float | None:
    """Seconds until the first worker must be started for the next record; None when none is known."""
    return load.next_due_at - WAKE_S - now if load.next_due_at is not None else None


def _most(load: RetryLoad) -> int:
    """More workers than a topic has partitions might be without work; unknown partitions bound nothing."""
    bounds = [bound for bound in (load.most, load.partitions) if bound is not None]
    return min(bounds, default=max(load.current or 0, load.least, 1))


def _within(count: int, least: int, most: int) -> int:
    return min(max(count, least), most)
