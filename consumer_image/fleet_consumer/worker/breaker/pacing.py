"""Breakers of the consume loop: the pace of handling, and the action for a failed record.

The loop asks for the pace before each poll. `outcomes` asks for the action after each retriable failure. Successes are
counted per batch of handled records, but always before a later failure is reported.

With a retry policy, a main worker counts successes and failures (`retry.budget`). It writes its breaker state into the
metadata of its commits: open, or closed while records succeed. Retry workers read only records that failed before, so
their own counts hardly distinguish poison records from an outage. They therefore follow the main workers' state, and
use their own counts only while no state is published. Only the consume loop's thread uses a pacing; any thread may read
`snapshot`.

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
    """A breaker's state for reports. `since` is the start of the state (wall clock, seconds). `failure_percent` is the
    percentage of failures in the breaker's window."""

    state: str
    """"Closed", "Open" or "HalfOpen"."""
    since: float
    failure_percent: float


class Pace(Enum):
    FULL = "full"
    PROBE = "probe"
    """Handle one record at a time. The outcome of this record decides the next state of the breaker."""
    STOP = "stop"


class FailureAction(Enum):
    """The action for a failed record that could succeed on another attempt."""

    PROCEED = "proceed"
    """Send the record to its next attempt, or to the failed topic if no attempt is left."""
    STAY = "stay"
    """Handle the record again later, at its place in the partition. The failure does not use up an attempt."""
    FAIL = "fail"
    """Send the record to the failed topic, even if attempts are left."""


class Pacing:
    """The pacing without a retry budget: always full speed."""

    breaker_state = ""
    """The breaker's state, as written into the metadata of commits; empty if none is published."""
    _successes = 0
    """Successes that are not yet added to the breaker's count."""
    snapshot: BreakerSnapshot | None = None
    """The breaker's state for reports; None without a budget. Any thread may read it."""

    def succeeded(self, count: int) -> None:
        """Count `count` records that were handled without an error."""
        self._successes += count

    def pace(self, *, idle: bool) -> Pace:
        """Return the current pace. `idle` means that the last poll was empty and no record is being handled."""
        return Pace.FULL

    def failed(self) -> FailureAction:
        """Count a retriable failure, and return the action for the failed record."""
        return FailureAction.PROCEED


LOG = logging.getLogger("fleet_consumer.worker")

STATE_S: Final = 15.0
"""Lifetime in seconds of a published breaker state. If a main worker dies while its breaker is open, retry workers
pause up to this time."""
RENEW_S: Final = 5.0
"""A published state is renewed this many seconds before it expires. This leaves time to retry a failed commit, and for
the retry workers to read the new state."""
WELL_S: Final = 5.0
"""The breaker is published as closed only for this many seconds after a success. An older success does not rule out an
outage."""

OWN_RECORDS_MAX: Final = 10
"""A retry worker's own breaker has at most this `min_records`, even if the budget has a higher value. The breaker
counts only while no main worker publishes a state. During an outage, each counted record uses up an attempt in vain."""

NEVER: Final = 10**12
"""`min_records` of a retry worker's own breaker if the policy has no budget. The number is never reached, so the worker
only follows the main workers' breakers. Some records never succeed, which is normal. A smaller number would let such
records pause the retries while the main topic is quiet."""

TRIAL_S: Final = 600.0
"""Longest time in seconds for which open breakers of main workers pause a retry worker. After this time the retry
worker tries single records."""

SNAPSHOT_S: Final = 1.0
"""Seconds between two snapshots while the breaker's state does not change."""

PACES: Final = {BreakerState.CLOSED: Pace.FULL, BreakerState.HALF_OPEN: Pace.PROBE, BreakerState.OPEN: Pace.STOP}


class BudgetPacing(Pacing):
    """A main worker's pacing, controlled by the budget of the newest policy revision. Full speed without a budget."""

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
        """Return the pace for the breaker's state: full speed if closed, single records if half open, none if open.

        Return full speed without a budget, and if the budget's action is not `Pause`. A half-open breaker closes if no
        record arrives within a cooldown. Retry workers pause while the main workers' breakers are half open. Without
        this rule, they would pause indefinitely after the main topic became quiet.
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
        """Return PROCEED while the breaker is closed. Otherwise return FAIL if this is the budget's action, else STAY.

        The failure that opens the breaker already gets FAIL or STAY. Every `PROBES_IN_VAIN`th failed probe gets PROCEED
        in place of STAY.
        """
        breaker = self._current()
        if breaker is None or breaker.failed(self._clock.monotonic()) is BreakerState.CLOSED:
            return FailureAction.PROCEED
        if breaker.budget.action is BudgetAction.FAIL:
            return FailureAction.FAIL
        return FailureAction.PROCEED if breaker.makes_way else FailureAction.STAY

    def _current(self) -> Breaker | None:
        """Return the breaker, with the policy's current budget and the pending successes. None without a budget."""
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
        """Return True if a record succeeded in the last `WELL_S` seconds and the failure rate is within the budget."""
        breaker = self._breaker
        assert breaker is not None, "there is a budget"
        return now < self._well_until and breaker.failure_percent(now) <= breaker.budget.max_failure_percent

    def _show(self, breaker: Breaker, state: BreakerState, now: float) -> None:
        if state is self._shown and now < self._snapshot_at:
            return
        self._snapshot_at = now + SNAPSHOT_S
        percent = breaker.failure_percent(now)
        if state is not self._shown:
            # Half open counts as part of the open period. Only the beginning and the end of this period are logged.
            if BreakerState.CLOSED in (state, self._shown):
                LOG.warning("the breaker is %s", state.value.lower(), extra=fields(failurePercent=percent))
            self._shown, self._since = state, self._clock.wall()
        self.snapshot = BreakerSnapshot(state.value, self._since, percent)

    def _renew_state(self, breaker: Breaker, state: BreakerState, now: float, *, wanted: bool) -> None:
        is_open = state is not BreakerState.CLOSED
        if not wanted:
            # A published closed state simply expires. Withdrawing it needs no commit.
            if self._written_open:
                self.breaker_state = ""
            self._written_open, self._renew_at = False, float("-inf")
        elif now >= self._renew_at or is_open is not self._written_open:
            lasts_s = STATE_S + (0.0 if breaker.until is None else max(0.0, breaker.until - now))
            self._written_open, self._renew_at = is_open, now + lasts_s - RENEW_S
            until_ms = int((self._clock.wall() + lasts_s) * 1000)
            self.breaker_state = open_breaker_state(until_ms) if is_open else closed_breaker_state(until_ms)


class FollowingPacing(Pacing):
    """A retry worker's pacing: stopped while the main workers' breakers are open, full speed while they are closed.

    While the main workers' commits contain no state, the retry worker's own breaker decides if the policy has a budget.
    This breaker counts retried records. Otherwise nobody would notice an outage while the main topic is quiet.

    When the open state has expired and no closed state is published, the retry worker first tries single records. After
    `TRIAL_S`, it tries single records even if the main workers' breakers are still open. So a few bad workers cannot
    stop retries indefinitely.
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
        # Without records to try, a half-open breaker stays half open. After a cooldown without records it is reported
        # as closed, but the next record is still a trial.
        rests = state is BreakerState.HALF_OPEN and now - self._busy_at >= breaker.budget.cooldown_s
        self._show(BreakerState.CLOSED if rests else state, breaker.failure_percent(now))
        return PACES[state]

    def failed(self) -> FailureAction:
        """Return STAY if an outage may have caused the failure, otherwise PROCEED."""
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
        """Return the worker's own breaker, with the current policy's budget and the pending successes.

        Returns None without a budget, or if the budget's action is not `Pause`. While the main workers' breakers are
        published as closed, each call returns a new breaker, which has counted no failures.
        """
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
