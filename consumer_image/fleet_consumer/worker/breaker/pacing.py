"""Breakers of the consume loop: the pace of handling, and the action for a failed record.

The loop asks for the pace before each poll. `outcomes` asks for the action at each failure that another attempt may
fix. Successes are counted by run, not by record, but always before a later failure is reported.

With a retry policy, a main worker counts successes and failures (`retry.budget`) and writes its breaker state into its
commits: open, or closed while records succeed. Retry workers read only records that failed before, so their own counts
hardly distinguish poison records from an outage. They use the state of the main workers, and their own counts only
while no state is published. Used by the consume loop's thread only, except `snapshot`.

Decision: docs/decisions/0025-status-and-breakers.md.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.contract.breaker_state import Breakers, closed_breaker_state, open_breaker_state
from fleet_consumer.contract.policies import DEFAULT_BUDGET, Budget, BudgetAction, Policies
from fleet_consumer.retry.budget import Breaker, BreakerState
from fleet_consumer.worker.logs import fields


@dataclass(frozen=True, slots=True)
class BreakerSnapshot:
    """A breaker's state for reports. `since` is in wall-clock seconds, `failure_percent` is the share of failures in
    the breaker's window."""

    state: str
    """"Closed", "Open" or "HalfOpen"."""
    since: float
    failure_percent: float


class Pace(Enum):
    FULL = "full"
    PROBE = "probe"
    """One record at a time. Its outcome decides the next state of the breaker."""
    STOP = "stop"


class FailureAction(Enum):
    """The action for a failed record that could succeed on another attempt."""

    PROCEED = "proceed"
    """Send the record to its next attempt, or to the failed topic if no attempt is left."""
    STAY = "stay"
    """Keep the record in its partition and handle it again later, without using an attempt."""
    FAIL = "fail"
    """Send the record to the failed topic, even if attempts are left."""


class Pacing:
    """The pacing without a retry budget, which is always at full speed."""

    breaker_state = ""
    """The breaker's state for the metadata of commits."""
    _successes = 0
    """Number of successes to add to the breaker's count when it is next used."""
    snapshot: BreakerSnapshot | None = None
    """The breaker's state for reports, replaced as a whole; None without a budget. Any thread."""

    def succeeded(self, count: int) -> None:
        """Count records whose handlers did not raise an error."""
        self._successes += count

    def pace(self, *, idle: bool) -> Pace:
        """Return the current pace. If `idle`, the last poll was empty and no record is being handled."""
        return Pace.FULL

    def failed(self) -> FailureAction:
        """Count a failure that another attempt may fix, and return the action for its record."""
        return FailureAction.PROCEED


LOG = logging.getLogger("fleet_consumer.worker")

STATE_S: Final = 15.0
"""Lifetime in seconds of a published breaker state. If a main worker dies while its breaker is open, retry workers
pause up to this time."""
RENEW_S: Final = 5.0
"""A state is renewed this many seconds before it expires, so that a failed commit can be retried and retry workers can
read the new state in time."""
WELL_S: Final = 5.0
"""Time in seconds after a success during which the breaker is published as closed. An older success does not rule out
an outage."""

OWN_RECORDS_MAX: Final = 10
"""Upper limit of `min_records` for a retry worker's own breaker, even if the budget has a higher value. This breaker
counts only while no main worker publishes a state, and each further record is a wasted attempt."""

NEVER: Final = 10**12
"""A number of records that is never reached. It is `min_records` of a retry worker's own breaker if the policy has no
budget, so that the worker only follows the main workers. Otherwise records that never succeed, which are normal, would
pause retries while the main topic is quiet."""

TRIAL_S: Final = 600.0
"""Longest time in seconds for which open breakers of main workers pause a retry worker. It then tries records
itself."""

SNAPSHOT_S: Final = 1.0
"""Maximum age in seconds of the snapshot of a closed breaker."""

PACES: Final = {BreakerState.CLOSED: Pace.FULL, BreakerState.HALF_OPEN: Pace.PROBE, BreakerState.OPEN: Pace.STOP}


class BudgetPacing(Pacing):
    """Pacing of a main worker by the budget of the newest policy revision; without a budget always full speed."""

    def __init__(self, policies: Callable[[], Policies | None], clock: Clock) -> None:
        self._policies = policies
        self._clock = clock
        self._breaker: Breaker | None = None
        self._busy_at = clock.monotonic()
        self._well_until = float("-inf")
        self._shown = BreakerState.CLOSED
        self._since = clock.wall()
        self._renew_at = float("-inf")
        self._written_open = False
        self._snapshot_at = float("-inf")

    def pace(self, *, idle: bool) -> Pace:
        """Return full speed while the breaker is closed, one record at a time while it is half open.

        A half-open breaker closes if no record arrives within a cooldown. Retry workers pause while the breaker is half
        open, and would otherwise pause indefinitely after the main topic has become quiet.
        """
        breaker, now = self._current(), self._clock.monotonic()
        if breaker is None:
            self.breaker_state, self.snapshot = "", None
            return Pace.FULL
        state = breaker.state_at(now)
        if not idle or state is not BreakerState.HALF_OPEN or state is not self._shown:
            self._busy_at = now
        elif now - self._busy_at >= breaker.budget.cooldown_s:
            breaker = self._breaker = Breaker(breaker.budget, now)
            state = breaker.state
        self._show(breaker, state, now)
        pauses = breaker.budget.action is BudgetAction.PAUSE
        self._renew_state(breaker, state, now, wanted=pauses and (state is not BreakerState.CLOSED or self._well(now)))
        return PACES[state] if pauses else Pace.FULL

    def failed(self) -> FailureAction:
        """Proceed while the breaker is closed, or after `PROBES_IN_VAIN` failed probes. Otherwise the record stays, or
        fails if the budget's action is `Fail`.

        The record whose failure opens the breaker is the first to stay.
        """
        breaker = self._current()
        if breaker is None or breaker.failed(self._clock.monotonic()) is BreakerState.CLOSED:
            return FailureAction.PROCEED
        if breaker.budget.action is BudgetAction.FAIL:
            return FailureAction.FAIL
        return FailureAction.PROCEED if breaker.makes_way else FailureAction.STAY

    def _current(self) -> Breaker | None:
        """Return the breaker, with the current policy's budget and all successes counted; None without a budget."""
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
        """Return True if records succeeded within `WELL_S`, and the failure rate is within the budget."""
        breaker = self._breaker
        assert breaker is not None, "there is a budget"
        return now < self._well_until and breaker.failure_percent(now) <= breaker.budget.max_failure_percent

    def _show(self, breaker: Breaker, state: BreakerState, now: float) -> None:
        if state is self._shown and now < self._snapshot_at:
            return
        self._snapshot_at = now + SNAPSHOT_S
        percent = breaker.failure_percent(now)
        if state is not self._shown:
            # Half open is part of an open period. Only the beginning and the end of the whole period are logged.
            if BreakerState.CLOSED in (state, self._shown):
                LOG.warning("the breaker is %s", state.value.lower(), extra=fields(failurePercent=percent))
            self._shown, self._since = state, self._clock.wall()
        self.snapshot = BreakerSnapshot(state.value, self._since, percent)

    def _renew_state(self, breaker: Breaker, state: BreakerState, now: float, *, wanted: bool) -> None:
        is_open = state is not BreakerState.CLOSED
        if not wanted:
            # A closed state expires on its own. No commit is needed to withdraw it when no more records arrive.
            if self._written_open:
                self.breaker_state = ""
            self._written_open, self._renew_at = False, float("-inf")
        elif now >= self._renew_at or is_open is not self._written_open:
            lasts_s = STATE_S + (0.0 if breaker.until is None else max(0.0, breaker.until - now))
            self._written_open, self._renew_at = is_open, now + lasts_s - RENEW_S
            until_ms = int((self._clock.wall() + lasts_s) * 1000)
            self.breaker_state = open_breaker_state(until_ms) if is_open else closed_breaker_state(until_ms)


class FollowingPacing(Pacing):
    """A retry worker's pacing: it stops while the main workers' breakers are open, and continues while they are closed.

    While their commits carry no state, and the policy has a budget, the retry worker's own breaker decides, based on
    the retried records. Otherwise nobody would notice an outage while the main topic is quiet. After the main workers'
    breakers were open, this breaker first tries single records. It does so after `TRIAL_S` even if they are still open,
    because a few bad workers must not stop retries indefinitely.
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
        breaker, now = self._current(), self._clock.monotonic()
        self._follow(breaker is not None)
        if breaker is None:
            self._stopped_at, self.snapshot = None, None
            return Pace.FULL
        state = BreakerState.OPEN if self._is_stopped(breaker, now) else breaker.state_at(now)
        if not idle or state is not BreakerState.HALF_OPEN:
            self._busy_at = now
        # An idle breaker stays half open, because it has no record to try. It is shown as closed, and the next record
        # is a trial.
        rests = state is BreakerState.HALF_OPEN and now - self._busy_at >= breaker.budget.cooldown_s
        self._show(BreakerState.CLOSED if rests else state, breaker.failure_percent(now))
        return PACES[state]

    def failed(self) -> FailureAction:
        """Keep the record in its partition if an outage may be the cause of its failure."""
        breaker, now = self._current(), self._clock.monotonic()
        if breaker is None:
            return FailureAction.PROCEED
        if self._is_stopped(breaker, now):
            return FailureAction.STAY
        if self._is_vouched() or breaker.failed(now) is BreakerState.CLOSED or breaker.makes_way:
            return FailureAction.PROCEED
        return FailureAction.STAY

    def _is_stopped(self, breaker: Breaker, now: float) -> bool:
        """Return True while the main workers' breakers are open, for at most `TRIAL_S`."""
        if self._breakers().open_until <= self._clock.wall():
            self._stopped_at = None
            return False
        if self._stopped_at is None:
            self._stopped_at = now
        if now - self._stopped_at >= TRIAL_S:
            return False
        breaker.half_open(now)
        return True

    def _is_vouched(self) -> bool:
        return self._breakers().closed_until > self._clock.wall()

    def _current(self) -> Breaker | None:
        """Return the worker's own breaker with the current policy's budget; a new one while the main workers' breakers
        are closed. Returns None unless the policy has a budget with the action `Pause`."""
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
