"""The two brakes of a group with a retry policy: the main worker's own breaker, and that of retry workers, who follow.

A main worker counts what succeeds and what fails (`retry.budget`) and tells of an open breaker by the mark in its
commits. Retry workers read nothing but what failed before, so their own counts could not tell poison from an outage;
they stop while any main worker of the group says so. Used by the consume loop's thread only, except `picture`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.retry.budget import Breaker, BreakerState
from fleet_consumer.retry.policy import Budget, BudgetAction, Policies
from fleet_consumer.worker.brake import BreakerPicture, Course, Pace
from fleet_consumer.worker.breaker_mark import breaker_mark
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

MARK_S: Final = 15.0
"""How long a mark counts: for so long retry workers stand still after a main worker has died with an open breaker."""
RENEW_S: Final = 5.0
"""How long before its end a mark is renewed: enough for a commit that is tried again, and for who reads it."""
PICTURE_S: Final = 1.0
"""How old what others see of a closed breaker may be."""

PACES: Final = {BreakerState.CLOSED: Pace.FULL, BreakerState.HALF_OPEN: Pace.PROBE, BreakerState.OPEN: Pace.STOP}


class BudgetBrake:
    """A main worker's breaker, by the budget of the newest policy revision; without one it never brakes.

    `picture` is for any thread: replaced as a whole.
    """

    def __init__(self, policies: Callable[[], Policies | None], clock: Clock) -> None:
        self._policies = policies
        self._clock = clock
        self._breaker: Breaker | None = None
        self._credited = 0
        self._busy_at = clock.monotonic()
        self._told = BreakerState.CLOSED
        self._since = clock.wall()
        self._renew_at = float("-inf")
        self._picture_at = float("-inf")
        self.mark = ""
        self.picture: BreakerPicture | None = None

    def pace(self, succeeded: int, *, idle: bool) -> Pace:
        """Full speed while closed, one record at a time while half open.

        Half open with nothing to try for as long as a cooldown, it closes: retry workers stand still meanwhile, and
        would for ever beside a topic that has become quiet.
        """
        breaker, now = self._current(succeeded), self._clock.monotonic()
        if breaker is None:
            self.mark, self.picture = "", None
            return Pace.FULL
        state = breaker.look(now)
        if not idle or state is not BreakerState.HALF_OPEN or state is not self._told:
            self._busy_at = now
        elif now - self._busy_at >= breaker.budget.cooldown_s:
            breaker = self._breaker = Breaker(breaker.budget, now)
            state = breaker.state
        self._tell(breaker, state, now)
        pauses = breaker.budget.action is BudgetAction.PAUSE
        self._renew_mark(breaker, now, wanted=pauses and state is not BreakerState.CLOSED)
        return PACES[state] if pauses else Pace.FULL

    def failed(self, succeeded: int) -> Course:
        """On its way while closed, or when probes of it were long in vain. The failure that opens the breaker is the
        first to stay."""
        breaker = self._current(succeeded)
        if breaker is None or breaker.failed(self._clock.monotonic()) is BreakerState.CLOSED:
            return Course.ON
        if breaker.budget.action is BudgetAction.FAIL:
            return Course.FAIL
        return Course.ON if breaker.makes_way else Course.STAY

    def _current(self, succeeded: int) -> Breaker | None:
        """The breaker under the policy as it is now, with all successes until now counted in."""
        budget = _budget(self._policies())
        news, self._credited = succeeded - self._credited, succeeded
        if budget is None:
            self._breaker = None
            return None
        now = self._clock.monotonic()
        if self._breaker is None:
            self._breaker = Breaker(budget, now)
        self._breaker.budget = budget
        if news:
            self._breaker.succeeded(now, news)
        return self._breaker

    def _tell(self, breaker: Breaker, state: BreakerState, now: float) -> None:
        if state is self._told and now < self._picture_at:
            return
        self._picture_at = now + PICTURE_S
        percent = breaker.failure_percent(now)
        if state is not self._told:
            # Half open is a moment of an open breaker; only its beginning and its end are news for people.
            if BreakerState.CLOSED in (state, self._told):
                LOG.warning("the breaker is %s", state.value.lower(), extra=fields(failurePercent=percent))
            self._told, self._since = state, self._clock.wall()
        self.picture = BreakerPicture(state.value, self._since, percent)

    def _renew_mark(self, breaker: Breaker, now: float, *, wanted: bool) -> None:
        if not wanted:
            self.mark, self._renew_at = "", float("-inf")
        elif now >= self._renew_at:
            lasts_s = MARK_S + (0.0 if breaker.until is None else max(0.0, breaker.until - now))
            self._renew_at = now + lasts_s - RENEW_S
            self.mark = breaker_mark(int((self._clock.wall() + lasts_s) * 1000))


class FollowingBrake:
    """A retry worker's: it stands still while a main worker's breaker is open, and uses up no attempt meanwhile.

    `open_until` tells until when that is, in seconds of the wall clock; `follow` is told whether anybody wants to know.
    """

    mark = ""

    def __init__(
        self,
        policies: Callable[[], Policies | None],
        open_until: Callable[[], float],
        follow: Callable[[bool], None],
        clock: Clock,
    ) -> None:
        self._policies = policies
        self._open_until = open_until
        self._follow = follow
        self._clock = clock
        self.picture: BreakerPicture | None = None

    def pace(self, succeeded: int, *, idle: bool) -> Pace:
        """Stop or full speed: what may be tried is for the main workers to find out."""
        budget = _budget(self._policies())
        follows = budget is not None and budget.action is BudgetAction.PAUSE
        self._follow(follows)
        stopped = self._stopped()
        state = BreakerState.OPEN if stopped else BreakerState.CLOSED
        if not follows:
            self.picture = None
        elif self.picture is None or self.picture.state != state.value:
            self.picture = BreakerPicture(state.value, self._clock.wall(), 0)
        return Pace.STOP if stopped else Pace.FULL

    def failed(self, succeeded: int) -> Course:
        """It stays if the failure may be the outage's."""
        return Course.STAY if self._stopped() else Course.ON

    def _stopped(self) -> bool:
        return self._open_until() > self._clock.wall()


def _budget(policies: Policies | None) -> Budget | None:
    budget = None if policies is None else policies.newest.budget
    return None if budget is None or budget.action is BudgetAction.NONE else budget
