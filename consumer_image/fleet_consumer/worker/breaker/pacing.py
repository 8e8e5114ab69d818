"""Breakers as the consume loop uses them: how fast to handle records, and what to do with one that fails.

The loop asks before each poll, `outcomes` at each failure that another attempt may mend. Successes are counted by run,
not by record, but always before a failure behind them is reported.

With a retry policy a main worker counts what succeeds and what fails (`retry.budget`) and marks its commits: open, or
closed while records succeed. Retry workers read nothing but what failed before, so their own counts tell poison from an
outage only badly: while main workers say anything they are believed, and only where these are silent a retry worker's
own counts decide. Used by the consume loop's thread only, except `snapshot`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.contract.breaker_mark import Breakers, breaker_mark, closed_mark
from fleet_consumer.contract.policies import DEFAULT_BUDGET, Budget, BudgetAction, Policies
from fleet_consumer.retry.budget import Breaker, BreakerState
from fleet_consumer.worker.logs import fields


@dataclass(frozen=True, slots=True)
class BreakerSnapshot:
    """A retry budget's breaker as others see it; `since` is wall clock seconds, `failure_percent` of its window."""

    state: str
    """"Closed", "Open" or "HalfOpen"."""
    since: float
    failure_percent: float


class Pace(Enum):
    """The speed at which records may be handled."""

    FULL = "full"
    PROBE = "probe"
    """One at a time: what becomes of it decides how things go on."""
    STOP = "stop"


class Course(Enum):
    """The way of a record whose handler failed, and could succeed when it is tried again."""

    ON = "on"
    """On its way: to its next attempt, or to the failed topic when it has none left."""
    STAY = "stay"
    """It stays at its place and is handled again later; no attempt is used up."""
    FAIL = "fail"
    """To the failed topic, attempts left or not."""


class Pacing:
    """A breaker as the consume loop uses it: on the loop's thread only, except `snapshot`.

    This one is always at full speed: no policy gives failures a budget.
    """

    mark = ""
    """The breaker's mark in the metadata of commits."""
    _successes = 0
    """Those that the breaker has not counted yet: it does when it is asked next."""
    snapshot: BreakerSnapshot | None = None
    """The breaker as shown to others, replaced as a whole; None without a budget. Any thread."""

    def succeeded(self, count: int) -> None:
        """Count records whose handlers raised nothing."""
        self._successes += count

    def pace(self, *, idle: bool) -> Pace:
        """The pace to go on at. `idle`: there was nothing to handle just now, and nothing is being handled."""
        return Pace.FULL

    def failed(self) -> Course:
        """Count a failure that another attempt may mend; returns what becomes of its record."""
        return Course.ON


LOG = logging.getLogger("fleet_consumer.worker")

MARK_S: Final = 15.0
"""Lifetime of a mark: for so long retry workers stand still after a main worker has died with an open breaker."""
RENEW_S: Final = 5.0
"""A mark is renewed so long before its end: enough for a commit that is tried again, and for its readers."""
WELL_S: Final = 5.0
"""The breaker is marked as closed for so long after a success; older successes say nothing of an outage now."""

OWN_RECORDS_MAX: Final = 10
"""Records after which a retry worker's own breaker may open, if the budget asks for more: it counts only while the main
workers are silent, and each record more is an attempt more for nothing."""

NEVER: Final = 10**12
"""Records that the breaker of a retry worker never counts: without a budget in the policy it only follows. Records that
never succeed would stand still beside a quiet topic otherwise, and these are ordinary."""

TRIAL_S: Final = 600.0
"""Retry workers stand still for so long because of the main workers before they try for themselves."""

SNAPSHOT_S: Final = 1.0
"""Longest age of the snapshot of a closed breaker."""

PACES: Final = {BreakerState.CLOSED: Pace.FULL, BreakerState.HALF_OPEN: Pace.PROBE, BreakerState.OPEN: Pace.STOP}


class BudgetPacing(Pacing):
    """A main worker's breaker, by the budget of the newest policy revision; without one it is always at full speed."""

    def __init__(self, policies: Callable[[], Policies | None], clock: Clock) -> None:
        self._policies = policies
        self._clock = clock
        self._breaker: Breaker | None = None
        self._busy_at = clock.monotonic()
        self._well_until = float("-inf")
        self._shown = BreakerState.CLOSED
        self._since = clock.wall()
        self._renew_at = float("-inf")
        self._marked_open = False
        self._snapshot_at = float("-inf")

    def pace(self, *, idle: bool) -> Pace:
        """Full speed while closed, one record at a time while half open.

        Half open with nothing to try for as long as a cooldown, it closes: retry workers stand still meanwhile, and
        would for ever beside a topic that has become quiet.
        """
        breaker, now = self._current(), self._clock.monotonic()
        if breaker is None:
            self.mark, self.snapshot = "", None
            return Pace.FULL
        state = breaker.look(now)
        if not idle or state is not BreakerState.HALF_OPEN or state is not self._shown:
            self._busy_at = now
        elif now - self._busy_at >= breaker.budget.cooldown_s:
            breaker = self._breaker = Breaker(breaker.budget, now)
            state = breaker.state
        self._show(breaker, state, now)
        pauses = breaker.budget.action is BudgetAction.PAUSE
        self._renew_mark(breaker, state, now, wanted=pauses and (state is not BreakerState.CLOSED or self._well(now)))
        return PACES[state] if pauses else Pace.FULL

    def failed(self) -> Course:
        """On its way while closed, or when probes of it were long in vain. The failure that opens the breaker is the
        first to stay."""
        breaker = self._current()
        if breaker is None or breaker.failed(self._clock.monotonic()) is BreakerState.CLOSED:
            return Course.ON
        if breaker.budget.action is BudgetAction.FAIL:
            return Course.FAIL
        return Course.ON if breaker.makes_way else Course.STAY

    def _current(self) -> Breaker | None:
        """The breaker under the policy as it is now, with all successes until now counted in."""
        budget = _budget(self._policies())
        successes, self._successes = self._successes, 0
        if budget is None:
            self._breaker = None
            return None
        now = self._clock.monotonic()
        if self._breaker is None:
            self._breaker = Breaker(budget, now)
        self._breaker.budget = budget
        if successes:
            self._breaker.succeeded(now, successes)
            self._well_until = now + WELL_S
        return self._breaker

    def _well(self, now: float) -> bool:
        """True if records have just succeeded, and not too many of the others failed."""
        breaker = self._breaker
        assert breaker is not None, "there is a budget"
        return now < self._well_until and breaker.failure_percent(now) <= breaker.budget.max_failure_percent

    def _show(self, breaker: Breaker, state: BreakerState, now: float) -> None:
        if state is self._shown and now < self._snapshot_at:
            return
        self._snapshot_at = now + SNAPSHOT_S
        percent = breaker.failure_percent(now)
        if state is not self._shown:
            # Half open is a moment of an open breaker; only its beginning and its end are news for people.
            if BreakerState.CLOSED in (state, self._shown):
                LOG.warning("the breaker is %s", state.value.lower(), extra=fields(failurePercent=percent))
            self._shown, self._since = state, self._clock.wall()
        self.snapshot = BreakerSnapshot(state.value, self._since, percent)

    def _renew_mark(self, breaker: Breaker, state: BreakerState, now: float, *, wanted: bool) -> None:
        is_open = state is not BreakerState.CLOSED
        if not wanted:
            # A closed one ends by itself, which spares a commit whenever records pause.
            if self._marked_open:
                self.mark = ""
            self._marked_open, self._renew_at = False, float("-inf")
        elif now >= self._renew_at or is_open is not self._marked_open:
            lasts_s = MARK_S + (0.0 if breaker.until is None else max(0.0, breaker.until - now))
            self._marked_open, self._renew_at = is_open, now + lasts_s - RENEW_S
            until_ms = int((self._clock.wall() + lasts_s) * 1000)
            self.mark = breaker_mark(until_ms) if is_open else closed_mark(until_ms)


class FollowingPacing(Pacing):
    """A retry worker's: it stands still while the main workers' breakers are open, and goes on while they are closed.

    While their commits carry no mark its own breaker decides if the policy has a budget, by what it handles itself:
    beside a topic that has become quiet nobody else would find out. It begins with single records after the main
    workers' breakers were open, and so it does when these have been open for very long, because a few bad workers must
    not stop retries without end.
    """

    def __init__(
        self,
        policies: Callable[[], Policies | None],
        breakers: Callable[[], Breakers],
        follow: Callable[[bool], None],
        clock: Clock,
    ) -> None:
        self._policies = policies
        self._breakers = breakers
        self._follow = follow
        self._clock = clock
        self._breaker: Breaker | None = None
        self._stopped_at: float | None = None
        self._busy_at = clock.monotonic()

    def pace(self, *, idle: bool) -> Pace:
        """The main workers' pace, or that of its own breaker."""
        breaker, now = self._current(), self._clock.monotonic()
        self._follow(breaker is not None)
        if breaker is None:
            self._stopped_at, self.snapshot = None, None
            return Pace.FULL
        state = BreakerState.OPEN if self._is_stopped(breaker, now) else breaker.look(now)
        if not idle or state is not BreakerState.HALF_OPEN:
            self._busy_at = now
        # Half open with nothing to try is how it rests: the next record is a trial, and is not shown.
        rests = state is BreakerState.HALF_OPEN and now - self._busy_at >= breaker.budget.cooldown_s
        self._show(BreakerState.CLOSED if rests else state, breaker.failure_percent(now))
        return PACES[state]

    def failed(self) -> Course:
        """It stays if the failure may be an outage's."""
        breaker, now = self._current(), self._clock.monotonic()
        if breaker is None:
            return Course.ON
        if self._is_stopped(breaker, now):
            return Course.STAY
        if self._is_vouched() or breaker.failed(now) is BreakerState.CLOSED or breaker.makes_way:
            return Course.ON
        return Course.STAY

    def _is_stopped(self, breaker: Breaker, now: float) -> bool:
        """True while the main workers' breakers are open, and not yet for too long."""
        if self._breakers().open_until <= self._clock.wall():
            self._stopped_at = None
            return False
        if self._stopped_at is None:
            self._stopped_at = now
        if now - self._stopped_at >= TRIAL_S:
            return False
        breaker.doubt(now)
        return True

    def _is_vouched(self) -> bool:
        return self._breakers().closed_until > self._clock.wall()

    def _current(self) -> Breaker | None:
        """Its own breaker under the policy as it is now; a new one as long as the main workers' are closed."""
        policies = self._policies()
        budget, is_default = _budget(policies), policies is None or policies.newest.budget is None
        successes, self._successes = self._successes, 0
        if budget is None or budget.action is not BudgetAction.PAUSE:
            self._breaker = None
            return None
        now = self._clock.monotonic()
        own = replace(budget, min_records=NEVER if is_default else min(budget.min_records, OWN_RECORDS_MAX))
        if self._breaker is None or self._is_vouched():
            self._breaker = Breaker(own, now)
        elif successes:
            self._breaker.succeeded(now, successes)
        self._breaker.budget = own
        return self._breaker

    def _show(self, state: BreakerState, percent: int) -> None:
        if self.snapshot is None or self.snapshot.state != state.value:
            if self.snapshot is not None and BreakerState.CLOSED.value in (self.snapshot.state, state.value):
                LOG.warning("the breaker is %s", state.value.lower(), extra=fields(failurePercent=percent))
            self.snapshot = BreakerSnapshot(state.value, self._clock.wall(), percent)


def _budget(policies: Policies | None) -> Budget | None:
    budget = None if policies is None else policies.newest.budget or DEFAULT_BUDGET
    return None if budget is None or budget.action is BudgetAction.NONE else budget
