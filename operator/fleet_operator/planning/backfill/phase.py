"""Next step of a Backfill: its phase, one action, and the control document of a running driver. Pure.

Every decision depends only on objects in the API server: the Backfill with its status, the ledger, the application and
the pods. The status is written before an action relies on it, so the operator may be killed between any two calls:

1. The operator writes the range to the status before it numbers an attempt.
2. It writes the attempt's number to the status before it creates the attempt's application. If the application is
   absent and its uid is not in the status, there are two possibilities. Either the application was not created, or it
   was deleted before the operator saw it. In both cases, it has no pods, and the operator creates an application with
   the same number.
3. It writes the end of an attempt to the status (`lastEnded`) before it deletes the attempt's application, if that is
   necessary, and before it numbers the next attempt.

Two drivers must never run at the same time, so an application is created only when no pod of an earlier application is
left.

Decision: docs/decisions/0043-backfill-runs.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fleet_consumer.contract.backfill_ledger import Control, GuardWord
from fleet_operator.api.v1alpha1 import conditions as c
from fleet_operator.api.v1alpha1.backfill import Backfill
from fleet_operator.api.v1alpha1.model import Phase
from fleet_operator.planning import times
from fleet_operator.planning.backfill import attempts
from fleet_operator.planning.backfill.attempts import AttemptEnd, Verdict, Watched
from fleet_operator.planning.backfill.parsing import DriverEnd, Kept, Progress, estimate, unreadable_ledger
from fleet_operator.planning.backfill.ranges import Resolution, ResolvedRange, Unresolved
from fleet_operator.planning.backfill.spark import NO_APPLICATION, SeenApplication, SparkState
from fleet_operator.planning.lag import Behind
from fleet_operator.planning.problem import Problem, Refused
from fleet_operator.planning.run import Act, RunDecision

LINGER_S: Final = 30.0
"""Seconds to wait for the pods of an ended application. Executors take a few seconds to notice that their driver has
ended."""
GO_ON: Final = "correct the cause, and raise spec.retry to continue with the rest of the range"
HALTING: Final = frozenset({c.CLUSTER_ID_CHANGED})
"""Obstacles that stop a running driver. Other obstacles only prevent the start of an attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillFacts:
    """A Backfill and its dependencies.

    - `obstacle`: the reason why no attempt can start now. `refusal`: the reason why no attempt can ever start.
    - `group_gone`: the ConsumerGroup is being deleted or does not exist.
    - `resolved`: the range in the status. `resolution`: the brokers' newest answer while the status has no range.
    - `elsewhere`: the reason why the offsets of the range now belong to other records.
    - `kept`: traces of attempts that the status has lost; read before the first attempt is numbered.
    - `progress`: the progress in the ledger, or the ledger's problem; None without a range.
    - `application`: the application of the newest attempt. `known`: the status has the application's uid.
    - `driver`: the end of the newest attempt's driver; None while the end is unknown.
    - `waiting`: the reason why a pod of the attempt does not run. `pods_left`: pods of any attempt that have not ended.
    - `since_end`: seconds since this process first saw the newest recorded end of an attempt.
    - `lost`: the problem of a missing object that the first attempt created and further attempts need.
    - `spark`, `handler`: the problem of the Spark operator and of the handler. `spark_asked`, `handler_read`: Spark and
      the handler were checked and have no problem.
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
    watched: Watched = attempts.NEVER_WATCHED
    since_end: float = math.inf
    lost: Problem | None = None
    spark: Problem | None = None
    spark_asked: bool = False
    handler: Problem | None = None
    handler_read: bool = False

    @property
    def started(self) -> bool:
        """True if an attempt has a number in the status. The number is written before the attempt's application is
        created."""
        return self.backfill.attempts > 0

    @property
    def halted(self) -> Problem | None:
        """The obstacle that stops even a running driver; None without one."""
        return self.obstacle if self.obstacle is not None and self.obstacle.reason in HALTING else None

    @property
    def stop(self) -> bool:
        """True if a running driver must stop after its present slice."""
        return self.backfill.spec.suspend or self.halted is not None

    @property
    def misplaced(self) -> Problem | None:
        """The reason why the range cannot be continued. None without such a reason, and while an obstacle or a
        requested stop prevents progress anyway."""
        return self.elsewhere if self.obstacle is None and not self.stop else None

    @property
    def last_end(self) -> AttemptEnd | None:
        """The recorded end of the newest attempt; None while its end is not recorded."""
        end = attempts.read_end(self.backfill.status)
        return end if end is not None and end.attempt == self.backfill.attempts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillDecision(RunDecision):
    """A decision with the facts to write to the status. They are the range, the number of the next attempt, the end of
    the newest attempt, and a dry run's estimate for the whole range. A fact is None if it is not to be written."""

    resolved: ResolvedRange | None = None
    attempt: int | None = None
    ended: AttemptEnd | None = None
    estimate: Mapping[str, int] | None = None

    @property
    def is_recorded_first(self) -> bool:
        return self.resolved is not None or self.attempt is not None or self.ended is not None


def decide(facts: BackfillFacts) -> BackfillDecision:
    """Decide the next step of a Backfill that has not ended. The first rule that applies wins."""
    name = facts.backfill.spec.group_ref.name
    if facts.refusal is not None and not facts.started:
        return BackfillDecision.from_problem("Failed", facts.refusal)
    if facts.group_gone and facts.started:
        message = f"ConsumerGroup {name!r} was deleted; records handled so far stay handled"
        return BackfillDecision("Cancelled", c.GROUP_DELETED, message)
    if not facts.started:
        return _before(facts)
    if facts.resolved is None:
        message = "status.resolvedRange was removed or cannot be read: create another Backfill"
        return BackfillDecision("Failed", c.RANGE_LOST, message)
    if isinstance(facts.progress, Problem):
        return BackfillDecision.from_problem("Failed", facts.progress)
    assert facts.progress is not None, "a ledger is read once there is a range"
    if facts.misplaced is not None and not facts.progress.done:
        return BackfillDecision.from_problem("Failed", facts.misplaced)
    if facts.last_end is not None:
        return _between(facts, facts.last_end)
    return _attempt(facts, facts.progress)


def _before(facts: BackfillFacts) -> BackfillDecision:
    """Decide for a Backfill without a numbered attempt."""
    spec, found = facts.backfill.spec, facts.resolved or facts.resolution
    if spec.suspend:
        return _paused()
    if facts.obstacle is not None:
        return BackfillDecision.from_problem("Pending", facts.obstacle)
    if isinstance(found, Refused):
        return BackfillDecision.from_problem("Failed", found.problem)
    if isinstance(found, Unresolved):
        # The user has to create a missing output topic. Problems of the source topic are temporary.
        missing = found.problem.reason in (c.SINK_TOPIC_NOT_FOUND, c.FAILED_TOPIC_NOT_FOUND)
        return BackfillDecision.from_problem("Pending" if missing else "Resolving", found.problem)
    if found is None:
        return BackfillDecision("Resolving", c.RESOLVING, "the brokers are being asked for the offsets of the range")
    if facts.misplaced is not None:
        return BackfillDecision.from_problem("Failed", facts.misplaced)
    if facts.kept is not None:
        return _again(facts, found, facts.kept)
    if facts.resolved is None:
        return BackfillDecision("Resolving", c.RESOLVED, f"the range has {found.size}", resolved=found)
    if not found.offsets:
        return BackfillDecision("Succeeded", c.RANGE_EMPTY, "the range has no offsets, so there was nothing to do")
    if facts.backfill.only_counts:
        return BackfillDecision("Succeeded", c.ALL_COUNTED, f"the range has {found.size}; none was read (dry run)")
    return _number(facts)


def _again(facts: BackfillFacts, found: ResolvedRange, kept: Kept) -> BackfillDecision:
    """Decide after the status was lost. The range comes from the settings of the earlier attempts. If the range were
    resolved again, it might not match the ledger, because the offset at a time and the end of a topic change."""
    if isinstance(kept.resolved, Problem):
        # Without the attempt's number in the status, the attempt's application would not be deleted.
        return replace(BackfillDecision.from_problem("Failed", kept.resolved), attempt=kept.attempt)
    if facts.resolved is None:
        message = "the range was read from the settings of an earlier attempt, because the status had lost it"
        return BackfillDecision("Resolving", c.RESOLVED, message, resolved=kept.resolved)
    if (found.topic, found.ranges) != (kept.resolved.topic, kept.resolved.ranges):
        problem = unreadable_ledger(facts.backfill, "belongs to another range than status.resolvedRange")
        return replace(BackfillDecision.from_problem("Failed", problem), attempt=kept.attempt)
    return replace(_starting(facts, kept.attempt), attempt=kept.attempt)


def _number(facts: BackfillFacts) -> BackfillDecision:
    number = facts.backfill.attempts + 1
    return replace(_starting(facts, number), attempt=number)


def _starting(facts: BackfillFacts, number: int) -> BackfillDecision:
    """Return the decision for an attempt whose driver is not running yet. If the previous attempt failed because no
    Spark operator responded, that failure is reported until a Spark operator has seen the new attempt's application."""
    before = attempts.read_end(facts.backfill.status)
    if before is not None and _waiting_phase(before) == "Pending" and not facts.application.taken:
        return _retried(before)
    return BackfillDecision("Running", c.STARTING, f"attempt {number} is being started")


def _between(facts: BackfillFacts, end: AttemptEnd) -> BackfillDecision:
    """Decide the next step if the newest attempt has ended and another attempt is needed."""
    if not facts.application.state.over and not facts.application.deleting:
        message = f"the operator ends attempt {end.attempt}: {end.message}"
        phase: Phase = "Paused" if facts.stop else _waiting_phase(end)
        return BackfillDecision(phase, end.reason, message, act=Act.DELETE)
    pause = _retried(end) if facts.since_end < attempts.pause_s(end) else None
    return _blocked(facts) or pause or _waits_for_pods(facts) or _number(facts)


def _blocked(facts: BackfillFacts) -> BackfillDecision | None:
    if facts.backfill.spec.suspend:
        return _paused()
    if facts.halted is not None:
        return BackfillDecision.from_problem("Paused", facts.halted)
    return BackfillDecision.from_problem("Pending", facts.obstacle) if facts.obstacle is not None else None


def _waiting_phase(end: AttemptEnd) -> Phase:
    """The phase between a failed attempt and the next attempt."""
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
        # spark-submit may fail after it created the driver's pod and before it created a ConfigMap that the pod mounts.
        message = f"pod {facts.pods_left[0]} has not ended although its Spark application has: deleting the application"
        return BackfillDecision("Running", c.WAITING_FOR_LAST_RUN, message, act=Act.DELETE)
    if facts.pods_left:
        message = f"waiting for pod {facts.pods_left[0]} of the last attempt to end"
    elif not application.state.over:
        message = "waiting for the last Spark application to be deleted"
    else:
        return None
    return BackfillDecision("Running", c.WAITING_FOR_LAST_RUN, message)


def _attempt(facts: BackfillFacts, progress: Progress) -> BackfillDecision:
    """Decide while the newest attempt has no recorded end."""
    application, number = facts.application, facts.backfill.attempts
    mine = progress.ledger is not None and progress.ledger.attempt == number
    if application.state is SparkState.ABSENT and not facts.known and not mine:
        lost = BackfillDecision.from_problem("Failed", facts.lost) if facts.lost is not None else None
        starting = replace(_starting(facts, number), act=Act.CREATE)
        return _blocked(facts) or lost or _waits_for_pods(facts) or starting
    if application.state.over:
        return _over(facts, progress, None)
    watched = (facts.backfill, application, facts.watched, facts.waiting)
    given_up = attempts.late_start(*watched) or attempts.stalled(*watched)
    if facts.stop and application.state is SparkState.SUBMITTED and not mine:
        given_up = Problem(c.STOPPED, "the driver had not started when the Backfill was stopped")
    return _running(facts, progress) if given_up is None else _over(facts, progress, given_up)


def _over(facts: BackfillFacts, progress: Progress, given_up: Problem | None) -> BackfillDecision:
    number = facts.backfill.attempts
    judged = attempts.judge(number, progress, facts.application, facts.driver, given_up, facts.waiting)
    end = attempts.end_of(facts.backfill, judged, progress.covered)
    problem = judged.problem
    if judged.verdict is Verdict.DONE:
        assert progress.ledger is not None, "a ledger shows that all is done"
        counts, found = progress.ledger.counts, None
        more = f"; {counts.failed} of them failed" if counts.failed else ""
        if facts.backfill.spec.dry_run and facts.resolved is not None:
            found = estimate(facts.resolved, progress.ledger)
            more = f" (dry run): {_in_words(facts.resolved, found)}"
        return BackfillDecision("Succeeded", problem.reason, f"{problem.message}{more}", ended=end, estimate=found)
    if judged.verdict is Verdict.HOPELESS:
        return BackfillDecision("Failed", problem.reason, f"{problem.message}: {GO_ON}", ended=end)
    if facts.stop and judged.verdict in (Verdict.STOPPED, Verdict.FAILED):
        paused = _paused() if facts.halted is None else BackfillDecision.from_problem("Paused", facts.halted)
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
    time = "" if seconds is None else f"; it would take about {times.duration_text(seconds)} at the rate of the sample"
    return (
        f"the whole range has {resolved.sampled_from} offsets with about {found['records']} records of "
        f"{found['bytes'] / 2**20:.1f} MiB, and about {found['failed']} of them would fail{time}"
    )


def _running(facts: BackfillFacts, progress: Progress) -> BackfillDecision:
    if facts.stop:
        why = "spec.suspend is true" if facts.halted is None else facts.halted.message
        return BackfillDecision("Running", c.STOPPING, f"the driver stops after its present slice: {why}")
    ledger = progress.ledger
    silent = ledger is None or ledger.attempt != facts.backfill.attempts
    if facts.waiting is not None and silent:
        return BackfillDecision("Running", c.POD_NOT_RUNNING, f"{facts.waiting.reason}: {facts.waiting.message}")
    if facts.application.state is not SparkState.RUNNING:
        return _starting(facts, facts.backfill.attempts)
    if ledger is not None and ledger.throttled_by and ledger.throttle_message:
        return BackfillDecision("Running", c.RUNNING, f"held back ({ledger.throttled_by}): {ledger.throttle_message}")
    return BackfillDecision("Running", c.RUNNING, "records are being handled")


def _paused() -> BackfillDecision:
    return BackfillDecision("Paused", c.SUSPENDED, "spec.suspend is true")


RELEASE: Final = 0.8
"""The guard's pause ends when the lag falls below this share of the limit. If it ended at the limit itself, the next
pause would soon follow."""
STEP_S: Final = 15.0
"""The observation's time in the control document is rounded down to a multiple of `STEP_S` seconds, so that the
document is written less often. A driver pauses when this time stops advancing."""


def control_of(
    backfill: Backfill, behind: Behind | None = None, *, at: float = 0.0, stop: bool, paused: bool
) -> Control:
    """Build a driver's control document.

    `stop` ends the run after the present slice. The other arguments are for the guard, which pauses the driver while
    the live group is behind:

    - `behind`: the live group's lag in time; None while unknown.
    - `at`: the time of this observation, in epoch seconds.
    - `paused`: the guard's previous decision.
    """
    guard = None
    if backfill.spec.guard is not None:
        pause, message = _word(backfill.spec.guard.max_live_behind_seconds, behind, paused)
        guard = GuardWord(pause=pause, message=message, checked=times.to_text(at - at % STEP_S))
    return Control(suspend=stop, records_per_second=backfill.rate, guard=guard)


def _word(limit: int, behind: Behind | None, paused: bool) -> tuple[bool, str]:
    if behind is None:
        return True, "it is unknown how far the live group is behind"
    if behind.at_least and behind.seconds <= limit:
        return True, "the live group is behind, but it is unknown by how much"
    bound = limit * RELEASE if paused else limit
    if behind.seconds > bound:
        return True, f"the live group is more than {bound:.0f} s behind"
    return False, ""
