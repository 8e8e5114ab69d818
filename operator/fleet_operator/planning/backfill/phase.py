"""Next step of a Backfill: its phase, the one thing to do, and the orders to a running driver. Pure.

Everything is judged from what is there: status, ledger, application, pods. A status is written before anything rests on
it, so it does not matter between which two calls an operator was killed:

1. The range is written to status; only then is an attempt numbered.
2. An attempt gets its number in status; only then is its application created. One that is gone without having been seen
   was never created, or it ended unseen and no pod of it is left: it is created under the same number.
3. The end of an attempt is written to status (`lastEnded`); only then is its application deleted, where that is due,
   and only then is the next one numbered.

Two drivers must never work at the same time, so an application is created only when no pod of an earlier one is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fleet_consumer.contract.backfill_ledger import Control, GuardWord
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.backfill import Backfill
from fleet_operator.api.v1alpha1.model import Phase
from fleet_operator.planning import times
from fleet_operator.planning.backfill.attempts import (
    NEVER_WATCHED,
    AttemptEnd,
    Verdict,
    Watched,
    end_of,
    judge,
    late_start,
    pause_s,
    read_end,
    stalled,
)
from fleet_operator.planning.backfill.ranges import Resolution, ResolvedRange, Unresolved
from fleet_operator.planning.backfill.readings import DriverEnd, Kept, Progress, estimate, of_other_range
from fleet_operator.planning.backfill.spark import NO_APPLICATION, SeenApplication, SparkState
from fleet_operator.planning.lag import Behind
from fleet_operator.planning.problem import Problem, Refused
from fleet_operator.planning.run import Act, RunDecision

LINGER_S: Final = 30.0
"""Time for pods to end by themselves after their application; executors need a moment to miss their driver."""
GO_ON: Final = "correct the cause, and raise spec.retry to go on with the rest of the range"
HALTING: Final = frozenset({c.CLUSTER_ID_CHANGED})
"""Obstacles that stop a run which is under way. The others only keep an attempt from being started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillFacts:
    """A Backfill and what it depends on.

    - `obstacle`: why no attempt could be started now; `refusal`: why there can never be one; `group_gone`: the
      ConsumerGroup is being deleted or is no more.
    - `resolved`: the range in status; `resolution`: the newest answer of the brokers, before that. `elsewhere`: why the
      range in status is that of other records now.
    - `kept`: what attempts have left that are not in status, read before the first number is given.
    - `progress`: that of the ledger, or the problem with it; None before there is a range.
    - `application`: that of the newest attempt; `known`: it was seen, and status says so. `driver`: its driver's end.
    - `waiting`: what the driver's pod waits for; `pods_left`: pods of any attempt that have not ended.
    - `watched`: how long the attempt has been as it is; `since_end`: seconds for which this process has known its end.
    - `lost`: what a further attempt needs of the first one, and is gone.
    - `spark`, `handler`: the problems with either; `spark_asked`, `handler_read`: there are none.
    """

    backfill: Backfill
    obstacle: Problem | None = None
    refusal: Problem | None = None
    group_gone: bool = False
    resolved: ResolvedRange | None = None
    resolution: Resolution | None = None
    elsewhere: Problem | None = None
    kept: Kept | None = None
    progress: Progress | Problem | None = None
    application: SeenApplication = NO_APPLICATION
    known: bool = False
    driver: DriverEnd | None = None
    waiting: Problem | None = None
    pods_left: tuple[str, ...] = ()
    watched: Watched = NEVER_WATCHED
    since_end: float = math.inf
    lost: Problem | None = None
    spark: Problem | None = None
    spark_asked: bool = False
    handler: Problem | None = None
    handler_read: bool = False

    @property
    def started(self) -> bool:
        """True if an attempt was ever numbered."""
        return self.backfill.attempts > 0

    @property
    def halted(self) -> Problem | None:
        """The obstacle because of which no run may be under way, whatever the spec says."""
        return self.obstacle if self.obstacle is not None and self.obstacle.reason in HALTING else None

    @property
    def stop(self) -> bool:
        """True if a driver must stop after its slice."""
        return self.backfill.spec.suspend or self.halted is not None

    @property
    def misplaced(self) -> Problem | None:
        """The reason why no slice of the range may be played any more, once nothing else keeps one from it."""
        return self.elsewhere if self.obstacle is None and not self.stop else None

    @property
    def last_end(self) -> AttemptEnd | None:
        """The end of the newest attempt; None while it goes on."""
        end = read_end(self.backfill.status)
        return end if end is not None and end.attempt == self.backfill.attempts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillDecision(RunDecision):
    """A decision with what is to be written to status.

    `resolved` is the range, `attempt` the number of the next attempt, `ended` the end of the newest, `estimate` what a
    dry run has found for the whole range.
    """

    resolved: ResolvedRange | None = None
    attempt: int | None = None
    ended: AttemptEnd | None = None
    estimate: Mapping[str, int] | None = None

    @property
    def is_noted_first(self) -> bool:
        return self.resolved is not None or self.attempt is not None or self.ended is not None


def decide(facts: BackfillFacts) -> BackfillDecision:
    """The next step of a Backfill that has not ended. The first rule that applies wins."""
    name = facts.backfill.spec.group_ref.name
    if facts.refusal is not None and not facts.started:
        return BackfillDecision.of("Failed", facts.refusal)
    if facts.group_gone and facts.started:
        message = f"ConsumerGroup {name!r} was deleted; what was handled so far stays handled"
        return BackfillDecision("Cancelled", c.GROUP_DELETED, message)
    if not facts.started:
        return _before(facts)
    if facts.resolved is None:
        message = "status.resolvedRange cannot be read any more: create another Backfill"
        return BackfillDecision("Failed", c.RANGE_LOST, message)
    if isinstance(facts.progress, Problem):
        return BackfillDecision.of("Failed", facts.progress)
    assert facts.progress is not None, "a ledger is read once there is a range"
    if facts.misplaced is not None and not facts.progress.done:
        return BackfillDecision.of("Failed", facts.misplaced)
    if facts.last_end is not None:
        return _between(facts, facts.last_end)
    return _attempt(facts, facts.progress)


def _before(facts: BackfillFacts) -> BackfillDecision:
    """No attempt has a number yet."""
    spec, found = facts.backfill.spec, facts.resolved or facts.resolution
    if spec.suspend:
        return _paused()
    if facts.obstacle is not None:
        return BackfillDecision.of("Pending", facts.obstacle)
    if isinstance(found, Refused):
        return BackfillDecision.of("Failed", found.problem)
    if isinstance(found, Unresolved):
        # A topic to write to can be created; what concerns the source is a matter of time.
        missing = found.problem.reason in (c.SINK_TOPIC_NOT_FOUND, c.FAILED_TOPIC_NOT_FOUND)
        return BackfillDecision.of("Pending" if missing else "Resolving", found.problem)
    if found is None:
        message = "the brokers are being asked for the offsets of the range"
        return BackfillDecision("Resolving", c.RESOLVING, message)
    if facts.misplaced is not None:
        return BackfillDecision.of("Failed", facts.misplaced)
    if facts.kept is not None:
        return _again(facts, found, facts.kept)
    if facts.resolved is None:
        message = f"the range has {found.size}"
        return BackfillDecision("Resolving", c.RESOLVED, message, resolved=found)
    if not found.offsets:
        message = "the range has no offsets, so there was nothing to do"
        return BackfillDecision("Succeeded", c.RANGE_EMPTY, message)
    if facts.backfill.only_counts:
        message = f"the range has {found.size}; none was read (dry run)"
        return BackfillDecision("Succeeded", c.ALL_COUNTED, message)
    return _number(facts)


def _again(facts: BackfillFacts, found: ResolvedRange, kept: Kept) -> BackfillDecision:
    """The status was lost, with the range and the number of attempts that there were. Times mean other offsets by now,
    and the ledger says nothing about those."""
    if isinstance(kept.resolved, Problem):
        # With the number, or its application would not be deleted.
        return replace(BackfillDecision.of("Failed", kept.resolved), attempt=kept.attempt)
    if facts.resolved is None:
        message = "the range is that of an earlier attempt, which the status has lost"
        return BackfillDecision("Resolving", c.RESOLVED, message, resolved=kept.resolved)
    if (found.topic, found.ranges) != (kept.resolved.topic, kept.resolved.ranges):
        return replace(BackfillDecision.of("Failed", of_other_range(facts.backfill)), attempt=kept.attempt)
    return replace(_starting(facts, kept.attempt), attempt=kept.attempt)


def _number(facts: BackfillFacts) -> BackfillDecision:
    number = facts.backfill.attempts + 1
    return replace(_starting(facts, number), attempt=number)


def _starting(facts: BackfillFacts, number: int) -> BackfillDecision:
    """An attempt whose driver does not run yet; the absence of the Spark operator goes on until one has taken it."""
    before = read_end(facts.backfill.status)
    if before is not None and _waiting_phase(before) == "Pending" and not facts.application.taken:
        return _retried(before)
    return BackfillDecision("Running", c.STARTING, f"attempt {number} is being started")


def _between(facts: BackfillFacts, end: AttemptEnd) -> BackfillDecision:
    """The newest attempt is over, and another one is needed."""
    if not facts.application.state.over and not facts.application.deleting:
        message = f"attempt {end.attempt} was ended: {end.message}"
        phase: Phase = "Paused" if facts.stop else _waiting_phase(end)
        return BackfillDecision(phase, end.reason, message, act=Act.DELETE)
    if facts.backfill.spec.suspend:
        return _paused()
    if facts.halted is not None:
        return BackfillDecision.of("Paused", facts.halted)
    if facts.obstacle is not None:
        return BackfillDecision.of("Pending", facts.obstacle)
    if facts.since_end < pause_s(end):
        return _retried(end)
    return _waits_for_pods(facts) or _number(facts)


def _waiting_phase(end: AttemptEnd) -> Phase:
    """The phase between a failed attempt and the next: Pending while the Spark operator is away."""
    return "Pending" if end.reason == c.SPARK_OPERATOR_NOT_RESPONDING else "Running"


def _retried(end: AttemptEnd) -> BackfillDecision:
    phase = _waiting_phase(end)
    message = f"attempt {end.attempt} failed, and another one follows: {end.reason}: {end.message}"
    reason = c.WAITING_TO_RETRY if phase == "Running" else end.reason
    return BackfillDecision(phase, reason, message)


def _waits_for_pods(facts: BackfillFacts) -> BackfillDecision | None:
    application = facts.application
    finished = application.state in (SparkState.SUCCEEDED, SparkState.FAILED) and not application.deleting
    if facts.pods_left and finished and facts.since_end >= LINGER_S:
        # spark-submit may fail when the driver's pod is made, and a ConfigMap that the pod waits for is not.
        message = f"pod {facts.pods_left[0]} has not ended with its Spark application, which is deleted for that"
        return BackfillDecision("Running", c.WAITING_FOR_LAST_RUN, message, act=Act.DELETE)
    if facts.pods_left:
        message = f"waiting for pod {facts.pods_left[0]} of the last attempt to end"
    elif not application.state.over:
        message = "waiting for the last Spark application to be deleted"
    else:
        return None
    return BackfillDecision("Running", c.WAITING_FOR_LAST_RUN, message)


def _attempt(facts: BackfillFacts, progress: Progress) -> BackfillDecision:
    """The newest attempt has no end on record."""
    application, number = facts.application, facts.backfill.attempts
    mine = progress.ledger is not None and progress.ledger.attempt == number
    if application.state is SparkState.ABSENT and not facts.known and not mine:
        return _start(facts)
    if application.state.over:
        return _over(facts, progress, None)
    watched = (facts.backfill, application, facts.watched, facts.waiting)
    given_up = late_start(*watched) or stalled(*watched)
    if facts.stop and application.state is SparkState.SUBMITTED and not mine:
        given_up = Problem(c.STOPPED, "its driver had not begun when it was to stop")
    return _running(facts, progress) if given_up is None else _over(facts, progress, given_up)


def _start(facts: BackfillFacts) -> BackfillDecision:
    """An application is wanted and there is none."""
    if facts.backfill.spec.suspend:
        return _paused()
    if facts.halted is not None:
        return BackfillDecision.of("Paused", facts.halted)
    if facts.obstacle is not None:
        return BackfillDecision.of("Pending", facts.obstacle)
    if facts.lost is not None:
        return BackfillDecision.of("Failed", facts.lost)
    waits = _waits_for_pods(facts)
    if waits is not None:
        return waits
    return replace(_starting(facts, facts.backfill.attempts), act=Act.CREATE)


def _over(facts: BackfillFacts, progress: Progress, given_up: Problem | None) -> BackfillDecision:
    """The attempt has ended, or it is given up."""
    number = facts.backfill.attempts
    judged = judge(number, progress, facts.application, facts.driver, given_up, facts.waiting)
    end = end_of(facts.backfill, judged, progress.covered)
    problem = judged.problem
    if judged.verdict is Verdict.DONE:
        assert progress.ledger is not None, "its ledger says so"
        counts, found = progress.ledger.counts, None
        more = f"; {counts.failed} of them failed" if counts.failed else ""
        if facts.backfill.spec.dry_run and facts.resolved is not None:
            found = estimate(facts.resolved, progress.ledger)
            more = f" (dry run): {_in_words(facts.resolved, found)}"
        return BackfillDecision("Succeeded", problem.reason, f"{problem.message}{more}", ended=end, estimate=found)
    if judged.verdict is Verdict.HOPELESS:
        message = f"{problem.message}: {GO_ON}"
        return BackfillDecision("Failed", problem.reason, message, ended=end)
    if facts.stop and judged.verdict in (Verdict.STOPPED, Verdict.FAILED):
        paused = _paused() if facts.halted is None else BackfillDecision.of("Paused", facts.halted)
        return replace(paused, ended=end)
    if end.failures_in_a_row >= judged.failures_max:
        message = (
            f"attempt {number} failed, the {end.failures_in_a_row}th in a row without progress: {problem.message}: "
            f"{GO_ON}"
        )
        return BackfillDecision("Failed", problem.reason, message, ended=end)
    if judged.verdict is Verdict.FAILED:
        return replace(_retried(end), ended=end)
    return BackfillDecision("Running", problem.reason, problem.message, ended=end)


def _in_words(resolved: ResolvedRange, found: Mapping[str, int]) -> str:
    seconds = found.get("seconds")
    time = "" if seconds is None else f"; that takes about {times.duration_text(seconds)} at the rate of the sample"
    return (
        f"the whole range has {resolved.sampled_from} offsets with about {found['records']} records of "
        f"{found['bytes'] / 2**20:.1f} MiB, of which about {found['failed']} would fail{time}"
    )


def _running(facts: BackfillFacts, progress: Progress) -> BackfillDecision:
    """A driver is at work, or on its way."""
    if facts.stop:
        why = "spec.suspend is true" if facts.halted is None else facts.halted.message
        message = f"the driver stops after the slice that it has in hand: {why}"
        return BackfillDecision("Running", c.STOPPING, message)
    ledger = progress.ledger
    silent = ledger is None or ledger.attempt != facts.backfill.attempts
    if facts.waiting is not None and silent:
        message = f"{facts.waiting.reason}: {facts.waiting.message}"
        return BackfillDecision("Running", c.POD_NOT_RUNNING, message)
    if facts.application.state is not SparkState.RUNNING:
        return _starting(facts, facts.backfill.attempts)
    if ledger is not None and ledger.throttled_by and ledger.throttle_message:
        message = f"held back ({ledger.throttled_by}): {ledger.throttle_message}"
        return BackfillDecision("Running", c.RUNNING, message)
    return BackfillDecision("Running", c.RUNNING, "records are being handled")


def _paused() -> BackfillDecision:
    return BackfillDecision("Paused", c.SUSPENDED, "spec.suspend is true")


RELEASE: Final = 0.8
"""Share of the limit below which the pause ends, so that it does not begin again at once."""
LOOK_S: Final = 15.0
"""Steps of the observation's time in the control. A driver that sees it stand still pauses."""


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """The live group as observed at `at` (epoch seconds). `behind` is None while nobody knows it."""

    at: float
    behind: Behind | None = None


def control_of(backfill: Backfill, live: LiveGroup | None, *, stop: bool, paused: bool) -> Control:
    """The orders. `stop` ends the run after its slice; `paused` is the guard's word before. Without a guard `live`
    does not count."""
    guard = None
    if backfill.spec.guard is not None:
        limit = backfill.spec.guard.max_live_behind_seconds
        at = live.at if live is not None else 0.0
        pause, message = _word(limit, live.behind if live is not None else None, paused)
        guard = GuardWord(pause=pause, message=message, look=times.to_text(at - at % LOOK_S))
    return Control(suspend=stop, records_per_second=backfill.rate, guard=guard)


def _word(limit: int, behind: Behind | None, paused: bool) -> tuple[bool, str]:
    if behind is None:
        return True, "it is not known how far the live group is behind"
    if behind.at_least and behind.seconds <= limit:
        return True, "the live group is behind, and it is not known how far"
    bound = limit * RELEASE if paused else limit
    if behind.seconds > bound:
        return True, f"the live group is more than {bound:.0f} s behind"
    return False, ""
